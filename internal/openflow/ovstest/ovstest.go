// Package ovstest starts a real Open vSwitch for tests: an ovsdb-server and an ovs-vswitchd with a run directory,
// a database and pid files of their own, stopped by pid when the test ends. Switches of several tests run side by side.
//
// It is for tests behind the build tag `real`: it fails a test, and never skips it, when the programs are missing.
package ovstest

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/containernetworking/plugins/pkg/ns"
	"github.com/vishvananda/netns"
)

// schemaPath is where Debian's openvswitch-common keeps the database's schema.
const schemaPath = "/usr/share/openvswitch/vswitch.ovsschema"

// waitFor is the time limit of every wait for a condition. It is generous, because test machines are busy.
const waitFor = 30 * time.Second * Slowness

// Switch is a running Open vSwitch.
type Switch struct {
	// RunDir holds sockets, pid files, logs and the database.
	RunDir string
	// DBSock is the unix socket of the OVSDB server.
	DBSock string
	// CtlSock is the unix socket for ovs-appctl's commands to ovs-vswitchd.
	CtlSock string
	// NetNS is the network namespace that the switch runs in; nil: the test's own.
	NetNS ns.NetNS

	t testing.TB
}

// Start starts a switch in a network namespace of its own (NetNS), which needs root. The devices of its bridges are deleted with the
// namespace. Its sockets are files, which the test can reach from its own namespace.
func Start(t testing.TB) *Switch {
	t.Helper()
	return StartIn(t, NewNetNS(t))
}

// NewNetNS makes a network namespace without a name. It is deleted when the test ends.
func NewNetNS(t testing.TB) ns.NetNS {
	t.Helper()
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	home, err := netns.Get()
	if err != nil {
		t.Fatalf("find the test's network namespace: %v", err)
	}
	defer func() { _ = home.Close() }()
	fresh, err := netns.New()
	if err != nil {
		t.Fatalf("make a network namespace (it needs root): %v", err)
	}
	defer func() { _ = fresh.Close() }()
	if err := netns.Set(home); err != nil {
		t.Fatalf("go back to the test's network namespace: %v", err)
	}
	space, err := ns.GetNS(fmt.Sprintf("/proc/self/fd/%d", int(fresh)))
	if err != nil {
		t.Fatalf("open a network namespace: %v", err)
	}
	t.Cleanup(func() { _ = space.Close() })
	return space
}

