//go:build real

package node_test

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/containernetworking/plugins/pkg/ns"
	"github.com/containernetworking/plugins/pkg/testutils"
	"github.com/vishvananda/netlink"

	weftv1 "weft.dev/weft/api/weft/v1"
	"weft.dev/weft/internal/attach"
	"weft.dev/weft/internal/flannel/daemon"
	"weft.dev/weft/internal/flannel/host"
	"weft.dev/weft/internal/flannel/judge"
	"weft.dev/weft/internal/flannel/node"
	"weft.dev/weft/internal/link"
	"weft.dev/weft/internal/link/marked"
	"weft.dev/weft/internal/link/notify"
	"weft.dev/weft/internal/link/podveth"
	"weft.dev/weft/internal/network"
	"weft.dev/weft/internal/network/networktest"
	"weft.dev/weft/internal/nft"
	"weft.dev/weft/internal/nft/ruleset"
	machine "weft.dev/weft/internal/node"
	"weft.dev/weft/internal/placement"
	"weft.dev/weft/internal/reconcile"
)

const listenPort = 7001

// fixed is a node's lease that is in effect at once.
type fixed struct{ state daemon.State }

func (f fixed) Run(ctx context.Context, established func(daemon.State)) error {
	established(f.state)
	<-ctx.Done()
	return ctx.Err()
}

func (fixed) Ready() error { return nil }

// open is a judge of a cluster without NetworkPolicies.
type open struct{ handed chan struct{} }

func newOpen() open {
	o := open{make(chan struct{})}
	close(o.handed)
	return o
}

func (o open) Run(ctx context.Context) error          { <-ctx.Done(); return ctx.Err() }
func (o open) HandedOver() <-chan struct{}            { return o.handed }
func (open) Admit(context.Context, []judge.Pod) error { return nil }
func (open) Dismiss([]attach.Key)                     {}
func (open) Left([]attach.Key)                        {}
func (open) Alone()                                   {}

func dual() daemon.State {
	return daemon.State{
		Networks: [2]netip.Prefix{netip.MustParsePrefix("10.244.0.0/16"), netip.MustParsePrefix("fd00:244::/48")},
		Subnets:  [2]netip.Prefix{netip.MustParsePrefix("10.244.3.0/24"), netip.MustParsePrefix("fd00:244:0:3::/64")},
		MTU:      1430, Masq: true,
	}
}

// space creates a network namespace for the duration of the test.
func space(t *testing.T) ns.NetNS {
	t.Helper()
	made, err := testutils.NewNS()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = errors.Join(made.Close(), testutils.UnmountNS(made)) })
	return made
}

// machineSpace is a node's namespace with a port that answers.
func machineSpace(t *testing.T) ns.NetNS {
	t.Helper()
	made := space(t)
	var listener net.Listener
	err := made.Do(func(ns.NetNS) error {
		lo, err := netlink.LinkByName("lo")
		if err != nil {
			return err
		}
		if err := netlink.LinkSetUp(lo); err != nil {
			return err
		}
		listener, err = net.Listen("tcp", fmt.Sprintf(":%d", listenPort))
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = listener.Close() })
	go func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			_ = conn.Close()
		}
	}()
	return made
}

// reaches returns nil if a pod connects to an address of the node. A connection that should succeed has time for lost SYNs: the kernel
// repeats them after 1 s, 3 s, 7 s and 15 s.
func reaches(t *testing.T, netns string, to netip.Addr, want bool) error {
	t.Helper()
	within := time.Second
	if want {
		within = 30 * time.Second
	}
	pod, err := ns.GetNS(netns)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = pod.Close() }()
	return pod.Do(func(ns.NetNS) error {
		conn, err := net.DialTimeout("tcp", netip.AddrPortFrom(to, listenPort).String(), within)
		if err != nil {
			return err
		}
		return conn.Close()
	})
}

// stage is a node on which agents start and stop.
type stage struct {
	// tunnel is that of the node's lease, whose rules start makes.
	tunnel host.Tunnel
	space  ns.NetNS
	dir    string
	boot   string
	state  daemon.State
	conf   string
	judge  func() (node.Judge, error)
	// links and network are those of the last agent.
	links   *machine.LinkLoop
	network *node.Network
	// annotations are those of the pods of serve's agents.
	annotations map[string]string
	// report and conflict receive what agents report.
	report   func(weftv1.NodeNetworkSection)
	conflict func(rec *attach.Record, why error)
	// watched makes agents follow events of links; their loops compare nothing without one.
	watched bool
}

func newStage(t *testing.T) *stage {
	t.Helper()
	boot, err := attach.ReadBootID()
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	return &stage{tunnel: host.Tunnel{Port: 8472}, space: machineSpace(t), dir: dir, boot: boot, state: dual(), judge: func() (node.Judge, error) { return newOpen(), nil }, conf: fmt.Sprintf(
		`{"name":"cbr0","cniVersion":"1.0.0","plugins":[{"type":"flannel","dataDir":%q,"ipam":{"dataDir":%q},`+
			`"delegate":{"hairpinMode":true,"isDefaultGateway":true}}]}`, filepath.Join(dir, "flannel"), filepath.Join(dir, "networks"))}
}

