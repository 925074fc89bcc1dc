package openstack

import (
	"context"
	"fmt"
	"net/http"
	"path/filepath"
	"strconv"
	"time"

	"weft.dev/weft/lab/process"
)

// python is Debian's python3: another one in PATH would lack the packages' modules.
const python = "/usr/bin/python3"

// environment keeps Python from writing into its packages' directories.
func environment(more ...string) []string {
	return append([]string{"PYTHONDONTWRITEBYTECODE=1", "PYTHONUNBUFFERED=1"}, more...)
}

// apis describes the programs of the three APIs, and Octavia's agent.
type apis struct{ place }

func (a apis) keystone() process.Program {
	return process.Program{
		Name:  a.name("keystone"),
		Argv:  a.gunicorn("keystone", KeystonePort),
		Env:   environment("OS_KEYSTONE_CONFIG_DIR="+a.conf(""), "OS_KEYSTONE_CONFIG_FILES=keystone.conf"),
		Ready: a.answers(KeystonePort, "/v3"),
	}
}

// gunicorn serves an API. It starts one worker only: Keystone's cache is in its memory. The requests are in a log of their own; Neutron's own
// log has those to Neutron.
func (a apis) gunicorn(name string, port int) []string {
	return a.alone(python, "-m", "gunicorn", "--workers", "1", "--threads", "4", "--timeout", "120", "--chdir", a.conf(""),
		"--access-logfile", filepath.Join(a.dir, "log", name+"-requests.log"), "-b", "0.0.0.0:"+strconv.Itoa(port), name+"_wsgi:application")
}

func (a apis) neutron() process.Program {
	// python3-neutron has no /usr/bin/neutron-server: another package has it, with an init script.
	const run = `import sys; sys.argv[0]="neutron-server"; from neutron.cmd.eventlet.server import main; main()`
	return process.Program{
		Name:  a.name("neutron"),
		Argv:  a.alone(python, "-c", run, "--config-file", a.conf("neutron.conf")),
		Env:   environment(),
		Ready: a.answers(NeutronPort, "/"),
	}
}

func (a apis) octaviaAgent() process.Program {
	return process.Program{
		Name: a.name("octavia-driver-agent"),
		Argv: a.alone("octavia-driver-agent", "--config-file", a.conf("octavia.conf"), "--log-file", filepath.Join(a.dir, "log", "octavia-agent.log")),
		Env:  environment(),
		// octavia-lib has fixed paths, in the namespace's own /run.
		Ready: func(ctx context.Context) error {
			_, err := a.group.Run(ctx, "", a.space.Enter("test", "-S", "/run/octavia/status.sock")...)
			return err
		},
	}
}

func (a apis) octavia() process.Program {
	return process.Program{
		Name:  a.name("octavia"),
		Argv:  a.gunicorn("octavia", OctaviaPort),
		Env:   environment(),
		Ready: a.answers(OctaviaPort, "/"),
	}
}

// answers returns a function that sends a request to an API from inside the namespace.
func (a apis) answers(port uint16, path string) func(context.Context) error {
	client := &http.Client{Timeout: 10 * time.Second, Transport: &http.Transport{DisableKeepAlives: true, DialContext: a.dial}}
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
