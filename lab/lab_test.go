//go:build lab

package lab_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/vishvananda/netlink"

	"weft.dev/weft/internal/testwait"
	"weft.dev/weft/lab"
	"weft.dev/weft/lab/machine"
	"weft.dev/weft/lab/plan"
	"weft.dev/weft/lab/report"
	"weft.dev/weft/test/labs"
)

// limit is the time limit of every test of a lab whose programs are built; a first build of Kubernetes has its own limit.
const limit = 5 * time.Minute

// weftBin is the directory with Weft's programs. TestMain sets it.
var weftBin string //nolint:gochecknoglobals // built once for all tests

func TestMain(m *testing.M) {
	os.Exit(labs.Run(m, "..", &weftBin))
}

func config(t *testing.T, runtime plan.Runtime) lab.Config {
	t.Helper()
	return lab.Config{Name: labs.Name("t"), Nodes: 2, Runtime: runtime, WeftBin: weftBin}
}

// listing lists what labs leave on a machine: everything with a lab's name, and the settings of the whole machine.
type listing struct {
	Namespaces, Links, Mounts, Cgroups, Processes, Files []string
	// Shared is what belongs to all labs; nil while other labs run.
	Shared *shared
}

// shared is what the labs of a machine have in common.
type shared struct {
	Sysctls map[string]string
	Files   []string
}

// left returns what a lab left; shared settings only if no other lab ran.
func left(before, after listing) string {
	if before.Shared == nil || after.Shared == nil {
		before.Shared, after.Shared = nil, nil
	}
	return cmp.Diff(before, after)
}

func list(t *testing.T, name string) listing {
	t.Helper()
	mark := "wl-" + name
	var l listing
	names, _ := filepath.Glob("/run/netns/" + mark + "*")
	l.Namespaces = names
	links, err := netlink.LinkList()
	if err != nil && !errors.Is(err, netlink.ErrDumpInterrupted) {
		t.Fatal(err)
	}
	for _, x := range links {
		if strings.HasPrefix(x.Attrs().Name, mark) {
			l.Links = append(l.Links, x.Attrs().Name)
		}
	}
	mounts, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(mounts)) {
		if strings.Contains(line, "weft-lab/"+name) || strings.Contains(line, mark) {
			l.Mounts = append(l.Mounts, line)
		}
	}
	l.Cgroups, _ = filepath.Glob("/sys/fs/cgroup/*/" + mark)
	l.Processes = processes(name)
	for _, f := range []string{"/run/weft-lab/" + name, "/var/lib/weft-lab/" + name} {
		if _, err := os.Lstat(f); err == nil {
			l.Files = append(l.Files, f)
		}
	}
	machineWide(t, &l)
	return l
}

// machineWide adds the shared settings, unless there is another lab: then they belong to that.
func machineWide(t *testing.T, l *listing) {
	t.Helper()
	if labs, err := lab.List(); err != nil || len(labs) > 0 {
		return
	}
	l.Shared = &shared{Sysctls: map[string]string{}}
	for _, s := range []string{"net/core/rmem_default", "fs/inotify/max_user_instances", "vm/overcommit_memory", "kernel/panic", "kernel/panic_on_oops"} {
		raw, err := os.ReadFile("/proc/sys/" + s)
		if err != nil {
			t.Fatal(err)
		}
		l.Shared.Sysctls[s] = strings.TrimSpace(string(raw))
	}
	for _, d := range []string{"/run/weft-lab", "/var/lib/weft-lab", "/etc/cni", "/opt/cni", "/var/lib/kubelet", "/var/lib/weft", "/var/log/pods"} {
		if _, err := os.Lstat(d); err == nil {
			l.Shared.Files = append(l.Shared.Files, d)
		}
	}
}

// processes finds a lab's processes by its cgroup, by its directories on a command line, and by its namespaces' names.
func processes(name string) []string {
	var found []string
	entries, _ := os.ReadDir("/proc")
	for _, e := range entries {
		pid, err := strconv.Atoi(e.Name())
		if err != nil {
			continue
		}
		s, err := machine.Stat(pid)
		if err != nil || s.State == 'Z' {
			continue
		}
		cmdline, _ := os.ReadFile("/proc/" + e.Name() + "/cmdline")
		group, _ := os.ReadFile("/proc/" + e.Name() + "/cgroup")
		if bytes.Contains(group, []byte("/wl-"+name)) || bytes.Contains(cmdline, []byte("weft-lab/"+name)) {
			found = append(found, e.Name()+" "+strings.ReplaceAll(string(cmdline), "\x00", " "))
		}
	}
	return found
}

func command(ctx context.Context, t *testing.T, argv []string) string {
	t.Helper()
	out, err := exec.CommandContext(ctx, argv[0], argv[1:]...).CombinedOutput()
	if err != nil {
		t.Fatalf("%s: %v\n%s", strings.Join(argv, " "), err, out)
	}
	return strings.TrimSpace(string(out))
}

