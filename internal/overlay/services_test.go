package overlay

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"weft.dev/weft/internal/openflow"
	"weft.dev/weft/internal/overlay/pipeline"
	"weft.dev/weft/internal/overlay/pipeline/cookies"
	"weft.dev/weft/internal/reconcile"
	"weft.dev/weft/internal/service"
	"weft.dev/weft/internal/transport"
)

// tracked is the conntrack of a switch without connections: it records flushes.
type tracked struct {
	mu  sync.Mutex
	err error
	// FlushOutdated closes entered and then waits for hang; nil: it does not wait.
	hang, entered chan struct{}
	done          []openflow.CTFlush
	// flushed are the arguments of Flush.
	flushed []openflow.CTFlush
}

// FlushOutdated implements Connections.
func (c *tracked) FlushOutdated(_ context.Context, what []openflow.CTFlush) error {
	if c.hang != nil {
		close(c.entered)
		<-c.hang
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.err == nil {
		c.done = append(c.done, what...)
	}
	return c.err
}

// Flush implements Connections.
func (c *tracked) Flush(_ context.Context, what []openflow.CTFlush) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.err == nil {
		c.flushed = append(c.flushed, what...)
	}
	return c.err
}

func (c *tracked) fail(err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.err = err
}

// outdated returns the endpoints of the connections given to FlushOutdated, and clears them.
func (c *tracked) outdated() []string {
	c.mu.Lock()
	defer c.mu.Unlock()
	var list []string
	for _, f := range c.done {
		list = append(list, netip.AddrPortFrom(f.Reply.Src, f.Reply.SrcPort).String())
	}
	c.done = nil
	slices.Sort(list)
	return list
}

// svc returns a Service with one address and these endpoints.
func svc(name, ip string, kind service.Kind, protocol transport.Protocol, to ...string) (reconcile.Owner, Service) {
	v := service.VirtualAddress{
		Owner: service.Owner("ns", name), Kind: kind, IP: netip.MustParseAddr(ip), Protocol: protocol, Port: 80, Verdict: service.Reject,
	}
	for _, text := range to {
		at := netip.MustParseAddrPort(text)
		v.Verdict, v.Serving, v.Known = service.Forward, append(v.Serving, at), append(v.Known, at)
		v.Endpoints = append(v.Endpoints, service.Endpoint{Addr: at, Ready: true, Serving: true})
	}
	return v.Owner, Service{Addresses: []service.VirtualAddress{v}}
}

func (l *life) services(t tb, change ServiceChange) {
	t.Helper()
	if err := l.Services.Update(context.Background(), change); err != nil {
		t.Fatal(err)
	}
}

func one(owner reconcile.Owner, s Service) ServiceChange {
	return ServiceChange{Services: map[reconcile.Owner]Service{owner: s}}
}

// held returns the flows of an owner in the switch.
func (p programmed) held(t tb, owner reconcile.Owner) []string {
	t.Helper()
	all, err := p.at.flows.Read(context.Background())
	if err != nil {
		t.Fatal(err)
	}
	var list []string
	for _, entry := range all {
		if flow, ok := entry.(*openflow.Flow); ok && flow.Cookie == cookies.Of(owner) {
			list = append(list, flow.String())
		}
	}
	slices.Sort(list)
	return list
}

func groups(t tb, l *life) int {
	t.Helper()
	all, err := l.node.flows.Read(context.Background())
	if err != nil {
		t.Fatal(err)
	}
	n := 0
	for key := range all {
		if key.Group != 0 {
			n++
		}
	}
	return n
}

// A restart with the same Services changes nothing, and a change of a Service changes only that Service's flows.
func TestServicesSurviveARestart(t *testing.T) {
	web, webService := svc("web", "172.30.0.10", service.KindClusterIP, transport.TCP, "10.128.0.5:80", "10.128.2.5:80")
	dns, dnsService := svc("dns", "172.30.0.11", service.KindClusterIP, transport.UDP, "10.128.0.5:53")
	all := ServiceChange{
		Services: map[reconcile.Owner]Service{web: webService, dns: dnsService},
		Nodes:    &pipeline.NodeAddresses{Local: []netip.Addr{netip.MustParseAddr("192.0.2.1")}},
	}
	l := newNode(t.TempDir()).begin(t)
	t.Cleanup(l.stop)
	l.services(t, all)
	l.update(t, sample())
	before, commits := l.node.state(t), l.node.flows.Commits()
	if len(l.held(t, web)) == 0 || len(l.held(t, dns)) == 0 || len(l.held(t, pipeline.OwnerNodes)) == 0 || groups(t, l) != 2 {
		t.Fatalf("not there after the start:\n%s", before)
	}
	l.stop()
	next := l.node.begin(t)
	t.Cleanup(next.stop)
	next.services(t, all)
	next.update(t, sample())
	next.services(t, all)
	if now := next.node.state(t); now != before || next.node.flows.Commits() != commits {
		t.Errorf("%d commits in place of %d:\n%s\nwas\n%s", next.node.flows.Commits(), commits, now, before)
	}
	if flushed := next.node.tracked.outdated(); len(flushed) > 0 {
		t.Errorf("connections were flushed: %v", flushed)
	}
	next.services(t, one(web, Service{}))
	if len(next.held(t, web)) > 0 || len(next.held(t, dns)) == 0 || groups(t, next) != 1 {
		t.Errorf("one was withdrawn:\n%s", next.node.state(t))
	}
	// The network changes: the remaining Service is still served.
	view := sample()
	view.Cluster.VXLANPort = 4790
	next.update(t, view)
	if len(next.held(t, dns)) == 0 || groups(t, next) != 1 {
		t.Errorf("after a change of the cluster network:\n%s", next.node.state(t))
	}
}