// StartIn starts a switch in a network namespace, which the caller keeps open until the test has ended. nil: the test's own namespace,
// where devices of its bridges remain.
func StartIn(t testing.TB, netns ns.NetNS) *Switch {
	t.Helper()
	// Not t.TempDir: its path includes the test's name, and a unix socket's path has room for 107 bytes only.
	dir, err := os.MkdirTemp("", "wtovs")
	if err != nil {
		t.Fatalf("make the switch's run directory: %v", err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	s := &Switch{RunDir: dir, DBSock: filepath.Join(dir, "db.sock"), CtlSock: filepath.Join(dir, "vswitchd.ctl"), NetNS: netns, t: t}
	s.StartDB()
	s.StartVSwitchd()
	return s
}

// StartDB starts ovsdb-server on the database in the run directory, and makes the database if it is missing.
func (s *Switch) StartDB() {
	s.t.Helper()
	db := filepath.Join(s.RunDir, "conf.db")
	if _, err := os.Stat(db); errors.Is(err, fs.ErrNotExist) {
		s.run("ovsdb-tool", "create", db, schemaPath)
	}
	s.daemon("ovsdb-server", "--remote=punix:"+s.DBSock, "--unixctl="+filepath.Join(s.RunDir, "ovsdb.ctl"), db)
	s.waitSocket(s.DBSock)
	s.VSCtl("--no-wait", "init")
}

// StartVSwitchd starts ovs-vswitchd and waits until it has read its database.
func (s *Switch) StartVSwitchd() {
	s.t.Helper()
	s.daemon("ovs-vswitchd", "--unixctl="+s.CtlSock, "unix:"+s.DBSock)
	s.waitSocket(s.CtlSock)
}

// Stop ends one of the programs, by its pid: "ovs-vswitchd" or "ovsdb-server". With kill, the program cannot clean up.
func (s *Switch) Stop(program string, kill bool) {
	s.t.Helper()
	sig := syscall.SIGTERM
	if kill {
		sig = syscall.SIGKILL
	}
	s.stop(program, sig)
}

// Mgmt returns the path of a bridge's OpenFlow socket.
func (s *Switch) Mgmt(bridge string) string { return filepath.Join(s.RunDir, bridge+".mgmt") }

// AddBridge adds a bridge on the userspace datapath with OpenFlow 1.3 and 1.5, which drops packets that match no flow. Its name becomes
// the name of a network device: use Name to make it.
func (s *Switch) AddBridge(bridge string) {
	s.t.Helper()
	s.VSCtl("add-br", bridge, "--", "set", "bridge", bridge, "datapath_type=netdev", "fail_mode=secure",
		"protocols=OpenFlow13,OpenFlow15")
	s.waitSocket(s.Mgmt(bridge))
}

// Name returns a device name that no other test uses: "wt", letters of the run directory, suffix.
func (s *Switch) Name(suffix string) string {
	base := strings.TrimPrefix(filepath.Base(s.RunDir), "wtovs")
	return "wt" + base[max(0, len(base)-8):] + suffix
}

// VSCtl runs ovs-vsctl on the switch's database and returns what it prints.
func (s *Switch) VSCtl(args ...string) string {
	s.t.Helper()
	return s.run("ovs-vsctl", append([]string{"--db=unix:" + s.DBSock, fmt.Sprintf("--timeout=%d", waitFor/time.Second)}, args...)...)
}

// DumpFlows returns the flows of a bridge as ovs-ofctl prints them, one line per flow, sorted.
func (s *Switch) DumpFlows(bridge string) []string {
	out := s.OFCtl("--no-stats", "--no-names", "dump-flows", s.Mgmt(bridge))
	var lines []string
	for line := range strings.Lines(out) {
		if line = strings.TrimSpace(line); strings.Contains(line, "actions=") {
			lines = append(lines, line)
		}
	}
	slices.Sort(lines)
	return lines
}

// OFCtl runs ovs-ofctl with OpenFlow 1.5 and returns what it prints.
func (s *Switch) OFCtl(args ...string) string {
	s.t.Helper()
	return s.run("ovs-ofctl", append([]string{"-O", "OpenFlow15"}, args...)...)
}

// AppCtl runs ovs-appctl on ovs-vswitchd and returns what it prints.
func (s *Switch) AppCtl(args ...string) string {
	s.t.Helper()
	return s.run("ovs-appctl", append([]string{"-t", s.CtlSock}, args...)...)
}

// Log returns what ovs-vswitchd logged.
func (s *Switch) Log() string {
	log, _ := os.ReadFile(filepath.Join(s.RunDir, "ovs-vswitchd.log"))
	return string(log)
}

func (s *Switch) run(program string, args ...string) string {
	s.t.Helper()
	out, err := s.command(program, args...)
	if err != nil {
		s.t.Fatalf("%s %s: %v\n%s", program, strings.Join(args, " "), err, out)
	}
	return out
}

func (s *Switch) command(program string, args ...string) (string, error) {
	cmd := exec.CommandContext(s.t.Context(), program, args...)
	cmd.Env = append(os.Environ(), "OVS_RUNDIR="+s.RunDir, "OVS_LOGDIR="+s.RunDir, "OVS_DBDIR="+s.RunDir)
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &out
	if s.NetNS == nil {
		err := cmd.Run()
		return out.String(), err
	}
	err := s.NetNS.Do(func(ns.NetNS) error { return cmd.Run() })
	return out.String(), err
}

// daemon starts a program that detaches once it is ready, and stops it when the test ends.
func (s *Switch) daemon(program string, args ...string) {
	s.t.Helper()
	pidfile := filepath.Join(s.RunDir, program+".pid")
	args = append(args, "--pidfile="+pidfile, "--log-file="+filepath.Join(s.RunDir, program+".log"), "-vconsole:off", "--detach", "--no-chdir")
	s.t.Cleanup(func() { s.stop(program, syscall.SIGTERM) })
	s.run(program, args...)
}

// PID returns the process ID of one of the programs, 0 if it does not run.
func (s *Switch) PID(program string) int {
	text, err := os.ReadFile(filepath.Join(s.RunDir, program+".pid"))
	if err != nil {
		return 0
	}
	pid, _ := strconv.Atoi(strings.TrimSpace(string(text)))
	return pid
}

func (s *Switch) stop(program string, sig syscall.Signal) {
	pid := s.PID(program)
	if pid == 0 {
		return
	}
	_ = syscall.Kill(pid, sig)
	if !holds(func() bool { return !alive(pid) }) {
		_ = syscall.Kill(pid, syscall.SIGKILL)
		s.t.Errorf("%s (pid %d) did not end in %s", program, pid, waitFor)
		return
	}
	_ = os.Remove(filepath.Join(s.RunDir, program+".pid"))
}

// alive reports whether a process runs. A zombie does not run.
func alive(pid int) bool {
	stat, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/stat")
	if err != nil {
		return false
	}
	_, rest, _ := strings.Cut(string(stat), ") ")
	return !strings.HasPrefix(rest, "Z")
}

func (s *Switch) waitSocket(path string) {
	s.t.Helper()
	there := holds(func() bool {
		info, err := os.Stat(path)
		return err == nil && info.Mode()&fs.ModeSocket != 0
	})
	if !there {
		log := s.Log()
		s.t.Fatalf("no socket %s after %s; ovs-vswitchd says\n%s", path, waitFor, log[max(0, len(log)-2000):])
	}
}

// holds waits for a condition, and reports whether it became true in time.
func holds(condition func() bool) bool {
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for deadline := time.Now().Add(waitFor); !condition(); <-tick.C {
		if time.Now().After(deadline) {
			return false
		}
	}
	return true
}