// switchComesBack kills a node's switch, which is started again with the node's address.
func switchComesBack(ctx context.Context, t *testing.T, c *lab.Cluster) {
	t.Helper()
	st, err := lab.Inspect(ctx, c.Name())
	if err != nil {
		t.Fatal(err)
	}
	pid := pidOf(t, st, "n1/ovs-vswitchd")
	if err := syscall.Kill(pid, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	testwait.Until(t, "the switch runs again", func() bool {
		st, err := lab.Inspect(ctx, c.Name())
		if err != nil {
			return false
		}
		now := pidOf(t, st, "n1/ovs-vswitchd")
		return now != 0 && now != pid
	})
	testwait.Until(t, "n2 reaches n1", func() bool {
		argv := c.Node(2).Enter("ping", "-c", "1", "-W", "1", c.Node(1).IP.String())
		return exec.CommandContext(ctx, argv[0], argv[1:]...).Run() == nil
	})
}

func pidOf(t *testing.T, st report.Status, program string) int {
	t.Helper()
	for _, p := range st.Programs {
		if p.Name == program {
			return p.Pid
		}
	}
	t.Fatalf("lab %s runs no %s", st.Name, program)
	return 0
}

// killSupervisor kills a lab's supervisor, and waits until the lab is dead; its programs still run.
func killSupervisor(ctx context.Context, t *testing.T, name string) {
	t.Helper()
	st, err := lab.Inspect(ctx, name)
	if err != nil {
		t.Fatal(err)
	}
	if err := syscall.Kill(st.Supervisor, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	dies(ctx, t, name)
}

// dies waits until a lab is dead.
func dies(ctx context.Context, t *testing.T, name string) {
	t.Helper()
	testwait.Until(t, "the lab is dead", func() bool {
		st, err := lab.Inspect(ctx, name)
		return err == nil && st.Phase == report.Dead
	})
	if len(processes(name)) == 0 {
		t.Error("the kill left no process: the test shows nothing")
	}
}

// downLeavesNothing takes a lab down, after which the machine is as before.
func downLeavesNothing(ctx context.Context, t *testing.T, name string, before listing) {
	t.Helper()
	began := time.Now()
	if err := lab.Down(ctx, name, nil); err != nil {
		t.Fatal(err)
	}
	t.Logf("down took %s", time.Since(began).Round(time.Millisecond))
	if diff := left(before, list(t, name)); diff != "" {
		t.Errorf("down left something:\n%s", diff)
	}
}

// A supervisor that is killed while its lab comes up leaves everything running; down removes it.
func TestKilledSupervisorOfALabThatComesUp(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), limit)
	defer cancel()
	cfg := config(t, plan.RuntimeCNI)
	cfg.NoWeft = true
	before := list(t, cfg.Name)
	_, _ = lab.Up(ctx, cfg, func(e report.Event) { // it fails
		if e.State == report.Begin && strings.HasPrefix(e.Step, "etcd") {
			if st, err := lab.Inspect(ctx, cfg.Name); err == nil && st.Supervisor > 0 {
				_ = syscall.Kill(st.Supervisor, syscall.SIGKILL)
			}
		}
	})
	dies(ctx, t, cfg.Name)
	downLeavesNothing(ctx, t, cfg.Name, before)
}

// A switch that is killed is started again with the node's address. A killed supervisor leaves everything running; the next up, or the next down,
// removes it. Up of a lab that is up changes nothing, and with other settings it is refused.
func TestKilledPrograms(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), limit)
	defer cancel()
	cfg := config(t, plan.RuntimeCNI)
	cfg.NoWeft = true
	before := list(t, cfg.Name)
	switchComesBack(ctx, t, labs.Up(ctx, t, cfg))
	killSupervisor(ctx, t, cfg.Name)
	if _, err := lab.Up(ctx, cfg, nil); err != nil {
		t.Fatal(err)
	}
	if _, err := lab.Up(ctx, cfg, nil); err != nil {
		t.Errorf("up of a lab that is up: %v", err)
	}
	other := cfg
	other.Nodes = 3
	if _, err := lab.Up(ctx, other, nil); !errors.Is(err, lab.ErrOther) {
		t.Errorf("up with other settings: %v, want ErrOther", err)
	}
	killSupervisor(ctx, t, cfg.Name)
	downLeavesNothing(ctx, t, cfg.Name, before)
}

