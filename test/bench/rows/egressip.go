package rows

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	networkv1 "weft.dev/weft/api/openshift/v1"
	"weft.dev/weft/lab"
	"weft.dev/weft/lab/plan"
	"weft.dev/weft/test/bench/measure"
	"weft.dev/weft/test/bench/stage"
	"weft.dev/weft/test/probe"
	"weft.dev/weft/test/traffic"
)

const (
	failoverWall = "failover-wall"
	// failoverStep is the interval between connection attempts while a node dies.
	failoverStep = 5 * time.Millisecond
	// failoverTime is the duration of the attempts.
	failoverTime = 3 * time.Second
	// failoverAnswer is the time limit of an answer; it takes a millisecond.
	failoverAnswer = 500 * time.Millisecond
	outsidePort    = 7792
	leaving        = "bench-leaving" // the project that leaves by egress IPs
)

// Egress addresses, on the nodes' network.
const (
	egressOne = "172.31.0.100"
	egressTwo = "172.31.0.101"
)

// egressFailover makes a node with one of two egress IPs of a project die, by setting its link down. Meanwhile a pod of the project on
// another node connects to many destinations: connections to some of them are lost until all use the other address.
func egressFailover() Group {
	return Group{
		Title: "egress addresses: from the death of a node with a share until the last connection is lost",
		Rows: []measure.Row{
			{Name: "egress-ip/failover", Metric: failoverWall, Unit: "ms", Target: measure.AtMost(2000).Goal(500)},
		},
		run: func(ctx context.Context, b Bench, rows []measure.Row) (results []measure.Result, err error) {
			f := &failover{}
			defer func() { err = errors.Join(err, f.close(context.WithoutCancel(ctx), b.Stage)) }()
			if err := f.open(ctx, b.Stage); err != nil {
				return nil, err
			}
			return b.compare(ctx, rows, f.measure, nil)
		},
	}
}

// failover is a lab of three nodes: a pod on the first, and an egress IP on each of the others.
type failover struct {
	cluster *lab.Cluster
	pod     *lab.Pod
	outside []outside
}

// outside is a destination. All connections of a pod to one destination leave by the same node.
type outside struct {
	sourceServer *traffic.SourceServer
	at           netip.AddrPort
}

func (f *failover) open(ctx context.Context, st *stage.Stage) (err error) {
	f.cluster, err = st.Lab(ctx, stage.KindFailover, lab.Config{Nodes: 3, PluginName: networkv1.PluginMultitenant})
	if err != nil {
		return err
	}
	client, err := f.cluster.Client()
	if err != nil {
		return err
	}
	namespace := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: leaving}}
	if _, err := client.CoreV1().Namespaces().Create(ctx, namespace, metav1.CreateOptions{}); err != nil {
		return fmt.Errorf("make the namespace of the pod: %w", err)
	}
	if f.pod, err = probe.AddPod(ctx, f.cluster, lab.PodSpec{Node: "n1", Namespace: leaving, Name: "leaver"}); err != nil {
		return err
	}
	if err := f.crowd(ctx); err != nil {
		return err
	}
	_, err = probe.Await(ctx, probe.Patience, "egress IPs assigned", func(ctx context.Context) error {
		return errors.Join(f.set(ctx, "netnamespaces", leaving, egressOne, egressTwo), f.set(ctx, "hostsubnets", "n2", egressOne), f.set(ctx, "hostsubnets", "n3", egressTwo))
	})
	return err
}

// crowd adds many destinations outside, each with its own address.
func (f *failover) crowd(ctx context.Context) error {
	const first, many = 100, 24
	address := f.cluster.Outside.IP.As4()
	for i := range many {
		address[3] = byte(first + i)
		at := netip.AddrPortFrom(netip.AddrFrom4(address), outsidePort)
		add := []string{"nsenter", "--net=" + f.cluster.Outside.Netns, "--", "ip", "address", "add", at.Addr().String() + "/24", "dev", "eth0"}
		if _, err := probe.Run(ctx, add); err != nil {
			return err
		}
		sourceServer, err := traffic.NewSourceServer(f.cluster.Outside.Netns, "outside", at)
		if err != nil {
			return err
		}
		f.outside = append(f.outside, outside{sourceServer, at})
	}
	return nil
}

// set writes the egress IPs of an object.
func (f *failover) set(ctx context.Context, resource, name string, addresses ...string) error {
	objects, err := probe.Objects(f.cluster, networkv1.GroupName, resource)
	if err != nil {
		return err
	}
	patch, err := json.Marshal(map[string]any{"egressIPs": addresses})
	if err != nil {
		return fmt.Errorf("write the addresses of %s %s: %w", resource, name, err)
	}
	_, err = objects.Patch(ctx, name, types.MergePatchType, patch, metav1.PatchOptions{})
	return err
}

