package overlay

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sync/errgroup"
	networkingv1 "k8s.io/api/networking/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"

	networkv1 "weft.dev/weft/api/openshift/v1"
	"weft.dev/weft/lab"
	"weft.dev/weft/test/probe"
	"weft.dev/weft/test/soak/losses"
	"weft.dev/weft/test/soak/overlay/cast"
	"weft.dev/weft/test/soak/overlay/program"
	"weft.dev/weft/test/soak/report"
	"weft.dev/weft/test/traffic"
)

// pairsPolicy is the policy that allows the pairs to talk, and no other pod to talk to them.
const pairsPolicy = "pairs"

// Policies changes the network's mode to the one with NetworkPolicies and back, under traffic, and meanwhile restarts agents while
// policies change. No allowed packet may be lost, and no denied one may arrive.
func Policies(ctx context.Context, s *Stage) error {
	r := report.Row{Part: "policies", Name: "agents restarted while policies change"}
	began := time.Now()
	defer func() {
		r.Took = time.Since(began)
		s.report.Add(r)
	}()
	if quiet, err := s.packets.quiet(ctx, &r); !quiet {
		return err
	}
	before, err := s.ledger.rest(ctx, false)
	if err != nil {
		return err
	}
	flat, err := s.ledger.states(ctx)
	if err != nil {
		return err
	}
	p, err := newPolicies(s)
	if err != nil {
		return err
	}
	r.Fail(s.packets.load(ctx, &r, losses.All, func() error { return p.isolate(ctx) }))
	for r.Count < s.opts.Restarts && ctx.Err() == nil && len(r.Wrong) == 0 {
		n := min(restartsAtATime, s.opts.Restarts-r.Count)
		chunk := time.Now()
		err := s.packets.load(ctx, &r, losses.All, func() error { return p.kept(ctx, &r, func() error { return p.restartSome(ctx, &r, n) }) })
		s.holes(&r)
		r.Fail(err)
		s.report.Say("policies: %d restarts, %d of %d packets lost, %s each", r.Count, r.Lost, r.Sent, (time.Since(chunk) / time.Duration(n)).Round(time.Millisecond))
	}
	r.Fail(s.packets.load(ctx, &r, losses.All, func() error { return p.end(context.WithoutCancel(ctx), flat) }))
	s.ledger.leaks(ctx, &r, before, false)
	r.Fail(s.siege.Honest(ctx))
	s.holes(&r)
	r.Note = fmt.Sprintf("%d packets that no policy allows were sent meanwhile; the mode was changed, and changed back, under the same traffic", p.refused)
	return ctx.Err()
}

// policies is a run with policies.
type policies struct {
	stage  *Stage
	client kubernetes.Interface
	// refused counts denied datagrams; before is how many of them arrived before they were denied.
	refused uint64
	before  int
}

func newPolicies(s *Stage) (*policies, error) {
	client, err := s.cluster.Client()
	return &policies{stage: s, client: client}, err
}

// deniedPairs are pairs of pods that must not talk while the network isolates.
func (p *policies) deniedPairs() []traffic.Pair {
	cs := p.stage.cast
	return []traffic.Pair{
		{Name: "neighbour to b1", From: cs.Pod("neighbour").Netns, To: cs.At("b1")},
		{Name: "remote to b1", From: cs.Pod("remote").Netns, To: cs.At("b1")},
		{Name: "remote to b2", From: cs.Pod("remote").Netns, To: cs.At("b2")},
		{Name: "neighbour to b2", From: cs.Pod("neighbour").Netns, To: cs.At("b2")},
	}
}

// isolate changes the mode, makes a policy for the pairs once conntrack has their connections, and waits until no other pod reaches them.
func (p *policies) isolate(ctx context.Context) error {
	if err := p.mode(ctx, networkv1.PluginNetworkPolicy); err != nil {
		return err
	}
	for _, pair := range p.stage.cast.Pairs {
		for _, n := range p.stage.cluster.Nodes() {
			if err := p.known(ctx, n, pair); err != nil {
				return err
			}
		}
	}
	if err := p.put(ctx, allowing(pairsPolicy, networkingv1.NetworkPolicyPeer{PodSelector: ofPairs()})); err != nil {
		return err
	}
	for _, pair := range p.deniedPairs() {
		if err := p.judged(ctx, pair, false); err != nil {
			return err
		}
	}
	p.before = p.came()
	return nil
}