// Two labs have the same addresses, and neither sees the other. Down of the first changes nothing of the second, whose pods are attached, checked
// and detached; its own down leaves nothing on the machine.
func TestTwoLabsSideBySide(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), limit)
	defer cancel()
	one, two := config(t, plan.RuntimeCNI), config(t, plan.RuntimeCNI)
	before := list(t, two.Name)
	a, b := labs.Up(ctx, t, one), labs.Up(ctx, t, two)
	var last *lab.Pod // the second lab's, in the end
	for _, c := range []*lab.Cluster{a, b} {
		p, err := c.AddPod(ctx, lab.PodSpec{Name: "p", Node: "n1"})
		if err != nil {
			t.Fatal(err)
		}
		q, err := c.AddPod(ctx, lab.PodSpec{Name: "q", Node: "n2"})
		if err != nil {
			t.Fatal(err)
		}
		t.Logf("ADD took %s and %s", p.Took, q.Took)
		command(ctx, t, p.Enter("ping", "-c", "3", "-i", "0.2", "-W", "3", q.IPs[0].String()))
		last = p
	}
	if err := a.Down(ctx); err != nil {
		t.Fatal(err)
	}
	command(ctx, t, b.Node(1).Enter("ping", "-c", "1", "-W", "2", b.Node(2).IP.String()))
	if raw, err := os.ReadFile("/proc/sys/net/core/rmem_default"); err != nil || strings.TrimSpace(string(raw)) != "8388608" {
		t.Errorf("the first lab's end took the second's sysctl: %s %v", raw, err)
	}
	pods, err := b.Pods(ctx)
	if err != nil || len(pods) != 2 {
		t.Errorf("pods of the lab that stays: %d, %v", len(pods), err)
	}
	if seen := command(ctx, t, last.Enter("curl", "-sS", "--noproxy", "*", "-m", "5", b.Outside.URL)); seen != b.Node(1).IP.String() {
		t.Errorf("outside saw the pod as %s, not as its node's %s", seen, b.Node(1).IP)
	}
	if err := last.Check(ctx); err != nil {
		t.Errorf("CHECK: %v", err)
	}
	if err := b.Node(1).NetworkStatus(ctx); err != nil {
		t.Errorf("STATUS: %v", err)
	}
	for range 2 {
		if err := b.DelPod(ctx, last); err != nil {
			t.Errorf("DEL: %v", err)
		}
	}
	downLeavesNothing(ctx, t, two.Name, before)
}

// toolsWork runs the programs of the pods' image in one of its pods: curl, the nc of OpenBSD, and dig, with which upstream's tests of conformance
// look at a network.
func toolsWork(t *testing.T, c *lab.Cluster, inPod func(args ...string) string) {
	t.Helper()
	if seen := inPod("curl", "-sS", "--max-time", "10", c.Outside.URL); seen != c.Node(1).IP.String() {
		t.Errorf("curl: outside saw the pod as %s, not as its node's %s", seen, c.Node(1).IP)
	}
	if help := inPod("sh", "-c", "/bin/nc -h 2>&1"); !strings.Contains(help, "OpenBSD netcat") {
		t.Errorf("nc is not that of OpenBSD: %s", help)
	}
	inPod("nc", "-z", "-w", "10", "172.30.0.1", "443")
	for _, transport := range []string{"+notcp", "+tcp"} {
		said := inPod("dig", "+short", "+time=5", "+tries=3", transport, "kubernetes.default.svc.cluster.local")
		if strings.TrimSpace(said) != "172.30.0.1" {
			t.Errorf("dig %s: %q, want the API server's address 172.30.0.1", transport, said)
		}
	}
}

func TestKubelets(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), 2*limit)
	defer cancel()
	cfg := config(t, plan.RuntimeKubelet)
	before := list(t, cfg.Name)
	c := labs.Up(ctx, t, cfg)
	kubectl := func(args ...string) string {
		return command(ctx, t, c.Kubectl(args...))
	}
	for i := range c.Nodes() {
		kubectl("run", "p"+strconv.Itoa(i+1), "--image=weft.local/busybox:1", "--image-pull-policy=Never",
			"--overrides", fmt.Sprintf(`{"spec":{"nodeName":"n%d"}}`, i+1), "--command", "--", "sh", "-c", "echo started; sleep infinity")
	}
	kubectl("wait", "--for=condition=Ready", "pod", "--all", "--timeout=240s")
	ip := kubectl("get", "pod", "p2", "-o", "jsonpath={.status.podIP}")
	kubectl("exec", "p1", "--", "ping", "-c", "3", "-W", "3", ip)
	if seen := kubectl("exec", "p1", "--", "wget", "-qO-", c.Outside.URL); seen != c.Node(1).IP.String() {
		t.Errorf("outside saw the pod as %s, not as its node's %s", seen, c.Node(1).IP)
	}
	if said := kubectl("exec", "p1", "--", "nslookup", "kubernetes.default.svc.cluster.local"); !strings.Contains(said, "172.30.0.1") {
		t.Errorf("the cluster's DNS does not tell a pod where the API server is: %s", said)
	}
	toolsWork(t, c, func(args ...string) string { return kubectl(append([]string{"exec", "p1", "--"}, args...)...) })
	if log := kubectl("logs", "p1"); !slices.Contains(strings.Fields(log), "started") {
		t.Errorf("logs: %q", log)
	}
	downLeavesNothing(ctx, t, cfg.Name, before)
}
