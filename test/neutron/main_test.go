//go:build lab

// Package neutron tests Weft's part on OpenStack with a real OpenStack: Keystone, Neutron, OVN, Octavia, in one lab with kubelets that is
// brought up once for all tests.
package neutron

import (
	"context"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"weft.dev/weft/deploy/crds"
	"weft.dev/weft/internal/apiservertest"
	"weft.dev/weft/lab"
	"weft.dev/weft/lab/ground"
	"weft.dev/weft/lab/plan"
	"weft.dev/weft/lab/process"
	"weft.dev/weft/lab/programs"
	"weft.dev/weft/lab/stack/openstack"
	"weft.dev/weft/test/labs"
)

// cloudFor is what the tests share.
var cloudFor struct {
	lab   *lab.Cluster
	stack *openstack.Stack
	nodes []*openstack.Node
	group *process.Group
	bin   string
	// api is an API server of the tests' own, for controllers that tests start beside the lab's.
	api *apiservertest.Server
}

// labName lets an engineer run tests again and again in one lab: weft-lab --name NAME up --runtime kubelet --openstack ovn.
var labName = flag.String("neutron.lab", "", "use this lab, which is up, in place of one of the tests' own")

func TestMain(m *testing.M) {
	if len(os.Args) == 3 && os.Args[1] == "hold" {
		fmt.Fprintln(os.Stderr, ground.RunHold(os.Args[2]))
		os.Exit(1)
	}
	flag.Parse()
	os.Exit(run(m))
}

func run(m *testing.M) int {
	ctx, cancel := context.WithTimeout(context.Background(), 15*time.Minute)
	defer cancel()
	dir, err := os.MkdirTemp("", "weft-neutron-test")
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	defer func() { _ = os.RemoveAll(dir) }()
	if cloudFor.bin, err = programs.Folder(ctx, "../..", dir); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	if *labName == "" {
		defer func() {
			ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
			defer cancel()
			if err := lab.Down(ctx, ownLab, nil); err != nil {
				fmt.Fprintln(os.Stderr, "take the lab down:", err)
			}
		}()
	}
	if err := bring(ctx, dir); err != nil {
		fmt.Fprintln(os.Stderr, "bring the lab up:", err)
		return 1
	}
	return withAPI(m)
}

// ownLab is the name of the tests' own lab.
const ownLab = "neutron"

// bring brings the lab up, or takes the one that a flag names.
func bring(ctx context.Context, dir string) error {
	var err error
	if *labName != "" {
		cloudFor.lab, err = lab.Open(ctx, *labName)
	} else {
		cfg := lab.Config{Name: ownLab, Nodes: 2, Runtime: plan.RuntimeKubelet, OpenStack: plan.OpenStackOVN, WeftBin: cloudFor.bin}
		cloudFor.lab, err = lab.Up(ctx, cfg, labs.Print)
	}
	if err != nil {
		return err
	}
	cloudFor.stack = cloudFor.lab.OpenStack
	cloudFor.group = process.NewGroup(filepath.Join(dir, "log"), filepath.Join(dir, "pid"))
	for i, n := range cloudFor.lab.Nodes() {
		cloudFor.nodes = append(cloudFor.nodes, &openstack.Node{
			Space: n.Space, Group: cloudFor.group, Node: plan.Node{Index: i + 1, Name: n.Name, IP: n.IP, RunDir: n.RunDir, Dir: n.Dir},
		})
	}
	return nil
}

// withAPI runs the tests beside an API server of their own.
func withAPI(m *testing.M) int {
	return apiservertest.MainWith(m, &cloudFor.api, crds.All, crds.Neutron)
}

// kubectl runs the lab's kubectl.
func kubectl(ctx context.Context, t *testing.T, args ...string) string {
	t.Helper()
	out, err := tryKubectl(ctx, args...)
	if err != nil {
		t.Fatal(err)
	}
	return out
}

func tryKubectl(ctx context.Context, args ...string) (string, error) {
	out, err := cloudFor.group.Run(ctx, "", cloudFor.lab.Kubectl(args...)...)
	return strings.TrimSpace(out), err
}
