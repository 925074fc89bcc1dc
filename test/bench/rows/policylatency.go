package rows

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"strconv"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/kubernetes"

	"golang.org/x/sync/errgroup"

	networkv1 "weft.dev/weft/api/openshift/v1"
	"weft.dev/weft/internal/openflow"
	"weft.dev/weft/internal/openflow/session"
	"weft.dev/weft/internal/overlay/pipeline"
	"weft.dev/weft/internal/overlay/pipeline/cookies"
	"weft.dev/weft/lab"
	"weft.dev/weft/test/bench/measure"
	"weft.dev/weft/test/bench/stage"
	"weft.dev/weft/test/bench/switches"
	"weft.dev/weft/test/probe"
	"weft.dev/weft/test/traffic"
)

const (
	// latencyTimes is how often a round creates the policy.
	latencyTimes = 30
	// latencyRate is the number of datagrams per second to the pod.
	latencyRate = 1000
	// latencyQuiet is how long no datagram must arrive before the last one counts as the last.
	latencyQuiet = 150 * time.Millisecond
	// latencyPods is the number of pods on the node, which the other policies select.
	latencyPods = 10
)

// Names of the pods that exchange packets.
const (
	clientName = "client"
	serverName = "server"
)

// Metrics of new policies.
const (
	latencyP50   = "latency-p50"   // from the API server's answer until the last packet
	latencyP99   = "latency-p99"   // the same
	latencyAgent = "latency-agent" // from the API server's event until the flows are committed
)

// policyLatency creates a policy that isolates a pod which receives packets, with other policies present, and measures when the last
// packet arrives.
func policyLatency(present int, p99 float64) Group {
	name := "policies/latency/" + strconv.Itoa(present) + "/"
	last := measure.Row{Name: name + "p99", Metric: latencyP99, Unit: "ms until the last packet"}
	if p99 > 0 {
		last.Target = measure.AtMost(p99)
	}
	return Group{
		Title: fmt.Sprintf("from the API server's answer to a policy's creation until the last packet, with %d policies present", present),
		Rows: []measure.Row{
			{Name: name + "p50", Metric: latencyP50, Unit: "ms until the last packet", Target: measure.AtMost(20)},
			last,
			{Name: name + "agent", Metric: latencyAgent, Unit: "ms from the event to the committed bundle, p50", Target: measure.AtMost(5)},
		},
		run: func(ctx context.Context, b Bench, rows []measure.Row) (results []measure.Result, err error) {
			s, err := openIsolation(ctx, b.Stage, present)
			defer func() { err = errors.Join(err, s.close(context.WithoutCancel(ctx), b.Stage)) }()
			if err != nil {
				return nil, err
			}
			return b.compare(ctx, rows, s.measure, nil)
		},
	}
}

// isolation is a lab in which a policy isolates a pod.
type isolation struct {
	cluster *lab.Cluster
	client  kubernetes.Interface
	from    *lab.Pod
	to      netip.AddrPort
	probe   *probeStream
	// programmed returns the number of policies that the node has programmed.
	programmed func(ctx context.Context) (int, error)
	// commits are the switch's; nil: the node has none.
	commits *commits
}

func openIsolation(ctx context.Context, st *stage.Stage, present int) (s *isolation, err error) {
	s = &isolation{}
	s.programmed = s.policiesOfSwitch
	s.cluster, err = st.Lab(ctx, stage.KindPolicies, lab.Config{Nodes: 2, PluginName: networkv1.PluginNetworkPolicy})
	if err != nil {
		return s, err
	}
	if err := s.populate(ctx); err != nil {
		return s, err
	}
	st.Say("making %d policies", present)
	if err := s.fill(ctx, present); err != nil {
		return s, err
	}
	s.commits, err = watchCommits(ctx, s.cluster.Node(1))
	return s, err
}

// populate makes the pods: one that sends, one that receives, and those that the other policies select.
func (s *isolation) populate(ctx context.Context) (err error) {
	if s.client, err = busyClient(s.cluster); err != nil {
		return err
	}
	namespace := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: switches.PolicyNamespace}}
	if _, err := s.client.CoreV1().Namespaces().Create(ctx, namespace, metav1.CreateOptions{}); err != nil {
		return fmt.Errorf("make the namespace of pods: %w", err)
	}
	pod := func(node, name string, labels map[string]string) (*lab.Pod, error) {
		return probe.AddPod(ctx, s.cluster, lab.PodSpec{Node: node, Namespace: switches.PolicyNamespace, Name: name, Labels: labels})
	}
	if s.from, err = pod("n2", clientName, nil); err != nil {
		return err
	}
	to, err := pod("n1", serverName, map[string]string{"role": serverName})
	if err != nil {
		return err
	}
	for i := range latencyPods {
		if _, err := pod("n1", "other-"+strconv.Itoa(i), map[string]string{"app": strconv.Itoa(i)}); err != nil {
			return err
		}
	}
	s.to = netip.AddrPortFrom(to.IPs[0], echoPort)
	s.probe, err = openProbe(to.Netns, s.to, s.from.Netns)
	return err
}

