package node

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"

	networkv1 "weft.dev/weft/api/openshift/v1"
	"weft.dev/weft/internal/overlay/node/hostsubnet"
	"weft.dev/weft/internal/policy"
	"weft.dev/weft/internal/policy/follow"
)

// cached is a cache with the objects of a client.
type cached struct {
	cache.Cache
	from client.Reader
}

func (c cached) Get(ctx context.Context, key client.ObjectKey, obj client.Object, opts ...client.GetOption) error {
	return c.from.Get(ctx, key, obj, opts...)
}

func (c cached) List(ctx context.Context, list client.ObjectList, opts ...client.ListOption) error {
	return c.from.List(ctx, list, opts...)
}

func clusterNetwork(change func(*networkv1.ClusterNetwork)) *networkv1.ClusterNetwork {
	n := &networkv1.ClusterNetwork{
		ObjectMeta: metav1.ObjectMeta{Name: "default"}, ServiceNetwork: "172.30.0.0/16", PluginName: "redhat/openshift-ovs-subnet",
		ClusterNetworks: []networkv1.ClusterNetworkEntry{{CIDR: "10.128.0.0/14", HostSubnetLength: 9}},
	}
	change(n)
	return n
}

func hostSubnet(name, ip, subnet string) *networkv1.HostSubnet {
	return &networkv1.HostSubnet{ObjectMeta: metav1.ObjectMeta{Name: name, UID: types.UID("uid-" + name)}, Host: name, HostIP: ip, Subnet: subnet}
}

func TestView(t *testing.T) {
	asIs := func(*networkv1.ClusterNetwork) {}
	waiting := hostSubnet("own", "192.0.2.1", "")
	waiting.Annotations = map[string]string{networkv1.AnnotationAssignSubnet: "true"}
	waitingRemote := hostSubnet("later", "192.0.2.7", "")
	waitingRemote.Annotations = waiting.Annotations
	own, good := hostSubnet("own", "192.0.2.1", "10.128.0.0/23"), hostSubnet("good", "192.0.2.2", "10.128.2.0/23")
	for name, c := range map[string]struct {
		objects []client.Object
		words   string // of the error
		log     string
		remotes int
	}{
		"all well":             {objects: []client.Object{clusterNetwork(asIs), own, good}, remotes: 1},
		"alone":                {objects: []client.Object{clusterNetwork(asIs), own}},
		"no network":           {objects: []client.Object{own, good}, words: "ClusterNetwork default (create it"},
		"another network":      {objects: []client.Object{clusterNetwork(func(n *networkv1.ClusterNetwork) { n.Name = "other" }), own}, words: "create it"},
		"network of nonsense":  {objects: []client.Object{clusterNetwork(func(n *networkv1.ClusterNetwork) { n.ServiceNetwork = "x" }), own}, words: "serviceNetwork"},
		"no host subnet":       {objects: []client.Object{clusterNetwork(asIs), good}, words: "HostSubnet own: not found"},
		"own is nonsense":      {objects: []client.Object{clusterNetwork(asIs), hostSubnet("own", "x", "10.128.0.0/23"), good}, words: "hostIP"},
		"own has none yet":     {objects: []client.Object{clusterNetwork(asIs), waiting, good}, words: "no subnet yet"},
		"a remote is nonsense": {objects: []client.Object{clusterNetwork(asIs), own, good, hostSubnet("bad", "192.0.2.3", "10.128.4.1/23")}, remotes: 1, log: "hostsubnet=bad"},
		"a remote waits":       {objects: []client.Object{clusterNetwork(asIs), own, good, waitingRemote}, remotes: 1},
	} {
		t.Run(name, func(t *testing.T) {
			scheme := runtime.NewScheme()
			if err := networkv1.AddToScheme(scheme); err != nil {
				t.Fatal(err)
			}
			var log bytes.Buffer
			o := &Objects{
				cache: cached{from: fake.NewClientBuilder().WithScheme(scheme).WithObjects(c.objects...).Build()},
				node:  "own", log: slog.New(slog.NewTextHandler(&log, nil)), changes: newChanges(), port: hostsubnet.NewTunnelPort(slog.New(slog.DiscardHandler)),
			}
			view, err := o.view(t.Context())
			if (err != nil) != (c.words != "") || err != nil && !strings.Contains(err.Error(), c.words) {
				t.Fatalf("error %v, want %q", err, c.words)
			}
			if !strings.Contains(log.String(), c.log) || c.log == "" && log.Len() > 0 {
				t.Errorf("log %q, want %q", log.String(), c.log)
			}
			if err != nil {
				return
			}
			if view.Local.Subnet != netip.MustParsePrefix("10.128.0.0/23") || len(view.Remotes) != c.remotes {
				t.Errorf("view %+v", view)
			}
		})
	}
}

