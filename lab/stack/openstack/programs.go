package openstack

import (
	"context"
	"fmt"
	"net/http"
	"path/filepath"
	"strconv"
	"time"

	"weft.dev/weft/lab/process"
	"weft.dev/weft/lab/stack/ovn"
)

// python is Debian's python3: another one in PATH would lack the packages' modules.
const python = "/usr/bin/python3"

func (s *Stack) name(program string) string { return s.Prefix + "/" + program }

func (s *Stack) conf(file string) string { return filepath.Join(s.Dir, "conf", file) }

// alone runs a program that starts others in its own PID namespace, so that killing it ends all of them: octavia-driver-agent deadlocks
// when its children get SIGTERM as well.
func (s *Stack) alone(argv ...string) []string {
	return s.Space.Enter(append([]string{"unshare", "--pid", "--fork", "--kill-child=KILL", "--"}, argv...)...)
}

// environment keeps Python from writing into its packages' directories.
func environment(more ...string) []string {
	return append([]string{"PYTHONDONTWRITEBYTECODE=1", "PYTHONUNBUFFERED=1"}, more...)
}

func (s *Stack) mariadb() process.Program {
	return process.Program{
		Name: s.name("mariadb"),
		Argv: s.Space.Enter("mariadbd", "--no-defaults", "--user=root", "--datadir="+s.data(), "--socket="+s.sock("mysql"),
			"--pid-file="+filepath.Join(s.Dir, "run", "mariadbd.pid"), "--skip-networking",
			// The lab's data does not need to survive a power loss.
			"--innodb-flush-log-at-trx-commit=0", "--innodb-doublewrite=0", "--sync-binlog=0",
			"--innodb-buffer-pool-size=64M", "--innodb-log-file-size=16M", "--max-connections=200", "--performance-schema=OFF",
			"--character-set-server=utf8mb3", "--collation-server=utf8mb3_general_ci"),
		Ready: func(ctx context.Context) error { return s.sql(ctx, "select 1") },
	}
}

func (s *Stack) sql(ctx context.Context, statement string) error {
	_, err := s.Group.Run(ctx, statement, "mariadb", "--no-defaults", "-uroot", "-S", s.sock("mysql"))
	return err
}

// central returns OVN's databases and northd.
func (s *Stack) central() *ovn.Central {
	return &ovn.Central{Space: s.Space, Group: s.Group, Dir: s.Dir, Run: filepath.Join(s.Dir, "run"), Prefix: s.Prefix}
}

func (s *Stack) keystone() process.Program {
	return process.Program{
		Name:  s.name("keystone"),
		Argv:  s.gunicorn("keystone_wsgi:application", KeystonePort),
		Env:   environment("OS_KEYSTONE_CONFIG_DIR="+s.conf(""), "OS_KEYSTONE_CONFIG_FILES=keystone.conf"),
		Ready: s.answers(KeystonePort, "/v3"),
	}
}

// gunicorn starts one worker only: Keystone's cache is in its memory.
func (s *Stack) gunicorn(app string, port int) []string {
	return s.alone(python, "-m", "gunicorn", "--workers", "1", "--threads", "4", "--timeout", "120", "--chdir", s.conf(""),
		"-b", "0.0.0.0:"+strconv.Itoa(port), app)
}

func (s *Stack) neutron() process.Program {
	// python3-neutron has no /usr/bin/neutron-server: another package has it, with an init script.
	const run = `import sys; sys.argv[0]="neutron-server"; from neutron.cmd.eventlet.server import main; main()`
	return process.Program{
		Name:  s.name("neutron"),
		Argv:  s.alone(python, "-c", run, "--config-file", s.conf("neutron.conf")),
		Env:   environment(),
		Ready: s.answers(NeutronPort, "/"),
	}
}

func (s *Stack) octaviaAgent() process.Program {
	return process.Program{
		Name: s.name("octavia-driver-agent"),
		Argv: s.alone("octavia-driver-agent", "--config-file", s.conf("octavia.conf"), "--log-file", filepath.Join(s.Dir, "log", "octavia-agent.log")),
		Env:  environment(),
		// octavia-lib has fixed paths, in the namespace's own /run.
		Ready: func(ctx context.Context) error {
			_, err := s.Group.Run(ctx, "", s.Space.Enter("test", "-S", "/run/octavia/status.sock")...)
			return err
		},
	}
}

func (s *Stack) octavia() process.Program {
	return process.Program{
		Name:  s.name("octavia"),
		Argv:  s.gunicorn("octavia_wsgi:application", OctaviaPort),
		Env:   environment(),
		Ready: s.answers(OctaviaPort, "/"),
	}
}

// answers returns a function that sends a request to an API from inside the namespace.
func (s *Stack) answers(port uint16, path string) func(context.Context) error {
	client := &http.Client{Timeout: 10 * time.Second, Transport: &http.Transport{DisableKeepAlives: true, DialContext: s.dial}}
	return func(ctx context.Context) error {
		req, err := http.NewRequestWithContext(ctx, http.MethodGet, fmt.Sprintf("http://127.0.0.1:%d%s", port, path), nil)
		if err != nil {
			return fmt.Errorf("ask port %d: %w", port, err)
		}
		res, err := client.Do(req)
		if err != nil {
			return fmt.Errorf("ask port %d: %w", port, err)
		}
		_ = res.Body.Close()
		if res.StatusCode >= http.StatusBadRequest {
			return fmt.Errorf("port %d answers %s", port, res.Status) //nolint:err113 // read by a person only
		}
		return nil
	}
}
