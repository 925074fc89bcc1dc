// Package ovntest runs OVN's programs for tests: the two databases and northd, and chassis in separate namespaces.
package ovntest

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/containernetworking/plugins/pkg/ns"

	"weft.dev/weft/internal/child"
	"weft.dev/weft/internal/openflow/ovstest"
)

const (
	schemas  = "/usr/share/ovn"
	deadline = 60 * time.Second * ovstest.Slowness
)

// The programs of Central, as arguments of Start and Stop.
const (
	Northbound = "nb"
	Southbound = "sb"
	Northd     = "northd"
)

// Central is a pair of databases and northd. Its sockets are files.
type Central struct {
	// Dir holds the databases and sockets.
	Dir string
	// NetNS is the namespace in which the southbound database listens, on port 6642; nil: the test's namespace, without a port.
	NetNS ns.NetNS

	t     testing.TB
	procs map[string]*child.Process
}

// New returns a Central whose programs do not run yet.
func New(t testing.TB, netns ns.NetNS) *Central {
	t.Helper()
	dir, err := os.MkdirTemp("", "wtovn") // not t.TempDir: a unix socket's path has at most 107 bytes
	if err != nil {
		t.Fatal(err)
	}
	c := &Central{Dir: dir, NetNS: netns, t: t, procs: map[string]*child.Process{}}
	t.Cleanup(func() {
		for _, program := range []string{Northd, Southbound, Northbound} {
			c.Stop(program)
		}
		_ = os.RemoveAll(dir)
	})
	return c
}

// StartAll starts both databases and northd.
func StartAll(t testing.TB, netns ns.NetNS) *Central {
	t.Helper()
	c := New(t, netns)
	for _, program := range []string{Northbound, Southbound, Northd} {
		c.Start(program)
	}
	return c
}

// NB is the endpoint of the northbound database.
func (c *Central) NB() string { return "unix:" + filepath.Join(c.Dir, "nb.sock") }

// SB is the endpoint of the southbound database.
func (c *Central) SB() string { return "unix:" + filepath.Join(c.Dir, "sb.sock") }

// Start starts one of the programs, and creates its database if there is none.
func (c *Central) Start(program string) {
	c.t.Helper()
	at := func(name string) string { return filepath.Join(c.Dir, name) }
	if program == Northd {
		c.run(program, "ovn-northd", "--ovnnb-db="+c.NB(), "--ovnsb-db="+c.SB(), "--unixctl="+at("northd.ctl"), "--log-file="+at("northd.log"))
		return
	}
	db := at(program + ".db")
	if _, err := os.Stat(db); errors.Is(err, fs.ErrNotExist) {
		Run(c.t, nil, "ovsdb-tool", "create", db, filepath.Join(schemas, "ovn-"+program+".ovsschema"))
	}
	args := []string{"ovsdb-server", db, "--remote=punix:" + at(program+".sock"), "--unixctl=" + at(program+".ctl"), "--log-file=" + at(program+".log")}
	if program == Southbound && c.NetNS != nil {
		args = append(args, "--remote=ptcp:6642:0.0.0.0")
	}
	c.run(program, args...)
	Eventually(c.t, "ovsdb-server listens", func() bool {
		_, err := os.Stat(at(program + ".sock"))
		return err == nil
	})
}

// Wipe removes a database whose program does not run.
func (c *Central) Wipe(program string) {
	c.t.Helper()
	if err := os.Remove(filepath.Join(c.Dir, program+".db")); err != nil {
		c.t.Fatal(err)
	}
}

// Stop kills a program, without a clean shutdown.
func (c *Central) Stop(program string) {
	if p := c.procs[program]; p != nil {
		p.Kill()
		delete(c.procs, program)
		_ = os.Remove(filepath.Join(c.Dir, program+".sock"))
	}
}

func (c *Central) run(program string, args ...string) {
	c.t.Helper()
	c.procs[program] = launch(c.t, c.NetNS, c.Dir, args...)
}

// Nbctl runs ovn-nbctl and returns what it prints.
func (c *Central) Nbctl(args ...string) string {
	c.t.Helper()
	return Run(c.t, nil, "ovn-nbctl", append([]string{"--db=" + c.NB()}, args...)...)
}

// Sbctl runs ovn-sbctl and returns what it prints.
func (c *Central) Sbctl(args ...string) string {
	c.t.Helper()
	return Run(c.t, nil, "ovn-sbctl", append([]string{"--db=" + c.SB()}, args...)...)
}

// launch starts a program in a namespace; nil: the test's own.
func launch(t testing.TB, netns ns.NetNS, rundir string, args ...string) *child.Process {
	t.Helper()
	cmd := exec.Command(args[0], args[1:]...)
	cmd.Env = append(os.Environ(), "OVS_RUNDIR="+rundir, "OVN_RUNDIR="+rundir)
	path := ""
	if netns != nil {
		path = procPath(netns) // its own path may be of a handle that is closed
	}
	p, err := child.Start(cmd, path)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// Run runs a program in a namespace (nil: the test's own) and returns what it prints, without the last line break.
func Run(t testing.TB, netns ns.NetNS, program string, args ...string) string {
	t.Helper()
	out, err := Try(netns, program, args...)
	if err != nil {
		t.Fatalf("%s %s: %v\n%s", program, strings.Join(args, " "), err, out)
	}
	return out
}

// Try is Run for a program that may fail.
func Try(netns ns.NetNS, program string, args ...string) (string, error) {
	cmd := exec.Command(program, args...)
	var out []byte
	run := func(ns.NetNS) (err error) {
		out, err = cmd.CombinedOutput()
		return err
	}
	var err error
	if netns == nil {
		err = run(nil)
	} else {
		err = netns.Do(run)
	}
	if err != nil {
		err = fmt.Errorf("%s: %w", program, err)
	}
	return strings.TrimSuffix(string(out), "\n"), err
}

// Eventually waits until the condition holds, and fails the test on a timeout.
func Eventually(t testing.TB, what string, holds func() bool) {
	t.Helper()
	ticker := time.NewTicker(20 * time.Millisecond)
	defer ticker.Stop()
	for end := time.Now().Add(deadline); ; <-ticker.C {
		if holds() {
			return
		}
		if time.Now().After(end) {
			t.Fatalf("not in time: %s", what)
		}
	}
}
