package pipeline_test

import (
	"cmp"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"weft.dev/weft/internal/goldentest"
	"weft.dev/weft/internal/openflow"
	"weft.dev/weft/internal/overlay/pipeline"
	"weft.dev/weft/internal/overlay/pipeline/cookies"
	"weft.dev/weft/internal/overlay/pipeline/groupid"
	"weft.dev/weft/internal/reconcile"
	"weft.dev/weft/internal/service"
	"weft.dev/weft/internal/transport"
)

func endpoints(texts ...string) []service.Endpoint {
	var list []service.Endpoint
	for _, text := range texts {
		list = append(list, service.Endpoint{Addr: netip.MustParseAddrPort(text), Ready: true, Serving: true})
	}
	return list
}

func vip(name, ip string, protocol transport.Protocol, port uint16, to ...string) service.VirtualAddress {
	v := service.VirtualAddress{Owner: service.Owner("ns", name), IP: netip.MustParseAddr(ip), Protocol: protocol, Port: port, Endpoints: endpoints(to...)}
	if len(to) == 0 {
		v.Verdict = service.Reject
	}
	return v
}

// sampleServices returns Services of the sample, one of each kind.
func sampleServices() []service.VirtualAddress {
	with := func(v service.VirtualAddress, change func(*service.VirtualAddress)) service.VirtualAddress {
		change(&v)
		return v
	}
	nodePort := func(v *service.VirtualAddress) {
		v.Kind, v.IP, v.Verdict = service.KindNodePort, netip.Addr{}, service.Forward
	}
	web := []string{"10.128.0.5:8080", "10.128.0.6:8080", "10.129.0.7:8080"}
	return []service.VirtualAddress{
		vip("web", "172.30.0.10", transport.TCP, 80, web...),
		with(vip("web", "192.0.2.50", transport.TCP, 80, web...), func(v *service.VirtualAddress) { v.Kind = service.KindExternalIP }),
		with(vip("web", "192.0.2.60", transport.TCP, 80, web...), func(v *service.VirtualAddress) {
			v.Kind, v.SourceRanges = service.KindLoadBalancer, []netip.Prefix{netip.MustParsePrefix("10.128.0.6/32")}
		}),
		with(vip("web", "172.30.0.1", transport.TCP, 30080, web...), nodePort),
		with(vip("here", "172.30.0.1", transport.TCP, 30081, "10.128.0.6:8080"), func(v *service.VirtualAddress) { nodePort(v); v.OnlyThisNode = true }),
		vip("dns", "172.30.0.2", transport.UDP, 53, "10.128.0.5:5353", "10.128.0.6:5353"),
		vip("signal", "172.30.0.3", transport.SCTP, 3868, "10.128.0.6:3868"),
		vip("kubernetes", "172.30.0.1", transport.TCP, 443, "192.0.2.2:6443"),
		vip("self", "172.30.0.11", transport.TCP, 80, "10.128.0.5:8080"),
		with(vip("sticky", "172.30.0.12", transport.TCP, 80, "10.128.0.5:8080", "10.128.0.6:8080"), func(v *service.VirtualAddress) { v.Affinity = 3 * time.Second }),
		vip("none", "172.30.0.13", transport.TCP, 80),
		with(vip("elsewhere", "172.30.0.14", transport.TCP, 80), func(v *service.VirtualAddress) { v.Verdict = service.Drop }),
		with(vip("asleep", "172.30.0.15", transport.TCP, 80), func(v *service.VirtualAddress) { v.Verdict = service.Wake }),
		with(vip("asleep", "172.30.0.15", transport.UDP, 53), func(v *service.VirtualAddress) { v.Verdict = service.Wake }),
		with(vip("asleep", "172.30.0.15", transport.TCP, 30082), func(v *service.VirtualAddress) { nodePort(v); v.Verdict = service.Wake }),
	}
}

func sampleNodes() pipeline.NodeAddresses {
	return pipeline.NodeAddresses{Local: addrs("192.0.2.1"), Others: addrs("192.0.2.2", "192.0.2.3", "fd00::1", "10.129.0.1")}
}

type serviceSection struct {
	owner string
	pipeline.ServiceRules
}

