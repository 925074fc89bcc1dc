package cluster

import (
	"context"
	"strconv"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	networkv1 "weft.dev/weft/api/openshift/v1"
	"weft.dev/weft/internal/cluster"
)

// fixture is a realisedReconciler with objects in memory and a clock.
type fixture struct {
	t      *testing.T
	client client.Client
	now    time.Time
	writes int
	r      *realisedReconciler
}

func newFixture(t *testing.T) *fixture {
	t.Helper()
	scheme := runtime.NewScheme()
	if err := clientgoscheme.AddToScheme(scheme); err != nil {
		t.Fatal(err)
	}
	if err := networkv1.AddToScheme(scheme); err != nil {
		t.Fatal(err)
	}
	s := &fixture{t: t, now: time.Unix(1000, 0)}
	network := &networkv1.ClusterNetwork{
		ObjectMeta: metav1.ObjectMeta{Name: "default"}, PluginName: networkv1.PluginNetworkPolicy, ServiceNetwork: "172.30.0.0/16",
		ClusterNetworks: []networkv1.ClusterNetworkEntry{{CIDR: "10.128.0.0/14", HostSubnetLength: 9}},
	}
	policy := &networkv1.EgressNetworkPolicy{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "out", UID: "u", Generation: 1}}
	s.client = fake.NewClientBuilder().WithScheme(scheme).WithStatusSubresource(&networkv1.EgressNetworkPolicy{}, &networkv1.HostSubnet{}).
		WithObjects(network, policy, hostOf("n1"), hostOf("n2")).
		WithInterceptorFuncs(interceptor.Funcs{SubResourceUpdate: func(ctx context.Context, c client.Client, sub string, o client.Object, opts ...client.SubResourceUpdateOption) error {
			if _, is := o.(*networkv1.EgressNetworkPolicy); is {
				s.writes++
			}
			return c.SubResource(sub).Update(ctx, o, opts...)
		}}).Build()
	s.lead()
	return s
}

func hostOf(name string) *networkv1.HostSubnet {
	return &networkv1.HostSubnet{ObjectMeta: metav1.ObjectMeta{Name: name, Annotations: map[string]string{networkv1.AnnotationNodeUID: "u" + name}}, Host: name}
}

// lead replaces the reconciler by that of a new leader.
func (s *fixture) lead() {
	s.r = &realisedReconciler{client: s.client, now: func() time.Time { return s.now }, rests: defaultRests()}
}

func (s *fixture) policy() *networkv1.EgressNetworkPolicy {
	var p networkv1.EgressNetworkPolicy
	if err := s.client.Get(s.t.Context(), client.ObjectKey{Namespace: "shop", Name: "out"}, &p); err != nil {
		s.t.Fatal(err)
	}
	return &p
}

// say writes a node's report: the version up to which policies are in effect, and why the policy is not.
func (s *fixture) say(node string, version uint64, exception string) {
	s.t.Helper()
	var hs networkv1.HostSubnet
	if err := s.client.Get(s.t.Context(), client.ObjectKey{Name: node}, &hs); err != nil {
		s.t.Fatal(err)
	}
	said := networkv1.HostSubnetRealised{Kind: "EgressNetworkPolicy", Version: strconv.FormatUint(version, 10)}
	if exception != "" {
		said.Exceptions = []networkv1.HostSubnetException{{Object: "shop/out", Reason: exception}}
	}
	hs.Status.Realised = []networkv1.HostSubnetRealised{said}
	hs.Status.Conditions = []metav1.Condition{{Type: networkv1.ConditionReady, Status: metav1.ConditionTrue, Reason: "Serving"}}
	if err := s.client.Status().Update(s.t.Context(), &hs); err != nil {
		s.t.Fatal(err)
	}
}

// round reconciles. It checks the number of writes so far, the delay until the next call, and the condition.
func (s *fixture) round(what string, writes int, again time.Duration, says string) {
	s.t.Helper()
	result, err := s.r.Reconcile(s.t.Context(), cluster.Everything{})
	got := ""
	if c := meta.FindStatusCondition(s.policy().Status.Conditions, networkv1.ConditionRealised); c != nil {
		got = string(c.Status) + " " + c.Reason + ": " + c.Message
	}
	if err != nil || s.writes != writes || result.RequeueAfter != again || got != says {
		s.t.Errorf("%s: %d writes, again after %s, it says %q, %v; want %d, %s, %q", what, s.writes, result.RequeueAfter, got, err, writes, again, says)
	}
}

// Brief states are not written. What a node cannot do is written at once, and a change of only the message at most once a minute. A write
// itself makes no node fall behind, also for the next leader.
func TestRealisedWaits(t *testing.T) {
	s := newFixture(t)
	version, err := strconv.ParseUint(s.policy().ResourceVersion, 10, 64)
	if err != nil {
		t.Fatal(err)
	}
	const all, one = "True Realised: realised on 2 of 2 nodes", "realised on 1 of 2 nodes; not on n2: "
	const slow = "its agent has not said yet that it has followed"
	s.say("n1", version, "")
	s.say("n2", version-1, "")
	s.round("new", 0, 5*time.Second, "")
	s.now = s.now.Add(2 * time.Second)
	s.round("still new", 0, 3*time.Second, "")
	s.say("n2", version, "")
	s.round("followed", 1, 0, all)
	s.round("steady, with the version that the write has made", 1, 0, all)
	s.lead()
	s.round("another leader", 1, 0, all)
	s.say("n2", version, "no room")
	s.round("a node cannot", 2, 0, "False NotRealised: "+one+"no room")
	s.now = s.now.Add(time.Second)
	s.say("n2", version, "no room at all")
	s.round("other words", 2, 59*time.Second, "False NotRealised: "+one+"no room")
	s.now = s.now.Add(59 * time.Second)
	s.round("other words, in time", 3, 0, "False NotRealised: "+one+"no room at all")
	s.say("n2", version, "")
	s.round("it can", 4, 0, all)
	s.say("n2", 0, "")
	s.round("a node is behind", 4, 30*time.Second, all)
	s.now = s.now.Add(30 * time.Second)
	s.round("it stays so", 5, 0, "False Behind: "+one+slow)
	s.say("n2", version, "")
	s.round("it has followed", 6, 0, all)

	p := s.policy()
	p.Generation = 2
	if err := s.client.Update(t.Context(), p); err != nil {
		t.Fatal(err)
	}
	changed, err := strconv.ParseUint(s.policy().ResourceVersion, 10, 64)
	if err != nil {
		t.Fatal(err)
	}
	s.round("it says something else", 6, 5*time.Second, all)
	s.now = s.now.Add(5 * time.Second)
	s.round("no node has followed", 7, 0, "False Behind: realised on 0 of 2 nodes; not on n1: "+slow+"; n2: "+slow)
	s.say("n1", changed, "")
	s.say("n2", changed, "")
	s.round("all follow", 8, 0, all)
	if p := s.policy(); p.Status.Asked.Version != strconv.FormatUint(changed, 10) || p.Status.Asked.Generation != 2 {
		t.Errorf("asked: %+v, of version %d", p.Status.Asked, changed)
	}
	var network networkv1.ClusterNetwork
	if err := s.client.Get(t.Context(), client.ObjectKey{Name: "default"}, &network); err != nil {
		t.Fatal(err)
	}
	network.PluginName = networkv1.PluginSubnet
	if err := s.client.Update(t.Context(), &network); err != nil {
		t.Fatal(err)
	}
	s.round("a flat network", 9, 0, "")
	s.round("a flat network, steady", 9, 0, "")
}
