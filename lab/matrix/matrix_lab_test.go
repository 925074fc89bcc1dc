//go:build lab

package matrix

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"weft.dev/weft/lab"
	"weft.dev/weft/lab/machine"
	"weft.dev/weft/lab/plan"
	"weft.dev/weft/lab/programs"
	"weft.dev/weft/test/labs"
)

// limit is the time limit of each test, with Kubernetes' programs built.
const limit = 8 * time.Minute

// bring starts a lab without kubelets for a test.
func bring(ctx context.Context, t *testing.T, nodes int) *lab.Cluster {
	t.Helper()
	bin, err := programs.Folder(ctx, "../..", t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	cfg := lab.Config{Name: labs.Name("m"), Nodes: nodes, Runtime: plan.RuntimeCNI, WeftBin: bin}
	before := list(t, cfg.Name)
	t.Cleanup(func() {
		if diff := cmp.Diff(before, list(t, cfg.Name)); diff != "" {
			t.Errorf("after down the machine is not as before:\n%s", diff)
		}
	})
	return labs.Up(ctx, t, cfg)
}

func show(t *testing.T, r *Report) {
	t.Helper()
	var b bytes.Buffer
	if err := r.Table(&b); err != nil {
		t.Fatal(err)
	}
	t.Log("\n" + b.String())
}

// Every path works with the right address and no trick works, on three nodes. A run leaves no pod behind, so that the next run has the
// same start. Errors that are made on purpose are found.
func TestMatrixWithoutKubelets(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), limit)
	defer cancel()
	c := bring(ctx, t, 3)
	followCNI(ctx, t, c)
	for range 2 {
		r, err := Run(ctx, c, Options{})
		if err != nil {
			t.Fatal(err)
		}
		show(t, r)
		if want := 1 + 6*3; !r.AsItMust || len(r.Ways) != want || len(r.Tricks) != len(tricks) {
			t.Errorf("the matrix is not as it must be: %d ways, want %d", len(r.Ways), want)
		}
		left, err := c.Pods(ctx)
		if err != nil || len(left) > 0 {
			t.Errorf("%d pods are left: %v", len(left), err)
		}
	}
	t.Run("finds what is wrong", func(t *testing.T) { findsWhatIsWrong(ctx, t, c) })
}

// findsWhatIsWrong: the matrix finds errors: a switch that passes spoofed packets, and a broken path. Otherwise "as it must be" would prove
// nothing. The lab stays damaged.
func findsWhatIsWrong(ctx context.Context, t *testing.T, c *lab.Cluster) {
	t.Helper()
	s, err := openScene(ctx, c, Options{}.withDefaults())
	if err != nil {
		t.Fatal(err)
	}
	resume := stopAgents(ctx, t, c) // they would repair everything
	t.Cleanup(func() {
		resume()
		if err := s.close(context.WithoutCancel(ctx)); err != nil {
			t.Error(err)
		}
	})
	run(ctx, t, c.Node(1).Enter("ovs-ofctl", "-O", "OpenFlow15", "add-flow", "br0", "table=20,priority=65000,ip,actions=load:0->NXM_NX_REG0[],goto_table:21"))
	run(ctx, t, c.Node(1).Enter("ovs-ofctl", "-O", "OpenFlow15", "add-flow", "br0", "table=20,priority=65000,arp,actions=load:0->NXM_NX_REG0[],goto_table:30"))
	// Outside loses the route back to the second node.
	run(ctx, t, []string{"nsenter", "--net=" + c.Outside.Netns, "ip", "route", "add", "blackhole", netip.PrefixFrom(c.Node(2).IP, 32).String()})

	r, err := s.measure(ctx, Options{Exchanges: 3})
	if err != nil {
		t.Fatal(err)
	}
	show(t, r)
	if r.AsItMust {
		t.Error("the matrix is as it must be, with the switch open and a way closed")
	}
	for _, w := range r.Ways {
		if closed := w.To.kind == outside && w.From.Node == "n2"; w.AsItMust == closed {
			t.Errorf("%s, from %s: as it must be: %t", w.Kind, w.From, w.AsItMust)
		}
	}
	for _, trick := range r.Tricks {
		ip, arp := strings.Contains(trick.Kind, "IP address"), strings.Contains(trick.Kind, "ARP")
		if (ip || arp) && (trick.AsItMust || trick.Arrived == 0 || len(trick.Examples) == 0) {
			t.Errorf("%s: not noticed: %+v", trick.Kind, trick)
		}
	}
}