// busyClient returns a client with long-lived watches and without a rate limit.
func busyClient(c *lab.Cluster) (kubernetes.Interface, error) {
	config, err := c.RESTConfig()
	if err != nil {
		return nil, err
	}
	config.Timeout, config.QPS = 0, -1
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		return nil, fmt.Errorf("connect to the API server of lab %s: %w", c.Name(), err)
	}
	return client, nil
}

// fill makes policies for the other pods of the node, each with its own port, and waits until the last is programmed.
func (s *isolation) fill(ctx context.Context, present int) error {
	g, limited := errgroup.WithContext(ctx)
	g.SetLimit(16)
	for i := range present {
		g.Go(func() error {
			spec := switches.Allowing(switches.Labelled("app", strconv.Itoa(i%latencyPods)), switches.Labelled("app", strconv.Itoa((i+1)%latencyPods)), int32(10_000+i)) //nolint:gosec // small
			return s.create(limited, "present-"+strconv.Itoa(i), spec)
		})
	}
	if err := g.Wait(); err != nil {
		return err
	}
	const patience = 2 * time.Minute
	_, err := probe.Await(ctx, patience, "all policies programmed", func(ctx context.Context) error {
		have, err := s.programmed(ctx)
		if err == nil && have != present {
			err = fmt.Errorf("%d of %d", have, present)
		}
		return err
	})
	return err
}

// policiesOfSwitch counts the flows of policies' rules; each policy has one.
func (s *isolation) policiesOfSwitch(ctx context.Context) (int, error) {
	conn, err := session.Dial(ctx, s.cluster.Node(1).Root("/run/openvswitch/br0.mgmt"), session.Options{})
	if err != nil {
		return 0, err
	}
	defer func() { _ = conn.Close() }()
	flows, err := conn.Flows(ctx)
	verdicts := 0
	for _, f := range flows {
		if cookies.Kind(f.Cookie) == "policyrule" {
			verdicts++
		}
	}
	return verdicts, err
}

func (s *isolation) create(ctx context.Context, name string, spec networkingv1.NetworkPolicySpec) error {
	object := &networkingv1.NetworkPolicy{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: spec}
	if _, err := s.client.NetworkingV1().NetworkPolicies(switches.PolicyNamespace).Create(ctx, object, metav1.CreateOptions{}); err != nil {
		return fmt.Errorf("make policy %s: %w", name, err)
	}
	return nil
}

func (s *isolation) close(ctx context.Context, st *stage.Stage) error {
	return errors.Join(s.silence(), st.StrikeLab(ctx, stage.KindPolicies))
}

// silence ends the datagrams.
func (s *isolation) silence() error {
	var errs []error
	if s.probe != nil {
		errs = append(errs, s.probe.close())
	}
	if s.commits != nil {
		errs = append(errs, s.commits.conn.Close())
	}
	return errors.Join(errs...)
}

// measure is a round.
func (s *isolation) measure(ctx context.Context) (measure.Figures, error) {
	var last, agent []float64
	for range latencyTimes {
		until, committed, err := s.isolate(ctx)
		if err != nil {
			return nil, err
		}
		last, agent = append(last, milliseconds(until)), append(agent, milliseconds(committed))
	}
	return measure.Figures{latencyP50: measure.Median(last), latencyP99: measure.Quantile(last, 0.99), latencyAgent: measure.Median(agent)}, nil
}

// isolate creates the policy. It returns the time from the API server's answer to the last packet, and from the policy's event to the
// commit of the flows. Then it deletes the policy.
func (s *isolation) isolate(ctx context.Context) (until, committed time.Duration, err error) {
	ctx, cancel := context.WithTimeout(ctx, probe.Patience)
	defer cancel()
	if err := s.probe.await(ctx, false); err != nil {
		return 0, 0, fmt.Errorf("before the policy: %w", err)
	}
	policies := s.client.NetworkingV1().NetworkPolicies(switches.PolicyNamespace)
	// From the API server's cache: the agent has processed the deletion of the former policy, which came from the same cache.
	events, err := policies.Watch(ctx, metav1.ListOptions{FieldSelector: "metadata.name=" + serverName, ResourceVersion: "0"})
	if err != nil {
		return 0, 0, fmt.Errorf("watch the policy: %w", err)
	}
	defer events.Stop()
	s.commits.begin()
	spec := networkingv1.NetworkPolicySpec{PodSelector: switches.Labelled("role", serverName), PolicyTypes: []networkingv1.PolicyType{networkingv1.PolicyTypeIngress}}
	if err := s.create(ctx, serverName, spec); err != nil {
		return 0, 0, err
	}
	answered := time.Now()
	observed, err := added(ctx, events)
	if err != nil {
		return 0, 0, err
	}
	if err := s.probe.await(ctx, true); err != nil {
		return 0, 0, fmt.Errorf("with the policy: %w", err)
	}
	if err := s.commits.await(ctx); err != nil {
		return 0, 0, err
	}
	until, committed = max(0, s.probe.at().Sub(answered)), s.commits.at().Sub(observed)
	s.commits.begin()
	if err := policies.Delete(ctx, serverName, metav1.DeleteOptions{}); err != nil {
		return 0, 0, fmt.Errorf("delete the policy: %w", err)
	}
	return until, committed, s.commits.await(ctx)
}

