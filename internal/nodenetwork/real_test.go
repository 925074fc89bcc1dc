//go:build real

package nodenetwork

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"

	weftv1 "weft.dev/weft/api/weft/v1"
	"weft.dev/weft/deploy"
	"weft.dev/weft/deploy/crds"
	"weft.dev/weft/internal/apiservertest"
	"weft.dev/weft/internal/testwait"
)

var server *apiservertest.Server //nolint:gochecknoglobals // set once, by TestMain

func TestMain(m *testing.M) {
	os.Exit(apiservertest.Main(m, func(s *apiservertest.Server) error {
		server = s
		all, err := crds.All()
		if err != nil {
			return err
		}
		if err := s.InstallCRDs(context.Background(), all); err != nil {
			return err
		}
		manifest, err := deploy.Objects()
		if err != nil {
			return err
		}
		c, err := client.New(s.Config(), client.Options{})
		if err != nil {
			return err
		}
		for _, object := range manifest {
			if err := c.Create(context.Background(), object); err != nil {
				return err
			}
		}
		return nil
	}))
}

// fixture is a node with a running writer that has an agent's rights.
type fixture struct {
	*Writer
	client.Client

	t    *testing.T
	node string
	log  *testwait.Log
}

func asAgent(node string) *rest.Config {
	config := server.ConfigAs("weft", "weft-agent")
	config.Impersonate.Extra = map[string][]string{"authentication.kubernetes.io/node-name": {node}}
	return config
}

func start(t *testing.T, node string) *fixture {
	t.Helper()
	scheme := runtime.NewScheme()
	if err := errors.Join(weftv1.AddToScheme(scheme), corev1.AddToScheme(scheme)); err != nil {
		t.Fatal(err)
	}
	admin, err := client.New(server.Config(), client.Options{Scheme: scheme})
	if err != nil {
		t.Fatal(err)
	}
	f := &fixture{Client: admin, t: t, node: node, log: &testwait.Log{}}
	f.Writer, err = New(Options{
		Config: asAgent(node), Node: node, Gather: 10 * time.Millisecond, Rest: 50 * time.Millisecond,
		Log: slog.New(slog.NewTextHandler(f.log, nil)),
	})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- f.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
	return f
}

func (f *fixture) makeNode() *corev1.Node {
	f.t.Helper()
	node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: f.node}}
	if err := f.Create(f.t.Context(), node); err != nil {
		f.t.Fatal(err)
	}
	return node
}

// eventually waits until check returns true for the node's object, and returns the object.
func (f *fixture) eventually(what string, check func(*weftv1.NodeNetwork) bool) *weftv1.NodeNetwork {
	f.t.Helper()
	var object weftv1.NodeNetwork
	testwait.Eventually(f.t, what, func() error {
		object = weftv1.NodeNetwork{}
		if err := f.Get(f.t.Context(), client.ObjectKey{Name: f.node}, &object); err != nil {
			return err
		}
		if !check(&object) {
			return fmt.Errorf("it is %+v; log:\n%s", object, f.log)
		}
		return nil
	})
	return &object
}

func names(object *weftv1.NodeNetwork) string {
	var all []string
	for i := range object.Status.Networks {
		all = append(all, object.Status.Networks[i].Name)
	}
	return strings.Join(all, " ")
}

// With the rights in the chart, the writer creates the object once there is a Node to own it, and restores it after any change by others.
func TestWriter(t *testing.T) {
	f := start(t, "node-1")
	f.Set(section("overlay", ready("True", 0, "")))
	f.Set(weftv1.NodeNetworkSection{Name: "vpc", VPC: &weftv1.VPCNode{Chassis: "node-1"}})
	node := f.makeNode()
	made := f.eventually("it is written", func(o *weftv1.NodeNetwork) bool { return names(o) == "overlay vpc" })
	if owners := made.OwnerReferences; len(owners) != 1 || owners[0].Kind != "Node" || owners[0].UID != node.UID {
		t.Errorf("owners %+v, want the Node", owners)
	}

	tampered := client.RawPatch("application/merge-patch+json", []byte(`{"status": {"networks": [{"name": "vpc", "vpc": {"chassis": "other"}}]}}`))
	if err := f.Status().Patch(t.Context(), made.DeepCopy(), tampered); err != nil {
		t.Fatal(err)
	}
	f.eventually("it is restored", func(o *weftv1.NodeNetwork) bool {
		return names(o) == "overlay vpc" && o.Status.Networks[1].VPC.Chassis == "node-1"
	})

	if err := f.Delete(t.Context(), made); err != nil {
		t.Fatal(err)
	}
	f.eventually("it is made again", func(o *weftv1.NodeNetwork) bool { return o.UID != made.UID && names(o) == "overlay vpc" })

	f.Set(weftv1.NodeNetworkSection{Name: "vpc", VPC: &weftv1.VPCNode{Chassis: "no chassis\n"}})
	f.Set(section("overlay", ready("False", 0, "waiting for the API server")))
	f.eventually("a section that is refused does not stop others", func(o *weftv1.NodeNetwork) bool {
		return names(o) == "overlay vpc" && o.Status.Networks[0].Conditions[0].Status == "False" && o.Status.Networks[1].VPC.Chassis == "node-1"
	})
	f.Keep("overlay")
	last := f.eventually("networks that the node has no more go", func(o *weftv1.NodeNetwork) bool { return names(o) == "overlay" })

	// An unchanged section is not written. The section set after it proves that the writer has compared.
	f.Set(section("overlay", ready("False", 0, "waiting for the API server")))
	f.Keep("overlay", "flannel")
	f.Set(section("flannel"))
	next := f.eventually("one more", func(o *weftv1.NodeNetwork) bool { return names(o) == "flannel overlay" })
	if !next.Status.Networks[1].Conditions[0].LastTransitionTime.Equal(&last.Status.Networks[0].Conditions[0].LastTransitionTime) {
		t.Error("the time of a condition changed, its status did not")
	}
}

// A restarted agent finds its object, keeps the sections of networks that have not reported yet, and writes nothing.
func TestWriterStartsAgain(t *testing.T) {
	f := start(t, "node-2")
	f.makeNode()
	f.Set(section("overlay", ready("True", 0, "")))
	f.Set(section("vpc"))
	before := f.eventually("it is written", func(o *weftv1.NodeNetwork) bool { return names(o) == "overlay vpc" })
	again := start(t, "node-2")
	again.Set(section("overlay", ready("True", 0, "")))
	if !again.cache.WaitForCacheSync(t.Context()) {
		t.Fatal("not synced")
	}
	wrote, err := again.step(t.Context())
	if wrote || err != nil {
		t.Errorf("it wrote: %v %v", wrote, err)
	}
	again.eventually("nothing changed", func(o *weftv1.NodeNetwork) bool { return o.ResourceVersion == before.ResourceVersion })
}