// serviceSections compiles addresses by owner, in the owners' order.
func serviceSections(c *pipeline.Config, list []service.VirtualAddress) []serviceSection {
	byOwner := map[reconcile.Owner][]service.VirtualAddress{}
	for _, v := range list {
		byOwner[v.Owner] = append(byOwner[v.Owner], v)
	}
	var ids groupid.IDs
	sections := []serviceSection{
		{"nodes", pipeline.ServiceRules{Rules: pipeline.Services{Config: c}.NodesRules(sampleNodes())}}, {"targets", pipeline.ServiceRules{Rules: pipeline.Services{Config: c}.TargetsRules(targets(c, list))}},
	}
	for _, owner := range slices.Sorted(maps.Keys(byOwner)) {
		sections = append(sections, serviceSection{string(owner), pipeline.Services{Config: c}.Rules(byOwner[owner], &ids)})
	}
	return sections
}

// targets returns the targets of the addresses' endpoints, each once, in their order.
func targets(c *pipeline.Config, list []service.VirtualAddress) []pipeline.Target {
	var found []pipeline.Target
	for _, v := range list {
		for _, e := range v.Endpoints {
			if t := (pipeline.Services{Config: c}).Target(v.Protocol, e.Addr); !slices.Contains(found, t) {
				found = append(found, t)
			}
		}
	}
	return found
}

func serviceState(c *pipeline.Config, list []service.VirtualAddress) map[openflow.Key]openflow.Entry {
	state := map[openflow.Key]openflow.Entry{}
	for _, s := range serviceSections(c, list) {
		maps.Copy(state, s.Fragment())
	}
	return state
}

func TestServiceFlows(t *testing.T) {
	var b strings.Builder
	for _, s := range serviceSections(sample(true), sampleServices()) {
		fmt.Fprintf(&b, "# %s\n", s.owner)
		for _, r := range s.Rules {
			fmt.Fprintf(&b, "%s\n", r.Flow)
			if err := r.Flow.Validate(); err != nil || r.Purpose == "" {
				t.Errorf("%s: %v, purpose %q", r.Flow, err, r.Purpose)
			}
		}
		for _, g := range s.Groups {
			fmt.Fprintf(&b, "%s\n", g)
			if err := g.Validate(); err != nil {
				t.Error(err)
			}
		}
	}
	goldentest.Compare(t, "testdata/services.flows", b.String())
}

// change returns the difference of the flows when a Service's endpoints change.
func change(t *testing.T, before, after service.VirtualAddress) reconcile.Change[openflow.Key, openflow.Entry] {
	t.Helper()
	c := sample(true)
	var ids groupid.IDs
	of := func(v service.VirtualAddress) map[openflow.Key]openflow.Entry {
		return pipeline.Services{Config: c}.Flows([]service.VirtualAddress{v}, &ids)
	}
	return reconcile.Diff(of(after), of(before))
}

// Adding or removing an endpoint changes only the group. Others keep their buckets' numbers.
func TestOneEndpointIsOneGroup(t *testing.T) {
	before := vip("web", "172.30.0.10", transport.TCP, 80, "10.128.0.5:80", "10.128.0.6:80", "10.129.0.7:80")
	for _, after := range []service.VirtualAddress{
		vip("web", "172.30.0.10", transport.TCP, 80, "10.128.0.6:80", "10.129.0.7:80"),
		vip("web", "172.30.0.10", transport.TCP, 80, "10.128.0.5:80", "10.128.0.6:80", "10.128.0.9:80", "10.129.0.7:80"),
	} {
		diff := change(t, before, after)
		if len(diff.Set) != 1 || len(diff.Delete) != 0 {
			t.Errorf("change is %v", diff)
		}
		for key := range diff.Set {
			if key.Group == 0 {
				t.Errorf("a flow changes: %s", key)
			}
		}
	}
	sticky := before
	sticky.Affinity = time.Minute
	without := sticky
	without.Endpoints = sticky.Endpoints[1:]
	if diff := change(t, sticky, without); len(diff.Set) != 1 || len(diff.Delete) != 1 {
		t.Errorf("with affinity: change is %v", diff)
	}
	if diff := change(t, before, before); !diff.Empty() {
		t.Errorf("nothing changes, and yet %v", diff)
	}
}