func (f *failover) close(ctx context.Context, st *stage.Stage) error {
	var errs []error
	for _, o := range f.outside {
		errs = append(errs, o.sourceServer.Close())
	}
	return errors.Join(append(errs, st.StrikeLab(ctx, stage.KindFailover))...)
}

// shared waits until connections leave by both nodes.
func (f *failover) shared(ctx context.Context) error {
	_, err := probe.Await(ctx, probe.Patience, "connections through both nodes", func(ctx context.Context) error {
		seen := map[string]int{}
		for _, o := range f.outside {
			answer, err := traffic.Ask(ctx, f.pod.Netns, "udp", o.at)
			if err != nil {
				return err
			}
			seen[answer.Source.String()]++
		}
		if seen[egressOne] == 0 || seen[egressTwo] == 0 || seen[egressOne]+seen[egressTwo] != len(f.outside) {
			return fmt.Errorf("the sources are %v", seen)
		}
		return nil
	})
	return err
}

// measure makes the second node die, and brings it back.
func (f *failover) measure(ctx context.Context) (figures measure.Figures, err error) {
	if err := f.shared(ctx); err != nil {
		return nil, err
	}
	node := f.cluster.Node(2)
	attempts := &attempts{}
	if _, err := probe.Run(ctx, node.Enter("ip", "link", "set", "eth0", "down")); err != nil {
		return nil, err
	}
	began := time.Now()
	defer func() {
		_, up := probe.Run(context.WithoutCancel(ctx), node.Enter("ip", "link", "set", "eth0", "up"))
		_, route := probe.Run(context.WithoutCancel(ctx), node.Enter("ip", "route", "replace", "default", "via", plan.New(plan.Config{}).Router.String()))
		err = errors.Join(err, up, route)
	}()
	attempts.try(ctx, f.pod.Netns, f.outside)
	over, known := attempts.over()
	if !known {
		return nil, fmt.Errorf("%s after a node's death, connections are still lost", failoverTime)
	}
	if over.Before(began) {
		return nil, errors.New("no connection was lost: the node did not die, or no connection left by it")
	}
	return measure.Figures{failoverWall: milliseconds(over.Sub(began))}, nil
}

// attempts are connections that are tried one after the other, without waiting for answers.
type attempts struct {
	mu  sync.Mutex
	all []attempt
}

type attempt struct {
	at       time.Time
	answered bool
}

func (a *attempts) try(ctx context.Context, from string, to []outside) {
	ticker := time.NewTicker(failoverStep)
	defer ticker.Stop()
	var running sync.WaitGroup
	defer running.Wait()
	began := time.Now()
	for i := 0; time.Since(began) < failoverTime; i++ {
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
		}
		at := time.Now()
		running.Go(func() {
			limited, cancel := context.WithTimeout(ctx, failoverAnswer)
			defer cancel()
			a.note(at, exchange(limited, from, to[i%len(to)].at) == nil)
		})
	}
}

func (a *attempts) note(at time.Time, answered bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.all = append(a.all, attempt{at, answered})
}

// over returns the time of the last loss before so many consecutive answers that every destination was reached. A single later loss is
// not caused by the node.
func (a *attempts) over() (last time.Time, known bool) {
	const enough = 50
	a.mu.Lock()
	defer a.mu.Unlock()
	slices.SortFunc(a.all, func(x, y attempt) int { return x.at.Compare(y.at) })
	run := 0
	for _, one := range a.all {
		if run++; !one.answered {
			last, run = one.at, 0
		}
		if run == enough {
			return last, true
		}
	}
	return last, false
}

// exchange sends a datagram from a port of its own, and waits for the answer.
func exchange(ctx context.Context, from string, to netip.AddrPort) error {
	conn, err := traffic.ListenUDP(from, netip.AddrPortFrom(netip.IPv4Unspecified(), 0))
	if err != nil {
		return err
	}
	defer func() { _ = conn.Close() }()
	if deadline, limited := ctx.Deadline(); limited {
		if err := conn.SetDeadline(deadline); err != nil {
			return err
		}
	}
	if _, err := conn.WriteToUDPAddrPort([]byte("source\n"), to); err != nil {
		return err
	}
	_, _, err = conn.ReadFromUDPAddrPort(make([]byte, 2048))
	return err
}
