//go:build lab

// Package neutron tests Weft's part on OpenStack with a real OpenStack: Keystone, Neutron, OVN, Octavia, started once for
// all tests, and nodes with real switches.
package neutron

import (
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"testing"
	"time"

	"weft.dev/weft/deploy/crds"
	"weft.dev/weft/internal/apiservertest"
	"weft.dev/weft/lab/ground"
	"weft.dev/weft/lab/plan"
	"weft.dev/weft/lab/process"
	"weft.dev/weft/lab/stack/openstack"
)

// cloudFor is what the tests share.
var cloudFor struct {
	stack *openstack.Stack
	nodes []*openstack.Node
	wire  *openstack.Wire
	group *process.Group
	api   *apiservertest.Server
}

// serveFor and attachTo let an engineer run tests again and again on one OpenStack.
var (
	serveFor = flag.Duration("neutron.serve", 0, "start OpenStack, print its folder, and wait this long instead of running tests")
	attachTo = flag.String("neutron.attach", "", "use the OpenStack that another run serves from this folder")
)

func TestMain(m *testing.M) {
	if len(os.Args) == 3 && os.Args[1] == "hold" {
		fmt.Fprintln(os.Stderr, ground.RunHold(os.Args[2]))
		os.Exit(1)
	}
	flag.Parse()
	os.Exit(run(m))
}

func run(m *testing.M) int {
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Minute)
	defer cancel()
	if *attachTo != "" {
		if err := attach(*attachTo); err != nil {
			fmt.Fprintln(os.Stderr, "attach to OpenStack:", err)
			return 1
		}
		return withAPI(m)
	}
	dir, err := os.MkdirTemp("", "weft-os")
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	defer func() { _ = os.RemoveAll(dir) }()
	defer forget(filepath.Base(dir))
	group := process.NewGroup(filepath.Join(dir, "log"), filepath.Join(dir, "pid"))
	defer group.Stop(10*time.Second, func(string) bool { return true })
	cloudFor.group = group
	begin := time.Now()
	if err := bring(ctx, dir, group); err != nil {
		fmt.Fprintln(os.Stderr, "start OpenStack:", err)
		return 1
	}
	fmt.Fprintf(os.Stderr, "OpenStack with %d nodes is up after %s\n", len(cloudFor.nodes), time.Since(begin).Round(time.Millisecond))
	defer cloudFor.stack.Stop()
	if *serveFor > 0 {
		fmt.Fprintln(os.Stderr, "serving from", dir)
		waited, stop := signal.NotifyContext(context.Background(), os.Interrupt)
		defer stop()
		waited, end := context.WithTimeout(waited, *serveFor)
		defer end()
		<-waited.Done()
		return 0
	}
	return withAPI(m)
}

// forget removes the names of namespaces that have ended.
func forget(base string) {
	names, err := filepath.Glob(filepath.Join(ground.NetnsDir, base+"*"))
	if err != nil {
		return
	}
	for _, name := range names {
		_ = os.Remove(name)
	}
}

// withAPI runs the tests beside a real API server.
func withAPI(m *testing.M) int {
	return apiservertest.Main(m, func(s *apiservertest.Server) error {
		cloudFor.api = s
		all, err := crds.All()
		if err != nil {
			return err
		}
		neutron, err := crds.Neutron()
		if err != nil {
			return err
		}
		return s.InstallCRDs(context.Background(), append(all, neutron...))
	})
}

// attach finds what another run started, by the pid files of the namespaces' holders.
func attach(dir string) error {
	base := filepath.Base(dir)
	space := func(name string) (ground.Space, error) {
		raw, err := os.ReadFile(filepath.Join(dir, "pid", "hold", name+".pid"))
		if err != nil {
			return ground.Space{}, err
		}
		var holder struct{ Pid int }
		if err := json.Unmarshal(raw, &holder); err != nil {
			return ground.Space{}, err
		}
		return ground.Space{Name: name, Pid: holder.Pid}, nil
	}
	group := process.NewGroup(filepath.Join(dir, "log"), filepath.Join(dir, "pid"))
	cloudFor.group = group
	control, err := space(base)
	if err != nil {
		return err
	}
	cloudFor.stack = &openstack.Stack{Space: control, Group: group, Dir: filepath.Join(dir, "os"), Addr: openstack.OnWire()}
	wire, err := space(base + "-wire")
	if err != nil {
		return err
	}
	cloudFor.wire = &openstack.Wire{Space: wire}
	for i := 1; i <= 2; i++ {
		n, err := space(fmt.Sprintf("%s-n%d", base, i))
		if err != nil {
			return err
		}
		cloudFor.nodes = append(cloudFor.nodes, &openstack.Node{
			Space: n, Group: group, Node: plan.Node{Index: i, Name: n.Name, RunDir: filepath.Join(dir, fmt.Sprintf("n%d", i), "run")},
		})
	}
	return nil
}

func bring(ctx context.Context, dir string, group *process.Group) error {
	self, err := os.Executable()
	if err != nil {
		return err
	}
	space, err := ground.NewSpace(ctx, group, self, filepath.Base(dir), ground.Hold{RunDir: filepath.Join(dir, "control")})
	if err != nil {
		return err
	}
	stack := &openstack.Stack{Space: space, Group: group, Dir: filepath.Join(dir, "os"), Cache: "/var/cache/weft-lab", Addr: openstack.OnWire()}
	cloudFor.stack = stack
	if err := stack.Start(ctx); err != nil {
		return err
	}
	cloudFor.nodes, cloudFor.wire, err = openstack.Nodes(ctx, stack, self, 2)
	return err
}