// stopAgents stops the agents, and returns the function that continues them.
func stopAgents(ctx context.Context, t *testing.T, c *lab.Cluster) func() {
	t.Helper()
	programs, err := c.Programs(ctx)
	if err != nil {
		t.Fatal(err)
	}
	var pids []int
	for _, p := range programs {
		if strings.HasSuffix(p.Name, "/weft-agent") {
			pids = append(pids, p.Pid)
		}
	}
	if len(pids) != len(c.Nodes()) {
		t.Fatalf("%d agents on %d nodes", len(pids), len(c.Nodes()))
	}
	signal := func(s syscall.Signal) {
		for _, pid := range pids {
			if err := unix.Kill(pid, s); err != nil {
				t.Errorf("signal %s to the agent: %v", s, err)
			}
		}
	}
	signal(unix.SIGSTOP)
	return sync.OnceFunc(func() { signal(unix.SIGCONT) })
}

func run(ctx context.Context, t *testing.T, argv []string) {
	t.Helper()
	if out, err := exec.CommandContext(ctx, argv[0], argv[1:]...).CombinedOutput(); err != nil {
		t.Fatalf("%s: %v\n%s", strings.Join(argv, " "), err, out)
	}
}

// The quick start as users run it: interrupted in the middle, started again, and started while it runs; then removed, after which the
// machine is as before.
func TestQuickstart(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), 2*limit)
	defer cancel()
	own := labs.Name("m")
	script, err := filepath.Abs("../../build/quickstart")
	if err != nil {
		t.Fatal(err)
	}
	before := list(t, own)
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
		defer cancel()
		if err := lab.Down(ctx, own, nil); err != nil {
			t.Errorf("take the lab down: %v", err)
		}
	})

	var exit *exec.ExitError
	if out, err := interrupted(ctx, script, own); !errors.As(err, &exit) {
		t.Fatalf("the quick start was not interrupted: %v\n%s", err, out)
	}
	for range 2 {
		began := time.Now()
		out, err := exec.CommandContext(ctx, script, "up", own).CombinedOutput()
		if err != nil {
			t.Fatalf("quick start: %v\n%s", err, out)
		}
		t.Logf("quick start in %s:\n%s", time.Since(began).Round(100*time.Millisecond), out)
	}
	c, err := lab.Open(ctx, own)
	if err != nil {
		t.Fatal(err)
	}
	r, err := Run(ctx, c, Options{})
	if err != nil {
		t.Fatal(err)
	}
	// One pod on each node and one more: each node is in every row, and one of them has a neighbour. The additional pod has a Service. Each
	// node's first pod uses it, by its address and by its name, and so does the additional pod itself. Each node has a host port.
	if want := 1 + 6*2 + 2*2 + 1 + 2; !r.AsItMust || len(r.Ways) != want || len(r.Tricks) != len(tricks) {
		show(t, r)
		t.Errorf("the matrix is not as it must be: %d ways, want %d", len(r.Ways), want)
	}
	for _, kind := range []string{"pod to Service, endpoint here", "pod to Service, endpoint elsewhere", "pod to itself by its Service", "pod to Service by name"} {
		if !slices.ContainsFunc(r.Ways, func(w Way) bool { return w.Kind == kind }) {
			t.Errorf("there is no row %q", kind)
		}
	}
	// Two projects of three and two pods: policies deny some or all paths between them, and allow some.
	may := map[[2]bool]int{}
	for i := range r.Judged {
		may[[2]bool{r.Judged[i].HTTP.Must, r.Judged[i].Ping.Must}]++
	}
	if want := (map[[2]bool]int{{true, true}: 12, {true, false}: 2, {false, false}: 6}); !maps.Equal(may, want) {
		t.Errorf("by policies (HTTP, ICMP) may reach each other: %v, want %v", may, want)
	}
	followQuickstart(ctx, t, own)
	began := time.Now()
	if out, err := exec.CommandContext(ctx, script, "down", own).CombinedOutput(); err != nil {
		t.Fatalf("down: %v\n%s", err, out)
	}
	t.Logf("down in %s", time.Since(began).Round(100*time.Millisecond))
	if diff := cmp.Diff(before, list(t, own)); diff != "" {
		t.Errorf("after down the machine is not as before:\n%s", diff)
	}
}