// For any endpoints: a bucket's number depends only on its endpoint, shares differ little, and the groups are valid.
func TestGroupsProperty(t *testing.T) {
	c := sample(true)
	rapid.Check(t, func(r *rapid.T) {
		n := rapid.IntRange(1, 300).Draw(r, "endpoints")
		first := rapid.Uint32Range(0x0a810000, 0x0a820000).Draw(r, "first")
		var to []string
		for i := range n {
			at := first + uint32(i)
			to = append(to, netip.AddrPortFrom(netip.AddrFrom4([4]byte{byte(at >> 24), byte(at >> 16), byte(at >> 8), byte(at)}), 80).String())
		}
		var ids groupid.IDs
		groups := func(texts []string) *openflow.Group {
			rules := pipeline.Services{Config: c}.Rules([]service.VirtualAddress{vip("web", "172.30.0.10", transport.TCP, 80, texts...)}, &ids)
			if len(rules.Groups) != 1 {
				r.Fatalf("%d groups", len(rules.Groups))
			}
			if err := rules.Groups[0].Validate(); err != nil {
				r.Fatal(err)
			}
			return rules.Groups[0]
		}
		number := func(g *openflow.Group) (map[string]uint32, map[string]int) {
			byAction, weight := map[string]uint32{}, map[string]int{}
			for _, b := range g.Buckets {
				byAction[b.Actions[0].String()] = max(b.ID, byAction[b.Actions[0].String()])
				weight[b.Actions[0].String()] += int(b.Weight)
			}
			return byAction, weight
		}
		all, weights := number(groups(to))
		if len(all) != n {
			r.Fatalf("%d endpoints in %d buckets", n, len(all))
		}
		for action, w := range weights {
			if w != weights[groups(to).Buckets[0].Actions[0].String()] {
				r.Fatalf("%s weighs %d", action, w)
			}
		}
		if n == 1 {
			return
		}
		gone := rapid.IntRange(0, n-1).Draw(r, "gone")
		rest, _ := number(groups(slices.Delete(slices.Clone(to), gone, gone+1)))
		for action, id := range rest {
			if all[action] != id && n > 2 { // a single endpoint has no number
				r.Fatalf("%s has bucket %d, had %d", action, id, all[action])
			}
		}
	})
}

// If there are more endpoints than fit a group, each node uses a different part that fits.
func TestManyEndpoints(t *testing.T) {
	var to []string
	for i := range 3000 {
		to = append(to, fmt.Sprintf("10.129.%d.%d:80", i/250, i%250+1))
	}
	used := func(node string, affinity time.Duration) (map[string]bool, *openflow.Group) {
		c := sample(true)
		c.NodeIP = netip.MustParseAddr(node)
		v := vip("web", "172.30.0.10", transport.TCP, 80, to...)
		v.Affinity = affinity
		group := pipeline.Services{Config: c}.Rules([]service.VirtualAddress{v}, &groupid.IDs{}).Groups[0]
		set := map[string]bool{}
		for _, b := range group.Buckets {
			set[b.Actions.String()] = true
		}
		return set, group
	}
	for _, affinity := range []time.Duration{0, time.Hour} {
		one, group := used("192.0.2.1", affinity)
		other, _ := used("192.0.2.2", affinity)
		if err := group.Validate(); err != nil || len(one) != pipeline.MaxEndpoints {
			t.Errorf("%d endpoints: %v", len(one), err)
		}
		common := 0
		for action := range one {
			if other[action] {
				common++
			}
		}
		if common > pipeline.MaxEndpoints/2 {
			t.Errorf("two nodes share %d of %d", common, len(one))
		}
	}
}