// watchers are the callbacks of a node's WatchLinks.
type watchers struct {
	mu        sync.Mutex
	callbacks []func(notify.Drift)
}

func (w *watchers) add(callback func(notify.Drift)) (stop func()) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.callbacks = append(w.callbacks, callback)
	return func() {}
}

// follow does what an agent does for events of links, if it is watched, until ctx ends.
func (w *watchers) follow(ctx context.Context, t *testing.T, watched bool, engine *marked.Engine, loop *machine.LinkLoop) {
	if !watched {
		return
	}
	drifts, err := engine.Watch(ctx)
	if err != nil {
		t.Error(err)
		return
	}
	for drift := range drifts {
		if drift.Err != nil {
			t.Error(drift.Err)
		}
		w.mu.Lock()
		for _, callback := range w.callbacks {
			callback(drift)
		}
		w.mu.Unlock()
		if drift.End == nil {
			loop.Resync()
		}
	}
}

// start returns the network of an agent that has just started, on the node's engines.
func (s *stage) start(ctx context.Context, t *testing.T, records network.Records) (network.Network, network.Runner) {
	t.Helper()
	pass := func(context.Context, string, []nft.Traffic) error { return nil }
	var callbacks watchers
	n := &machine.Node{Pass: pass, WatchLinks: callbacks.add, Name: "n", BootID: s.boot, RunDir: s.dir, StateDir: s.dir}
	var links *marked.Engine
	var rules, leases *ruleset.Engine
	var pods *podveth.Pods
	var made *node.Network
	err := s.space.Do(func(ns.NetNS) error {
		var errs [7]error
		links, errs[0] = marked.New(marked.Options{})
		rules, errs[1] = ruleset.NewEngine(ruleset.Options{Tables: node.Tables()})
		pods, errs[2] = podveth.New()
		n.Pods = pods
		n.Links = reconcile.NewLoop(links, reconcile.Options[link.Key, link.Item]{Name: "link"})
		s.links = n.Links
		n.Rules = reconcile.NewLoop(rules, reconcile.Options[nft.Key, nft.Item]{Name: "nft"})
		// The lease's rules, as the daemon makes them.
		leases, errs[5] = ruleset.NewEngine(ruleset.Options{Tables: host.Tables()})
		config := host.Config{Tunnel: s.tunnel, Pods: host.Pods{Bridge: "cni0", Closed: []uint16{4789, 6081}}}
		for i := range config.Families {
			config.Families[i] = host.Family{Network: s.state.Networks[i], Subnet: s.state.Subnets[i]}
		}
		desired := config.Rules()
		for last := range byte(10) { // as if the addresses of the node and its pods were nodes': so only the pods' rules drop their packets
			maps.Copy(desired, config.Node([2]netip.Addr{netip.AddrFrom4([4]byte{10, 244, 3, last})}))
		}
		have, err := leases.Read(ctx)
		errs[6] = errors.Join(err, leases.Commit(ctx, reconcile.Diff(desired, have)))
		var judge node.Judge
		judge, errs[4] = s.judge()
		made, errs[3] = node.New(node.Options{
			Node: n, Records: records, Leases: fixed{s.state}, Judge: judge, Changed: func() {}, Report: s.report, Conflict: s.conflict,
			Conf: func(context.Context) ([]byte, error) { return []byte(s.conf), nil },
		})
		return errors.Join(errs[:]...)
	})
	if err != nil {
		t.Fatal(err)
	}
	s.network = made
	done := make(chan struct{}, 3)
	go func() { _ = n.Links.Run(ctx); done <- struct{}{} }()
	go func() { _ = n.Rules.Run(ctx); done <- struct{}{} }()
	go func() { callbacks.follow(ctx, t, s.watched, links, n.Links); done <- struct{}{} }()
	t.Cleanup(func() {
		<-done
		<-done
		<-done
		links.Close()
		pods.Close()
		rules.Close()
		leases.Close()
	})
	return made, made
}

// TestConformance: the network passes the suite of all networks, with IPv4 and IPv6, in the kernel.
func TestConformance(t *testing.T) {
	networktest.RunConformance(t, func(t *testing.T) networktest.Subject {
		s := newStage(t)
		return networktest.Subject{
			Name: node.Name, At: placement.Decision{Network: node.Name, Reason: "the test"}, BootID: s.boot, Start: s.start,
			Netns: func(t *testing.T) string { return space(t).Path() },
			Connected: func(t *testing.T, netns string, rec attach.Record, want bool) {
				t.Helper()
				for _, gw := range rec.Gateway {
					if err := reaches(t, netns, gw, want); (err == nil) != want {
						t.Errorf("the pod reaches %s of its node: %v, want %t", gw, err, want)
					}
				}
				for _, address := range rec.Addresses {
					_, err := os.Stat(filepath.Join(s.dir, "networks", "cbr0", address.Addr().String()))
					if want && err != nil {
						t.Errorf("host-local's file of %s: %v", address, err)
					}
				}
			},
		}
	})
}