// interrupted starts the quick start as a terminal does, in its own process group, and interrupts the whole group as soon as the lab is
// starting.
func interrupted(ctx context.Context, script, own string) (string, error) {
	var out bytes.Buffer
	cmd := exec.CommandContext(ctx, script, "up", own)
	cmd.Stdout, cmd.Stderr = &out, &out
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	if err := cmd.Start(); err != nil {
		return "", err
	}
	ended := make(chan error, 1)
	go func() { ended <- cmd.Wait() }()
	for {
		if st, err := lab.Inspect(ctx, own); err == nil && len(st.Programs) > 5 {
			killed := unix.Kill(-cmd.Process.Pid, unix.SIGINT)
			err := <-ended
			if killed != nil {
				return out.String(), fmt.Errorf("interrupt the quick start: %w", killed)
			}
			return out.String(), err
		}
		select {
		case err := <-ended:
			return out.String(), errors.Join(errors.New("it ended before it could be interrupted"), err)
		case <-time.After(20 * time.Millisecond):
		}
	}
}

// listing lists the machine's state without other labs, which may run at the same time.
type listing struct{ Namespaces, Links, Mounts, Cgroups, Processes, Files []string }

func list(t *testing.T, own string) listing {
	t.Helper()
	var l listing
	mine := func(s string) bool {
		return strings.Contains(s, "wl-"+own) || strings.Contains(s, "weft-lab/"+own)
	}
	others := func(s string) bool {
		return !mine(s) && (strings.Contains(s, "wl-") || strings.Contains(s, "weft-lab/") || strings.Contains(s, "/tmp/") || strings.Contains(s, "cnitest-") || strings.HasPrefix(s, "wt"))
	}
	add := func(to *[]string, what string) {
		if !others(what) && !slices.Contains(*to, what) {
			*to = append(*to, what)
		}
	}
	names, _ := filepath.Glob("/run/netns/*")
	for _, n := range names {
		add(&l.Namespaces, n)
	}
	links, err := netlink.LinkList()
	if err != nil && !errors.Is(err, netlink.ErrDumpInterrupted) {
		t.Fatal(err)
	}
	for _, x := range links {
		add(&l.Links, x.Attrs().Name)
	}
	mounts, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(mounts)) {
		add(&l.Mounts, strings.Join(strings.Fields(line)[3:5], " "))
	}
	for _, root := range cgroupRoots(string(mounts)) {
		_ = filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
			// Deeper levels change with the machine's services and sessions; a stray kubelet shows at the top.
			if err == nil && d.IsDir() && (filepath.Dir(path) == root || mine(path)) {
				add(&l.Cgroups, path)
			}
			return nil // just removed
		})
	}
	for _, f := range []string{"/run/weft-lab/" + own, "/var/lib/weft-lab/" + own} {
		if _, err := os.Lstat(f); err == nil {
			l.Files = append(l.Files, f)
		}
	}
	l.Processes = processes(mine)
	for _, list := range []*[]string{&l.Namespaces, &l.Links, &l.Mounts, &l.Cgroups} {
		slices.Sort(*list)
	}
	return l
}

// cgroupRoots lists the mount points of the cgroup hierarchies, from the lines of mountinfo.
func cgroupRoots(mounts string) []string {
	var roots []string
	for line := range strings.Lines(mounts) {
		left, right, _ := strings.Cut(line, " - ")
		if strings.HasPrefix(right, "cgroup") {
			roots = append(roots, strings.Fields(left)[4])
		}
	}
	return roots
}

// processes finds a lab's processes by cgroup, command line, environment, directory and open mount namespace: other processes of the
// machine start and end.
func processes(mine func(string) bool) []string {
	var found []string
	dirs, _ := filepath.Glob("/proc/[0-9]*")
	for _, dir := range dirs {
		var pid int
		if _, err := fmt.Sscan(filepath.Base(dir), &pid); err != nil || pid == os.Getpid() {
			continue
		}
		if s, err := machine.Stat(pid); err != nil || s.State == 'Z' {
			continue
		}
		told := ""
		for _, file := range []string{"cgroup", "cmdline", "environ", "mountinfo"} {
			raw, _ := os.ReadFile(filepath.Join(dir, file))
			told += " " + string(raw)
		}
		if cwd, err := os.Readlink(filepath.Join(dir, "cwd")); err == nil {
			told += " " + cwd
		}
		if mine(told) {
			cmdline, _ := os.ReadFile(filepath.Join(dir, "cmdline"))
			found = append(found, filepath.Base(dir)+" "+strings.ReplaceAll(string(cmdline), "\x00", " "))
		}
	}
	return found
}