// UDP connections to a removed endpoint are flushed once the flows are changed; a failed flush is retried.
func TestStaleConnectionsAreFlushed(t *testing.T) {
	l := start(t)
	owner, both := svc("dns", "172.30.0.11", service.KindClusterIP, transport.UDP, "10.128.0.5:53", "10.128.2.5:53")
	l.services(t, one(owner, both))
	l.node.tracked.outdated()
	_, left := svc("dns", "172.30.0.11", service.KindClusterIP, transport.UDP, "10.128.2.5:53")
	refusal := errors.New("refused")
	l.node.tracked.fail(refusal)
	if err := l.Services.Update(t.Context(), one(owner, left)); !errors.Is(err, refusal) {
		t.Errorf("the switch does not flush, and the error is %v", err)
	}
	l.node.tracked.fail(nil)
	l.services(t, ServiceChange{})
	if flushed := l.node.tracked.outdated(); !slices.Equal(flushed, []string{"10.128.0.5:53"}) {
		t.Errorf("flushed: %v", flushed)
	}
	l.services(t, ServiceChange{})
	if flushed := l.node.tracked.outdated(); len(flushed) > 0 {
		t.Errorf("flushed again: %v", flushed)
	}
}

// Once no Service has an endpoint at a port any more, connections to it are not tracked, and their entries are flushed: tracked again later,
// they would be invalid.
func TestFormerTargetsAreFlushed(t *testing.T) {
	l := start(t)
	web, webService := svc("web", "172.30.0.11", service.KindClusterIP, transport.TCP, "10.128.0.5:8080")
	other, otherService := svc("other", "172.30.0.12", service.KindClusterIP, transport.TCP, "10.128.0.6:8080")
	change := one(web, webService)
	change.Services[other] = otherService
	l.services(t, change)
	l.services(t, one(web, Service{}))
	if flushed := l.node.tracked.outdated(); len(flushed) > 0 {
		t.Errorf("flushed while another Service has the port: %v", flushed)
	}
	refusal := errors.New("refused")
	l.node.tracked.fail(refusal)
	if err := l.Services.Update(t.Context(), one(other, Service{})); !errors.Is(err, refusal) {
		t.Errorf("the switch does not flush, and the error is %v", err)
	}
	l.node.tracked.fail(nil)
	l.services(t, ServiceChange{})
	if done := l.node.tracked.done; len(done) != 1 || done[0].Proto != uint8(transport.TCP) || done[0].Reply != (openflow.CTTuple{SrcPort: 8080}) {
		t.Errorf("flushed: %v", done)
	}
	l.node.tracked.outdated()
	l.services(t, one(web, webService))
	l.node.tracked.fail(refusal)
	if err := l.Services.Update(t.Context(), one(web, Service{})); !errors.Is(err, refusal) {
		t.Errorf("the switch does not flush, and the error is %v", err)
	}
	l.node.tracked.fail(nil)
	l.services(t, one(web, webService))
	if flushed := l.node.tracked.outdated(); len(flushed) > 0 {
		t.Errorf("flushed although a Service has the port again: %v", flushed)
	}
}

