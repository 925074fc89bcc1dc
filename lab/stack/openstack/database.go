package openstack

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	"weft.dev/weft/lab/process"
)

// packages are the packages whose versions determine the schemas.
func packages() []string {
	return []string{"mariadb-server-core", "python3-keystone", "python3-neutron", "python3-octavia", "python3-ovn-octavia-provider"}
}

// database is MariaDB with the services' databases, and with Keystone's keys, which are prepared together.
type database struct {
	place
	cache string // directory of prepared databases; "": none
}

func (d database) data() string { return filepath.Join(d.dir, "seed", "mysql") }

// program describes MariaDB.
func (d database) program() process.Program {
	return process.Program{
		Name: d.name("mariadb"),
		Argv: d.space.Enter("mariadbd", "--no-defaults", "--user=root", "--datadir="+d.data(), "--socket="+d.sock("mysql"),
			"--pid-file="+filepath.Join(d.dir, "run", "mariadbd.pid"), "--skip-networking",
			// The lab's data does not need to survive a power loss.
			"--innodb-flush-log-at-trx-commit=0", "--innodb-doublewrite=0", "--sync-binlog=0",
			"--innodb-buffer-pool-size=64M", "--innodb-log-file-size=16M", "--max-connections=200", "--performance-schema=OFF",
			"--character-set-server=utf8mb3", "--collation-server=utf8mb3_general_ci"),
		Ready: func(ctx context.Context) error { return d.sql(ctx, "select 1") },
	}
}

func (d database) sql(ctx context.Context, statement string) error {
	_, err := d.group.Run(ctx, statement, "mariadb", "--no-defaults", "-uroot", "-S", d.sock("mysql"))
	return err
}

// prepare makes the databases with their schemas, Keystone's keys and its administrator. If this machine has a copy made by the same
// packages, it uses that.
func (d database) prepare(ctx context.Context) error {
	seed := filepath.Join(d.dir, "seed")
	if _, err := os.Stat(filepath.Join(seed, "complete")); err == nil {
		return nil
	}
	kept, err := d.kept(ctx)
	if err != nil {
		return err
	}
	if err := os.RemoveAll(seed); err != nil {
		return fmt.Errorf("remove an unfinished seed: %w", err)
	}
	if kept != "" {
		if _, err := os.Stat(kept); err == nil {
			_, err := d.group.Run(ctx, "", "cp", "-a", kept, seed)
			return err
		}
	}
	if err := d.grow(ctx, seed); err != nil {
		return err
	}
	if kept == "" {
		return nil
	}
	return d.keep(ctx, seed, kept)
}

// kept returns the path of this machine's copy.
func (d database) kept(ctx context.Context) (string, error) {
	versions, err := d.group.Run(ctx, "", append([]string{"dpkg-query", "-W", "-f", "${Package} ${Version} ${db:Status-Status}\n"}, packages()...)...)
	if err != nil || strings.Contains(versions, "not-installed") {
		return "", fmt.Errorf("OpenStack's packages are not installed: run build/prepare --openstack: %w", err)
	}
	if d.cache == "" {
		return "", nil
	}
	sum := sha256.Sum256([]byte(versions + AdminPassword))
	return filepath.Join(d.cache, "openstack-"+hex.EncodeToString(sum[:8])), nil
}

// keep first copies the seed beside its final path, and then renames it: another lab may do the same at this moment.
func (d database) keep(ctx context.Context, seed, kept string) error {
	if err := os.MkdirAll(d.cache, 0o755); err != nil {
		return fmt.Errorf("make the cache: %w", err)
	}
	scratch, err := os.MkdirTemp(d.cache, "openstack.new")
	if err != nil {
		return fmt.Errorf("keep OpenStack's databases: %w", err)
	}
	defer func() { _ = os.RemoveAll(scratch) }()
	copied := filepath.Join(scratch, "seed")
	if _, err := d.group.Run(ctx, "", "cp", "-a", seed, copied); err != nil {
		return err
	}
	if err := os.Rename(copied, kept); err != nil && !os.IsExist(err) {
		return fmt.Errorf("keep OpenStack's databases: %w", err)
	}
	return nil
}

func (d database) grow(ctx context.Context, seed string) error {
	if err := os.MkdirAll(seed, 0o755); err != nil {
		return fmt.Errorf("make the seed: %w", err)
	}
	if _, err := d.group.Run(ctx, "", "mariadb-install-db", "--no-defaults", "--user=root", "--datadir="+d.data(),
		"--auth-root-authentication-method=normal", "--skip-test-db", "--skip-name-resolve"); err != nil {
		return err
	}
	db := d.program()
	if err := d.group.Start(ctx, db); err != nil {
		return err
	}
	defer d.group.Stop(15*time.Second, func(name string) bool { return name == db.Name })
	for _, name := range []string{"keystone", "neutron", "octavia"} {
		if err := d.sql(ctx, "create database "+name+" character set utf8"); err != nil {
			return err
		}
	}
	for _, argv := range d.schemas() {
		if _, err := d.group.Run(ctx, "", d.space.Enter(append([]string{"env", "PYTHONDONTWRITEBYTECODE=1"}, argv...)...)...); err != nil {
			return err
		}
	}
	return os.WriteFile(filepath.Join(seed, "complete"), nil, 0o600)
}

func (d database) schemas() [][]string {
	keystone := func(args ...string) []string {
		return append([]string{"keystone-manage", "--config-file", d.conf("keystone.conf")}, args...)
	}
	const neutron = `import sys; from neutron.db.migration.cli import main; sys.argv[0]="neutron-db-manage"; sys.exit(main())`
	return [][]string{
		keystone("db_sync"),
		{python, "-c", neutron, "--config-file", d.conf("neutron.conf"), "upgrade", "heads"},
		{"octavia-db-manage", "--config-file", d.conf("octavia.conf"), "upgrade", "head"},
		keystone("fernet_setup", "--keystone-user", "root", "--keystone-group", "root"),
		keystone("credential_setup", "--keystone-user", "root", "--keystone-group", "root"),
		keystone("bootstrap", "--bootstrap-password", AdminPassword),
	}
}