// known waits until conntrack of a node with a pod of a pair has the pair's connection.
func (p *policies) known(ctx context.Context, n lab.Node, pair traffic.Pair) error {
	from, to, _ := strings.Cut(pair.Name, " to ")
	if from != n.Name && to != n.Name {
		return nil
	}
	one, other := p.stage.cast.Pod("a" + strings.TrimPrefix(from, "n")).IPs[0], pair.To.Addr()
	_, err := probe.Await(ctx, program.RecoveryTime, fmt.Sprintf("connection %s tracked on %s", pair.Name, n.Name), func(ctx context.Context) error {
		known, err := probe.Run(ctx, n.Enter("ovs-appctl", "-t", "ovs-vswitchd", "dpctl/dump-conntrack"))
		// The entry may begin with the datagram or with its answer.
		if err == nil && !strings.Contains(known, fmt.Sprintf("orig=(src=%s,dst=%s,", one, other)) && !strings.Contains(known, fmt.Sprintf("orig=(src=%s,dst=%s,", other, one)) {
			err = errors.New("it is not tracked")
		}
		return err
	})
	return err
}

// kept runs f, and returns an error if a datagram of a denied pair arrived meanwhile.
func (p *policies) kept(ctx context.Context, r *report.Row, f func() error) error {
	running, err := traffic.NewLoad(p.deniedPairs(), max(p.stage.opts.Rate/10, 1))
	if err != nil {
		return err
	}
	done := f()
	tallies, _ := running.Stop() // all are lost, as they must be
	for name, tally := range tallies {
		p.refused += tally.Sent
		if tally.Sent == 0 || tally.Lost != tally.Sent {
			done = errors.Join(done, fmt.Errorf("%s: %s; want all datagrams sent and lost", name, tally))
		}
	}
	if came := p.came() - p.before; came > 0 {
		p.before += came
		r.Breached([]string{fmt.Sprintf("%d datagrams arrived that no policy allows", came)})
	}
	return errors.Join(done, ctx.Err())
}

// came counts the datagrams of denied pairs that arrived.
func (p *policies) came() int {
	cs, sum := p.stage.cast, 0
	for _, to := range []string{"b1", "b2"} {
		sources := cs.Sources(to)
		for _, from := range []string{"neighbour", "remote"} {
			sum += sources[cs.Pod(from).IPs[0]]
		}
	}
	return sum
}

// restartSome restarts the agents of both nodes concurrently, while policies change.
func (p *policies) restartSome(ctx context.Context, r *report.Row, n int) error {
	counts := [2]int{n - n/2, n / 2}
	slowest := [2]time.Duration{}
	var group errgroup.Group
	for i, node := range p.stage.cluster.Nodes() {
		group.Go(func() error {
			for turn := range counts[i] {
				began := time.Now()
				if err := p.restart(ctx, node, turn); err != nil {
					return fmt.Errorf("%s: restart %d: %w", node.Name, turn, err)
				}
				slowest[i] = max(slowest[i], time.Since(began))
			}
			return nil
		})
	}
	err := group.Wait()
	r.Count += n
	r.Back = max(r.Back, slowest[0], slowest[1])
	return err
}

// restart restarts a node's agent in the middle of a change: a pod of a pair is opened to a denied pod, and closed again by a change, and
// then the policy is deleted. The new agent must enforce the policies of that moment.
func (p *policies) restart(ctx context.Context, n lab.Node, turn int) error {
	ctx, cancel := context.WithTimeout(ctx, probe.Patience)
	defer cancel()
	denied, to := "remote", "a1"
	if n.Name != "n1" {
		denied, to = "neighbour", "a2"
	}
	peer := networkingv1.NetworkPolicyPeer{PodSelector: &metav1.LabelSelector{MatchLabels: map[string]string{cast.NameLabel: denied}}}
	passes := turn%3 == 0
	if !passes {
		peer = networkingv1.NetworkPolicyPeer{IPBlock: &networkingv1.IPBlock{CIDR: fmt.Sprintf("192.0.2.%d/32", turn%256)}}
	}
	beside := allowing("beside-"+n.Name, peer)
	beside.Spec.PodSelector = metav1.LabelSelector{MatchLabels: map[string]string{cast.NameLabel: to}}
	var err error
	if turn%3 == 2 {
		err = p.drop(ctx, beside.Name)
	} else {
		err = p.put(ctx, beside)
	}
	if err != nil {
		return err
	}
	<-time.After(p.stage.chance.within(10 * time.Millisecond)) // a change reaches the agent in about 1 ms, and is in effect some time later
	pid, err := probe.Signal(ctx, p.stage.cluster, program.Agent(n), []syscall.Signal{syscall.SIGTERM, syscall.SIGKILL}[turn%2])
	if err != nil {
		return err
	}
	if err := program.AwaitAgent(ctx, p.stage.cluster, n, pid); err != nil {
		return err
	}
	return p.judged(ctx, traffic.Pair{Name: denied + " to " + to, From: p.stage.cast.Pod(denied).Netns, To: p.stage.cast.At(to)}, passes)
}