// added waits for the policy's event, and returns its time.
func added(ctx context.Context, events watch.Interface) (time.Time, error) {
	select {
	case e := <-events.ResultChan():
		if e.Type == watch.Added {
			return time.Now(), nil
		}
		return time.Time{}, fmt.Errorf("event of another object than the policy: %s %v", e.Type, e.Object)
	case <-ctx.Done():
		return time.Time{}, fmt.Errorf("waiting for the policy's event: %w", ctx.Err())
	}
}

// commits records when the switch's note was written, which comes last in a commit.
type commits struct {
	conn *session.Conn

	mu    sync.Mutex
	first time.Time
}

func watchCommits(ctx context.Context, n lab.Node) (*commits, error) {
	c := &commits{}
	conn, err := session.Dial(ctx, n.Root("/run/openvswitch/br0.mgmt"), session.Options{OnAsync: c.note})
	if err != nil {
		return nil, err
	}
	if err := conn.Monitor(ctx, 1); err != nil {
		return nil, errors.Join(err, conn.Close())
	}
	c.conn = conn
	return c, nil
}

func (c *commits) note(message any) {
	updates, ok := message.([]openflow.FlowUpdate)
	if !ok {
		return
	}
	now := time.Now()
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, u := range updates {
		if u.Flow != nil && pipeline.IsNote(u.Flow.Key()) && c.first.IsZero() {
			c.first = now
		}
	}
}

// begin discards earlier commits.
func (c *commits) begin() {
	if c == nil {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.first = time.Time{}
}

// at returns when the first commit since begin ended, and the zero time without a switch.
func (c *commits) at() time.Time {
	if c == nil {
		return time.Time{}
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.first
}

// await waits until there was a commit; not without a switch.
func (c *commits) await(ctx context.Context) error {
	if c == nil {
		return nil
	}
	const often = time.Millisecond
	ticker := time.NewTicker(often)
	defer ticker.Stop()
	for c.at().IsZero() {
		select {
		case <-ctx.Done():
			return fmt.Errorf("the node committed no flows: %w", ctx.Err())
		case <-ticker.C:
		}
	}
	return nil
}

// probeStream is a stream of datagrams, with the time of the last arrival.
type probeStream struct {
	in, out *net.UDPConn
	stop    chan struct{}
	running sync.WaitGroup

	mu     sync.Mutex
	last   time.Time
	failed error
}

func openProbe(netns string, at netip.AddrPort, from string) (*probeStream, error) {
	e := &probeStream{stop: make(chan struct{})}
	var err error
	if e.in, err = traffic.ListenUDP(netns, at); err != nil {
		return nil, err
	}
	if e.out, err = traffic.ListenUDP(from, netip.AddrPortFrom(netip.IPv4Unspecified(), 0)); err != nil {
		return nil, errors.Join(err, e.in.Close())
	}
	e.running.Go(e.receive)
	e.running.Go(func() { e.send(at) })
	return e, nil
}

func (e *probeStream) receive() {
	buffer := make([]byte, 64)
	for {
		_, _, err := e.in.ReadFromUDPAddrPort(buffer)
		if err != nil {
			return // the socket was closed
		}
		now := time.Now()
		e.mu.Lock()
		e.last = now
		e.mu.Unlock()
	}
}

func (e *probeStream) send(to netip.AddrPort) {
	ticker := time.NewTicker(time.Second / latencyRate)
	defer ticker.Stop()
	for {
		select {
		case <-e.stop:
			return
		case <-ticker.C:
			if _, err := e.out.WriteToUDPAddrPort([]byte("bench"), to); err != nil {
				e.mu.Lock()
				e.failed = err
				e.mu.Unlock()
				return
			}
		}
	}
}

// at returns when the last datagram arrived.
func (e *probeStream) at() time.Time {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.last
}

// await waits until datagrams arrive, or with quiet, until none has arrived for some time.
func (e *probeStream) await(ctx context.Context, quiet bool) error {
	const often = 5 * time.Millisecond
	began := time.Now()
	ticker := time.NewTicker(often)
	defer ticker.Stop()
	for {
		e.mu.Lock()
		last, failed := e.last, e.failed
		e.mu.Unlock()
		switch {
		case failed != nil:
			return failed
		case quiet && time.Since(last) > latencyQuiet:
			return nil
		case !quiet && last.After(began):
			return nil
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("the datagrams did not start or stop in time: %w", ctx.Err())
		case <-ticker.C:
		}
	}
}

func (e *probeStream) close() error {
	close(e.stop)
	err := errors.Join(e.in.Close(), e.out.Close())
	e.running.Wait()
	return err
}
