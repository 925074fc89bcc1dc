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
)

// packages are the packages whose versions determine the schemas.
func packages() []string {
	return []string{"mariadb-server-core", "python3-keystone", "python3-neutron", "python3-octavia", "python3-ovn-octavia-provider"}
}

func (s *Stack) data() string { return filepath.Join(s.Dir, "seed", "mysql") }

// seed makes the databases with their schemas, Keystone's keys and its administrator. If this machine has a copy made by the same
// packages, it uses that.
func (s *Stack) seed(ctx context.Context) error {
	seed := filepath.Join(s.Dir, "seed")
	if _, err := os.Stat(filepath.Join(seed, "complete")); err == nil {
		return nil
	}
	kept, err := s.kept(ctx)
	if err != nil {
		return err
	}
	if err := os.RemoveAll(seed); err != nil {
		return fmt.Errorf("remove an unfinished seed: %w", err)
	}
	if kept != "" {
		if _, err := os.Stat(kept); err == nil {
			_, err := s.Group.Run(ctx, "", "cp", "-a", kept, seed)
			return err
		}
	}
	if err := s.grow(ctx, seed); err != nil {
		return err
	}
	if kept == "" {
		return nil
	}
	return s.keep(ctx, seed, kept)
}

// kept returns the path of this machine's copy.
func (s *Stack) kept(ctx context.Context) (string, error) {
	versions, err := s.Group.Run(ctx, "", append([]string{"dpkg-query", "-W", "-f", "${Package} ${Version} ${db:Status-Status}\n"}, packages()...)...)
	if err != nil || strings.Contains(versions, "not-installed") {
		return "", fmt.Errorf("OpenStack's packages are not installed: run build/prepare --openstack: %w", err)
	}
	if s.Cache == "" {
		return "", nil
	}
	sum := sha256.Sum256([]byte(versions + AdminPassword))
	return filepath.Join(s.Cache, "openstack-"+hex.EncodeToString(sum[:8])), nil
}

// keep first copies the seed beside its final path, and then renames it: another lab may do the same at this moment.
func (s *Stack) keep(ctx context.Context, seed, kept string) error {
	if err := os.MkdirAll(s.Cache, 0o755); err != nil {
		return fmt.Errorf("make the cache: %w", err)
	}
	scratch, err := os.MkdirTemp(s.Cache, "openstack.new")
	if err != nil {
		return fmt.Errorf("keep OpenStack's databases: %w", err)
	}
	defer func() { _ = os.RemoveAll(scratch) }()
	copied := filepath.Join(scratch, "seed")
	if _, err := s.Group.Run(ctx, "", "cp", "-a", seed, copied); err != nil {
		return err
	}
	if err := os.Rename(copied, kept); err != nil && !os.IsExist(err) {
		return fmt.Errorf("keep OpenStack's databases: %w", err)
	}
	return nil
}

func (s *Stack) grow(ctx context.Context, seed string) error {
	if err := os.MkdirAll(seed, 0o755); err != nil {
		return fmt.Errorf("make the seed: %w", err)
	}
	if _, err := s.Group.Run(ctx, "", "mariadb-install-db", "--no-defaults", "--user=root", "--datadir="+s.data(),
		"--auth-root-authentication-method=normal", "--skip-test-db", "--skip-name-resolve"); err != nil {
		return err
	}
	db := s.mariadb()
	if err := s.Group.Start(ctx, db); err != nil {
		return err
	}
	defer s.Group.Stop(15*time.Second, func(name string) bool { return name == db.Name })
	for _, name := range []string{"keystone", "neutron", "octavia"} {
		if err := s.sql(ctx, "create database "+name+" character set utf8"); err != nil {
			return err
		}
	}
	for _, argv := range s.schemas() {
		if _, err := s.Group.Run(ctx, "", s.Space.Enter(append([]string{"env", "PYTHONDONTWRITEBYTECODE=1"}, argv...)...)...); err != nil {
			return err
		}
	}
	return os.WriteFile(filepath.Join(seed, "complete"), nil, 0o600)
}

func (s *Stack) schemas() [][]string {
	keystone := func(args ...string) []string {
		return append([]string{"keystone-manage", "--config-file", s.conf("keystone.conf")}, args...)
	}
	const neutron = `import sys; from neutron.db.migration.cli import main; sys.argv[0]="neutron-db-manage"; sys.exit(main())`
	return [][]string{
		keystone("db_sync"),
		{python, "-c", neutron, "--config-file", s.conf("neutron.conf"), "upgrade", "heads"},
		{"octavia-db-manage", "--config-file", s.conf("octavia.conf"), "upgrade", "head"},
		keystone("fernet_setup", "--keystone-user", "root", "--keystone-group", "root"),
		keystone("credential_setup", "--keystone-user", "root", "--keystone-group", "root"),
		keystone("bootstrap", "--bootstrap-password", AdminPassword),
	}
}