// A flow that the switch refuses blocks neither other Services nor their connections.
func TestOneServiceFails(t *testing.T) {
	l := start(t)
	bad, badService := svc("bad", "172.30.0.12", service.KindClusterIP, transport.UDP, "10.128.0.5:53")
	good, goodService := svc("good", "172.30.0.11", service.KindClusterIP, transport.UDP, "10.128.0.5:53")
	l.services(t, one(good, goodService))
	l.node.tracked.outdated()
	refuse := func(change reconcile.Change[openflow.Key, openflow.Entry]) error {
		for _, entry := range change.Set {
			if flow, ok := entry.(*openflow.Flow); ok && flow.Cookie == cookies.Of(bad) {
				return errors.New("no")
			}
		}
		return nil
	}
	l.node.flowEngine.refuse(refuse)
	change := one(bad, badService)
	change.Services[good] = Service{}
	if err := l.Services.Update(t.Context(), change); err == nil {
		t.Error("nothing is said of the Service that fails")
	}
	if flushed := l.node.tracked.outdated(); !slices.Equal(flushed, []string{"10.128.0.5:53"}) || len(l.held(t, good)) > 0 {
		t.Errorf("flushed: %v, flows: %v", flushed, l.held(t, good))
	}
	l.node.flowEngine.refuse(nil)
	eventually(t, "the Service is there once the switch takes it", func() bool { return len(l.held(t, bad)) > 0 })
}

// An address belongs to one Service: an assignment of the API server comes first, then one of a load balancer, then the older Service. The
// Service that gave way gets the address once the other is gone.
func TestOneAddressOneService(t *testing.T) {
	warned := map[reconcile.Owner]string{}
	l := newNode(t.TempDir()).begin(t)
	t.Cleanup(l.stop)
	l.opts.ServiceWarnings = func(owner reconcile.Owner, warnings []error) {
		warned[owner] = ""
		for _, err := range warnings {
			warned[owner] += err.Error()
		}
	}
	l.update(t, sample())
	now := time.Now()
	old, oldService := svc("old", "203.0.113.7", service.KindExternalIP, transport.TCP, "10.128.0.5:80")
	oldService.Created = now.Add(-time.Hour)
	thief, thiefService := svc("a-thief", "203.0.113.7", service.KindExternalIP, transport.TCP, "10.128.0.66:80")
	thiefService.Created = now
	balanced, balancedService := svc("balanced", "203.0.113.7", service.KindLoadBalancer, transport.TCP, "10.128.0.6:80")
	balancedService.Created = now
	has := func(owner reconcile.Owner, want bool) {
		t.Helper()
		if have := len(l.held(t, owner)) > 0; have != want {
			t.Errorf("%s has the address: %v", owner, have)
		}
	}
	l.services(t, one(thief, thiefService))
	has(thief, true)
	l.services(t, one(old, oldService))
	has(thief, false)
	has(old, true)
	if !strings.Contains(warned[thief], string(old)+" has it") || warned[old] != "" {
		t.Errorf("reported: %v", warned)
	}
	l.services(t, one(balanced, balancedService))
	has(old, false)
	has(balanced, true)
	l.services(t, one(balanced, Service{}))
	has(old, true)
	l.services(t, one(old, Service{}))
	has(thief, true)
	if warned[thief] != "" {
		t.Errorf("still reported: %v", warned)
	}
	if commits := l.node.flows.Commits(); groups(t, l) != 1 {
		t.Errorf("%d groups after %d commits", groups(t, l), commits)
	}
}

// The switch leaves to the host the cluster IPs of Services that another proxy serves, and of ports that it cannot serve; a Service that it
// serves has no such flow.
func TestClusterIPsLeftToTheHost(t *testing.T) {
	l := start(t)
	l.opts.ServiceWarnings = func(reconcile.Owner, []error) {}
	left := func(owner reconcile.Owner) bool {
		return slices.ContainsFunc(l.held(t, owner), func(flow string) bool { return strings.Contains(flow, "table=60") })
	}
	proxied := service.Owner("ns", "proxied")
	l.services(t, one(proxied, Service{Host: []netip.Addr{netip.MustParseAddr("172.30.0.8")}}))
	own, ownService := svc("own", "172.30.0.9", service.KindClusterIP, transport.TCP, "172.30.0.9:80") // its endpoint is the address itself
	l.services(t, one(own, ownService))
	served, servedService := svc("served", "172.30.0.10", service.KindClusterIP, transport.TCP, "10.128.0.5:80")
	l.services(t, one(served, servedService))
	if !left(proxied) || !left(own) || left(served) {
		t.Errorf("left to the host: another proxy's %t, an endless one %t, a served one %t; want true, true, false", left(proxied), left(own), left(served))
	}
	l.services(t, one(proxied, Service{}))
	if left(proxied) || l.Services.Len() != 2 {
		t.Errorf("of a Service that is gone: %v; %d Services are kept", l.held(t, proxied), l.Services.Len())
	}
}