func TestUnusableVirtualAddresses(t *testing.T) {
	c := sample(true)
	for name, v := range map[string]service.VirtualAddress{
		"a pod's address":    vip("x", "10.128.0.6", transport.TCP, 80, "10.128.0.5:80"),
		"the gateway's":      vip("x", "10.128.0.1", transport.TCP, 80, "10.128.0.5:80"),
		"IPv6":               vip("x", "fd00::1", transport.TCP, 80, "10.128.0.5:80"),
		"another node's pod": vip("x", "10.131.0.6", transport.TCP, 80, "10.128.0.5:80"),
	} {
		if (pipeline.Services{Config: c}).Check(&v) == nil || len(pipeline.Services{Config: c}.Flows([]service.VirtualAddress{v}, &groupid.IDs{})) != 0 {
			t.Errorf("%s: has flows or no error", name)
		}
	}
	c.SCTP = false
	if v := vip("x", "172.30.0.3", transport.SCTP, 80, "10.128.0.5:80"); (pipeline.Services{Config: c}).Check(&v) == nil {
		t.Error("SCTP is served where the datapath does not track it")
	}
	nodePort := vip("x", "0.0.0.0", transport.TCP, 30080, "192.0.2.2:30080")
	nodePort.Kind, nodePort.IP = service.KindNodePort, netip.Addr{}
	for name, v := range map[string]service.VirtualAddress{
		"an endpoint that is the address":        vip("x", "198.51.100.9", transport.UDP, 80, "10.128.0.5:80", "198.51.100.9:80"),
		"an endpoint that is the cluster IP":     vip("x", "172.30.0.9", transport.TCP, 80, "172.30.0.9:80"),
		"an endpoint at a host, at its own port": nodePort,
	} {
		c.KeepApart = true
		if err := (pipeline.Services{Config: c}).Check(&v); err != nil {
			t.Errorf("%s: %v", name, err)
		}
		c.KeepApart = false
		if (pipeline.Services{Config: c}).Check(&v) == nil || len(pipeline.Services{Config: c}.Flows([]service.VirtualAddress{v}, &groupid.IDs{})) != 0 {
			t.Errorf("%s: has flows or no error where the datapath cannot bear it", name)
		}
	}
	off := sample(false)
	if len(serviceState(off, sampleServices())) != 0 {
		t.Error("without connection tracking there are Services")
	}
}

func TestServiceOwnersDoNotMeet(t *testing.T) {
	c := sample(true)
	seen := map[string]string{}
	meet := func(key, owner string) {
		if other, ok := seen[key]; ok {
			t.Errorf("%s of %s is already %s's", key, owner, other)
		}
		seen[key] = owner
	}
	for _, s := range sections(c) {
		for _, r := range s.rules {
			meet(r.Flow.Key().String(), s.owner)
		}
	}
	for _, s := range serviceSections(c, sampleServices()) {
		for _, r := range s.Rules {
			meet(r.Flow.Key().String(), s.owner)
			if r.Flow.Cookie != cookies.Of(reconcile.Owner(s.owner)) {
				t.Errorf("%s has not the cookie of %s", r.Flow, s.owner)
			}
		}
		for _, g := range s.Groups {
			meet(g.Key().String(), s.owner)
		}
	}
}

func sortedEntries(state map[openflow.Key]openflow.Entry) []openflow.Entry {
	return slices.SortedFunc(maps.Values(state), func(x, y openflow.Entry) int { return cmp.Compare(x.Key().String(), y.Key().String()) })
}

// The same objects give the same bytes.
func TestServicesAreTheSameEachTime(t *testing.T) {
	text := func() string {
		var b strings.Builder
		for _, e := range sortedEntries(serviceState(sample(true), sampleServices())) {
			b.WriteString(e.String() + "\n")
		}
		return b.String()
	}
	if first, again := text(), text(); first != again {
		t.Error("two compilations differ")
	}
}

// BenchmarkServices compiles 1,000 Services of 10 endpoints each.
func BenchmarkServices(b *testing.B) {
	c := sample(true)
	var list [][]service.VirtualAddress
	for i := range 1000 {
		var to []string
		for k := range 10 {
			to = append(to, fmt.Sprintf("10.129.%d.%d:8080", i/250, k+1))
		}
		list = append(list, []service.VirtualAddress{vip(fmt.Sprintf("s%d", i), fmt.Sprintf("172.30.%d.%d", i/250, i%250), transport.TCP, 80, to...)})
	}
	for b.Loop() {
		var ids groupid.IDs
		for _, addresses := range list {
			pipeline.Services{Config: c}.Flows(addresses, &ids)
		}
	}
}