// judged waits until a pair gets answers, or gets none, as passes says.
func (p *policies) judged(ctx context.Context, pair traffic.Pair, passes bool) error {
	_, err := probe.Await(ctx, program.RecoveryTime, fmt.Sprintf("%s answered: %t", pair.Name, passes), func(ctx context.Context) error {
		const long = 300 * time.Millisecond
		ctx, cancel := context.WithTimeout(ctx, long)
		defer cancel()
		if _, err := traffic.Ping(ctx, pair.From, pair.To); passes != (err == nil) {
			return fmt.Errorf("answered: %t", !passes)
		}
		return nil
	})
	return err
}

// end deletes the policies, restores the mode, and waits until the nodes have their former state.
func (p *policies) end(ctx context.Context, flat map[string]probe.State) error {
	list, err := p.client.NetworkingV1().NetworkPolicies(cast.Namespace).List(ctx, metav1.ListOptions{})
	if err != nil {
		return fmt.Errorf("list policies: %w", err)
	}
	if err := p.mode(ctx, networkv1.PluginSubnet); err != nil {
		return err
	}
	for i := range list.Items {
		err = errors.Join(err, p.drop(ctx, list.Items[i].Name))
	}
	for _, n := range p.stage.cluster.Nodes() {
		_, waitErr := probe.Await(ctx, program.RecoveryTime, n.Name+" as it was before the mode was changed", func(ctx context.Context) error {
			return probe.StateOf(ctx, n).Differs(flat[n.Name])
		})
		err = errors.Join(err, waitErr)
	}
	return err
}

// mode requests another mode.
func (p *policies) mode(ctx context.Context, plugin string) error {
	networks, err := probe.Objects(p.stage.cluster, networkv1.GroupName, "clusternetworks")
	if err != nil {
		return err
	}
	_, err = networks.Patch(ctx, networkv1.ClusterNetworkDefault, types.MergePatchType, fmt.Appendf(nil, `{"pluginName":%q}`, plugin), metav1.PatchOptions{})
	return err
}

// put creates a policy, or replaces it.
func (p *policies) put(ctx context.Context, policy *networkingv1.NetworkPolicy) error {
	all := p.client.NetworkingV1().NetworkPolicies(cast.Namespace)
	_, err := all.Create(ctx, policy, metav1.CreateOptions{})
	if apierrors.IsAlreadyExists(err) {
		_, err = all.Update(ctx, policy, metav1.UpdateOptions{})
	}
	if err != nil {
		return fmt.Errorf("policy %s: %w", policy.Name, err)
	}
	return nil
}

func (p *policies) drop(ctx context.Context, name string) error {
	err := p.client.NetworkingV1().NetworkPolicies(cast.Namespace).Delete(ctx, name, metav1.DeleteOptions{})
	if err != nil && !apierrors.IsNotFound(err) {
		return fmt.Errorf("policy %s: %w", name, err)
	}
	return nil
}

// allowing is a policy for the pairs' pods that allows these peers; without peers it allows nothing.
func allowing(name string, from ...networkingv1.NetworkPolicyPeer) *networkingv1.NetworkPolicy {
	policy := &networkingv1.NetworkPolicy{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: networkingv1.NetworkPolicySpec{
		PodSelector: *ofPairs(), PolicyTypes: []networkingv1.PolicyType{networkingv1.PolicyTypeIngress},
	}}
	if len(from) > 0 {
		policy.Spec.Ingress = []networkingv1.NetworkPolicyIngressRule{{From: from}}
	}
	return policy
}

// ofPairs selects the pods of the pairs.
func ofPairs() *metav1.LabelSelector {
	return &metav1.LabelSelector{MatchLabels: map[string]string{cast.Label: cast.Peers}}
}