// A Service that merely names an address of a node, a pod or another Service does not get it.
func TestNamedAddressesHijackNothing(t *testing.T) {
	warned := map[reconcile.Owner]string{}
	l := newNode(t.TempDir()).begin(t)
	t.Cleanup(l.stop)
	l.opts.ServiceWarnings = func(owner reconcile.Owner, warnings []error) { warned[owner] = fmt.Sprint(errors.Join(warnings...)) }
	l.services(t, ServiceChange{Nodes: &pipeline.NodeAddresses{
		Local: []netip.Addr{netip.MustParseAddr("192.0.2.1")}, Others: []netip.Addr{netip.MustParseAddr("192.0.2.2")},
	}})
	l.update(t, sample())
	api, apiService := svc("kubernetes", "172.30.0.1", service.KindClusterIP, transport.TCP, "192.0.2.2:6443")
	l.services(t, one(api, apiService))
	before := l.node.state(t)
	for ip, why := range map[string]string{
		"192.0.2.1": "a node's", "192.0.2.2": "a node's", "10.128.0.1": "a pod's", "10.129.3.4": "a pod's",
		"172.30.0.1": "Services' network", "172.30.0.99": "Services' network",
	} {
		for _, kind := range []service.Kind{service.KindExternalIP, service.KindLoadBalancer} {
			owner, hostile := svc("hostile", ip, kind, transport.TCP, "10.128.0.66:80")
			l.services(t, one(owner, hostile))
			if held := l.held(t, owner); len(held) > 0 || !strings.Contains(warned[owner], why) {
				t.Errorf("%s: %v, reported: %q", ip, held, warned[owner])
			}
			if now := l.node.state(t); now != before {
				t.Errorf("%s: something changed:\n%s\nwas\n%s", ip, now, before)
			}
		}
	}
	// A node gets an address that a Service named before.
	owner, external := svc("external", "203.0.113.9", service.KindExternalIP, transport.TCP, "10.128.0.66:80")
	l.services(t, one(owner, external))
	if len(l.held(t, owner)) == 0 {
		t.Error("an unused address is not served")
	}
	l.services(t, ServiceChange{Nodes: &pipeline.NodeAddresses{Local: []netip.Addr{netip.MustParseAddr("203.0.113.9")}}})
	if held := l.held(t, owner); len(held) > 0 {
		t.Errorf("a node's address is taken: %v", held)
	}
}

// The ports of endpoints are tracked as long as any Service has an endpoint there, in any state: it may have connections.
func TestTargetsFollowEndpoints(t *testing.T) {
	l := start(t)
	ports := func() int { return len(l.held(t, pipeline.OwnerTargets)) }
	web, both := svc("web", "172.30.0.10", service.KindClusterIP, transport.TCP, "10.128.0.5:8080", "10.128.2.5:8080")
	l.services(t, one(web, both))
	other, same := svc("other", "172.30.0.11", service.KindClusterIP, transport.TCP, "10.128.2.6:8080")
	l.services(t, one(other, same))
	if n := ports(); n != 2 { // for both directions
		t.Errorf("%d flows for one port of two Services", n)
	}
	_, unready := svc("web", "172.30.0.10", service.KindClusterIP, transport.TCP)
	unready.Addresses[0].Known = both.Addresses[0].Known
	l.services(t, one(web, unready))
	l.services(t, one(other, Service{}))
	if n := ports(); n != 2 {
		t.Errorf("%d flows for the port of endpoints that are not ready", n)
	}
	l.services(t, one(web, Service{}))
	if n := ports(); n != 0 {
		t.Errorf("%d flows, and no Service is left", n)
	}
	host, hosts := svc("host", "172.30.0.12", service.KindClusterIP, transport.TCP, "192.0.2.1:6443", "192.0.2.2:6443")
	l.services(t, one(host, hosts))
	if n := ports(); n != 4 {
		t.Errorf("%d flows for two hosts' addresses", n)
	}
}

// Any sequence of changes leads to the same state as the last objects alone.
func TestServicesConverge(t *testing.T) {
	l := start(t)
	kinds := []service.Kind{service.KindClusterIP, service.KindExternalIP, service.KindLoadBalancer}
	last := map[reconcile.Owner]Service{}
	for i := range 200 {
		name := string(rune('a' + i*7%5))
		owner, s := svc(name, []string{"203.0.113.1", "203.0.113.2"}[i*3%2], kinds[i*5%3], transport.UDP, "10.128.0.5:53", "10.128.2.5:53")
		s.Created = time.Unix(int64(i*11%7), 0)
		if i%4 == 3 {
			s = Service{}
		}
		last[owner] = s
		l.services(t, one(owner, s))
	}
	maps.DeleteFunc(last, func(_ reconcile.Owner, s Service) bool { return len(s.Addresses) == 0 })
	fresh := newNode(t.TempDir()).begin(t)
	t.Cleanup(fresh.stop)
	fresh.services(t, ServiceChange{Services: last})
	fresh.update(t, sample())
	if have, want := l.node.flows.String(), fresh.node.flows.String(); have != want {
		t.Errorf("has\n%s\nwant\n%s", have, want)
	}
	if n := l.Services.Len(); n != len(last) {
		t.Errorf("%d Services are known, want %d", n, len(last))
	}
}