// TestStatusOnlyUpdatesDoNotConcern: agents watch all HostSubnets, and compile nothing when only a status changes.
func TestStatusOnlyUpdatesDoNotConcern(t *testing.T) {
	old := &networkv1.HostSubnet{ObjectMeta: metav1.ObjectMeta{Name: "n1", UID: "1", Generation: 1, ResourceVersion: "1"}}
	reported := old.DeepCopy()
	reported.ResourceVersion, reported.Status.Attachments = "2", 9
	if concerns(old, reported) {
		t.Error("a change of the status counts as a change")
	}
	moved := reported.DeepCopy()
	moved.Generation, moved.HostIP = 2, "192.0.2.9"
	noted := reported.DeepCopy()
	noted.Annotations = map[string]string{networkv1.AnnotationFixedVNID: "7"}
	anew := reported.DeepCopy()
	anew.UID = "2"
	for name, now := range map[string]*networkv1.HostSubnet{"an address": moved, "an annotation": noted, "another object": anew} {
		if !concerns(reported, now) {
			t.Errorf("%s does not count as a change", name)
		}
	}
}

// The time of a change is that of the first change that is not programmed yet.
func TestChangesCountFromTheFirst(t *testing.T) {
	o := newChanges()
	if o.Take().IsZero() {
		t.Error("without a change: no time")
	}
	o.signal()
	first := o.since
	o.signal()
	if o.since != first {
		t.Error("the second counts")
	}
	if got := o.Take(); got != first {
		t.Errorf("took %v, want %v", got, first)
	}
	o.signal()
	o.PutBack(first)
	if got := o.Take(); got != first {
		t.Errorf("took %v, want what was put back, %v", got, first)
	}
	if later := o.Take(); time.Since(later) > time.Minute {
		t.Errorf("took %v again", later)
	}
}

// What a node does not implement of a NetworkPolicy is reported on that policy.
func TestEventsOfPolicies(t *testing.T) {
	np := &networkingv1.NetworkPolicy{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "web", UID: "uid-of-web"}}
	reported := &sinkOfEvents{}
	o := &Objects{events: reported, log: slog.New(slog.DiscardHandler), policies: follow.New(cached{from: fake.NewClientBuilder().WithObjects(np).Build()}, nil)}
	problems := []error{errors.New("spec.ingress[0]: nonsense"), errors.New("spec.egress[0]: nonsense")}
	for _, name := range []string{"web", "web", "gone"} {
		o.ReportPolicyProblems(t.Context(), policy.Key{Namespace: "shop", Name: name}, problems)
	}
	want := []string{"NetworkPolicy shop/web: spec.ingress[0]: nonsense\nspec.egress[0]: nonsense", "NetworkPolicy shop/web: spec.ingress[0]: nonsense\nspec.egress[0]: nonsense"}
	if diff := cmp.Diff(want, reported.events); diff != "" {
		t.Errorf("events (-want +got):\n%s", diff)
	}
}

// sinkOfEvents records events as text.
type sinkOfEvents struct{ events []string }

func (s *sinkOfEvents) note(format string, args ...any) {
	s.events = append(s.events, fmt.Sprintf(format, args...))
}

// EgressNetworkPolicy implements Events.
func (s *sinkOfEvents) EgressNetworkPolicy(object *networkv1.EgressNetworkPolicy, reason, note string) {
	s.note("EgressNetworkPolicy %s/%s %s %s: %s", object.Namespace, object.Name, object.UID, reason, note)
}

// HostSubnet implements Events.
func (s *sinkOfEvents) HostSubnet(uid types.UID, version string, address netip.Addr, note string) {
	s.note("HostSubnet %s %s %s: %s", uid, version, address, note)
}

// Policy implements Events.
func (s *sinkOfEvents) Policy(np *networkingv1.NetworkPolicy, note string) {
	s.note("NetworkPolicy %s/%s: %s", np.Namespace, np.Name, note)
}

// Service implements Events.
func (s *sinkOfEvents) Service(namespace, name, uid, note string) {
	s.note("Service %s/%s %s: %s", namespace, name, uid, note)
}

// patience bounds the waits of tests.
const patience = 20 * time.Second
