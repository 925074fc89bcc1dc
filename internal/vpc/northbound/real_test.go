//go:build real

package northbound_test

import (
	"context"
	"fmt"
	"maps"
	"net/netip"
	"strings"
	"testing"

	"weft.dev/weft/internal/ovn"
	"weft.dev/weft/internal/ovn/ovntest"
	"weft.dev/weft/internal/reconcile"
	"weft.dev/weft/internal/vpc/northbound"
	"weft.dev/weft/internal/vpc/objects"
)

// lab is a site with an engine on its northbound database.
type lab struct {
	*ovntest.Site
	engine *ovn.Engine
}

func newLab(t *testing.T, chassis int) *lab {
	t.Helper()
	l := &lab{Site: ovntest.NewSite(t, chassis)}
	var err error
	if l.engine, err = ovn.Open(t.Context(), ovn.Config{Endpoints: []string{l.NB()}}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(l.engine.Close)
	if err := l.engine.Lead(t.Context(), 1); err != nil {
		t.Fatal(err)
	}
	return l
}

// apply programs the cluster's compiled rows into the database.
func (l *lab) apply(ctx context.Context, t *testing.T, c *cluster) {
	t.Helper()
	have, err := l.engine.Read(ctx)
	if err != nil {
		t.Fatal(err)
	}
	if err := l.engine.Commit(ctx, reconcile.Diff(c.compile(t), have)); err != nil {
		t.Fatal(err)
	}
	l.Sync()
}

func (l *lab) pod(t *testing.T, chassis int, subnet *objects.Subnet, addr string) *ovntest.Pod {
	t.Helper()
	a := netip.MustParseAddr(addr)
	p := l.Chassis[chassis].AddPod(t, northbound.PortName(subnet.Name, a), northbound.MAC(a),
		netip.PrefixFrom(a, subnet.Prefix.Bits()).String(), subnet.Gateway.String())
	l.Chassis[chassis].Installed(t, p)
	return p
}

// reachesTTL reports whether the address answers with the TTL: each pod has a different TTL, so that a test sees which pod answers.
func reachesTTL(p *ovntest.Pod, to, ttl string) bool {
	out, err := ovntest.Try(p.NetNS, "ping", "-n", "-c", "1", "-W", "1", to)
	return err == nil && strings.Contains(out, "ttl="+ttl)
}

func setTTL(t *testing.T, p *ovntest.Pod, ttl string) {
	t.Helper()
	ovntest.Run(t, p.NetNS, "sysctl", "-qw", "net.ipv4.ip_default_ttl="+ttl)
}

// Two VPCs on two nodes have the same addresses; each pod reaches only its own VPC.
func TestVPCs(t *testing.T) {
	l := newLab(t, 2)
	c := &cluster{
		vpcs: []objects.VPC{{Meta: meta("Vpc", "vpc1")}, {Meta: meta("Vpc", "vpc2")}},
		subnets: []objects.Subnet{
			subnet("s11", "vpc1", "10.0.1.0/24"), subnet("s12", "vpc1", "10.0.2.0/24"),
			subnet("s21", "vpc2", "10.0.1.0/24"), subnet("s23", "vpc2", "10.0.3.0/24"),
		},
		ports: map[string][]string{"s11": {"10.0.1.11", "10.0.1.12"}, "s12": {"10.0.2.13"}, "s21": {"10.0.1.11", "10.0.1.12"}, "s23": {"10.0.3.13"}},
	}
	l.apply(t.Context(), t, c)
	s11, s12, s21, s23 := &c.subnets[0], &c.subnets[1], &c.subnets[2], &c.subnets[3]
	a1, a2, a3 := l.pod(t, 0, s11, "10.0.1.11"), l.pod(t, 1, s11, "10.0.1.12"), l.pod(t, 1, s12, "10.0.2.13")
	b1, b2, b3 := l.pod(t, 0, s21, "10.0.1.11"), l.pod(t, 1, s21, "10.0.1.12"), l.pod(t, 0, s23, "10.0.3.13")
	setTTL(t, a2, "101")
	setTTL(t, b2, "102")
	a1.Reaches("10.0.1.12")
	b1.Reaches("10.0.1.12")
	a1.Reaches("10.0.2.13")
	b1.Reaches("10.0.3.13")
	if !reachesTTL(a1, "10.0.1.12", "101") || !reachesTTL(b1, "10.0.1.12", "102") {
		t.Error("an address of one VPC is answered by a pod of the other")
	}
	if a1.Ping("10.0.3.13", "") || b1.Ping("10.0.2.13", "") {
		t.Error("a pod of one VPC reaches a subnet of the other")
	}
	_, _ = a3, b3

	t.Run("spoofed", func(t *testing.T) {
		a1.IP("addr", "add", "10.0.1.99/32", "dev", "eth0")
		defer a1.IP("addr", "del", "10.0.1.99/32", "dev", "eth0")
		a2.IP("neigh", "replace", "10.0.1.99", "lladdr", northbound.MAC(netip.MustParseAddr("10.0.1.11")), "dev", "eth0")
		if a1.Ping("10.0.1.12", "10.0.1.99") {
			t.Error("a packet with a source that is not the pod's arrives")
		}
	})
	t.Run("peering", func(t *testing.T) {
		c.vpcs[0].Peerings = []objects.Peering{{Remote: "vpc2", Local: netip.MustParsePrefix("169.254.0.1/30")}}
		c.vpcs[0].Routes = []objects.Route{{Prefix: netip.MustParsePrefix("10.0.3.0/24"), NextHop: netip.MustParseAddr("169.254.0.2")}}
		l.apply(t.Context(), t, c)
		if got := c.problems["vpc1"].Error(); !strings.Contains(got, "does not declare the peering") {
			t.Errorf("problems: %s", got)
		}
		if a3.Ping("10.0.3.13", "") {
			t.Error("a peering that one side declares connects")
		}
		c.vpcs[1].Peerings = []objects.Peering{{Remote: "vpc1", Local: netip.MustParsePrefix("169.254.0.2/30")}}
		c.vpcs[1].Routes = []objects.Route{{Prefix: netip.MustParsePrefix("10.0.2.0/24"), NextHop: netip.MustParseAddr("169.254.0.1")}}
		l.apply(t.Context(), t, c)
		a3.Reaches("10.0.3.13")
		if b2.Ping("10.0.2.99", "") {
			t.Error("an address without a pod answers")
		}
	})
	t.Run("private", func(t *testing.T) {
		s12.Private = true
		l.apply(t.Context(), t, c)
		if a1.Ping("10.0.2.13", "") || a3.Ping("10.0.1.11", "") {
			t.Error("packets pass between a private subnet and another one")
		}
		s12.Allow = []netip.Prefix{s11.Prefix}
		l.apply(t.Context(), t, c)
		a1.Reaches("10.0.2.13")
		a3.Reaches("10.0.1.11")
		s12.Private, s12.Allow = false, nil
	})
	t.Run("isolated", func(t *testing.T) {
		for closed, want := range map[northbound.Closed][2]bool{ // whether a1 reaches a2, and a2 reaches a1
			{Ingress: true}: {false, true}, {Egress: true}: {true, false}, {Ingress: true, Egress: true}: {false, false}, {}: {true, true},
		} {
			c.more = northbound.Isolation(s11, netip.MustParseAddr("10.0.1.12"), closed)
			l.apply(t.Context(), t, c)
			ovntest.Eventually(t, fmt.Sprintf("closed %+v", closed), func() bool { // the switch takes a moment for packets whose path it has cached
				return a1.Ping("10.0.1.12", "") == want[0] && a2.Ping("10.0.1.11", "") == want[1]
			})
		}
		c.more = nil
	})
	t.Run("restart", func(t *testing.T) {
		l.apply(t.Context(), t, c)
		for _, program := range []string{ovntest.Northd, ovntest.Southbound, ovntest.Northbound} {
			l.Stop(program)
			l.Start(program)
		}
		l.Chassis[0].StopController()
		l.Chassis[0].StartController(t)
		a1.Reaches("10.0.1.12")
		have, err := l.engine.Read(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if change := reconcile.Diff(c.compile(t), have); len(change.Delete) > 0 || len(change.Set) != 0 {
			t.Errorf("after a restart %d rows are to be written, %d removed", len(change.Set), len(change.Delete))
		}
	})
}

// Routes by source match packets that no prefix by destination matches, each source by its longest prefix, and no packets to connected
// subnets; a user's policy is evaluated before them. A route table without a route, as that of too many routes by source, drops: the default
// route of the main table is not used for it.
func TestSourceRoutePackets(t *testing.T) {
	l := newLab(t, 1)
	apart := subnet("s3", "v", "10.0.3.0/24")
	apart.RouteTable = "apart"
	c := &cluster{
		vpcs: []objects.VPC{{Meta: meta("Vpc", "v"), Routes: []objects.Route{
			route("", "src", "10.0.1.0/28", "10.0.1.254"), route("", "src", "10.0.1.12/32", "10.0.1.253"),
		}}},
		subnets: []objects.Subnet{subnet("s1", "v", "10.0.1.0/24"), subnet("s2", "v", "10.0.2.0/24"), apart},
		ports:   map[string][]string{"s1": {"10.0.1.11", "10.0.1.12", "10.0.1.77"}, "s2": {"10.0.2.13"}, "s3": {"10.0.3.14"}},
	}
	gateways := []string{"10.0.1.253", "10.0.1.254"}
	l.apply(t.Context(), t, c)
	change := ovn.Change{Set: map[ovn.Key]ovn.Row{}}
	for _, gateway := range gateways {
		key, row := northbound.SwitchPort(&c.subnets[0], northbound.Port{Addr: netip.MustParseAddr(gateway), Gateway: true})
		change.Set[key] = row
	}
	if err := l.engine.Commit(t.Context(), change); err != nil {
		t.Fatal(err)
	}
	for i, gateway := range gateways { // each answers for 8.8.8.8, with its own TTL
		p := l.pod(t, 0, &c.subnets[0], gateway)
		p.IP("addr", "add", "8.8.8.8/32", "dev", "lo")
		setTTL(t, p, []string{"153", "154"}[i])
	}
	a, b, other, far := l.pod(t, 0, &c.subnets[0], "10.0.1.11"), l.pod(t, 0, &c.subnets[0], "10.0.1.12"),
		l.pod(t, 0, &c.subnets[0], "10.0.1.77"), l.pod(t, 0, &c.subnets[1], "10.0.2.13")
	without := l.pod(t, 0, &c.subnets[2], "10.0.3.14")
	setTTL(t, far, "200")
	l.Sync()
	b.Reaches("10.0.2.13")
	for _, test := range []struct {
		name    string
		from    *ovntest.Pod
		to, ttl string
	}{
		{"the range's next hop", a, "8.8.8.8", "154"},
		{"the longer prefix's next hop", b, "8.8.8.8", "153"},
		{"a connected subnet, in spite of the /32", b, "10.0.2.13", "199"},
	} {
		if !reachesTTL(test.from, test.to, test.ttl) {
			t.Errorf("%s: %s is not reached with TTL %s", test.name, test.to, test.ttl)
		}
	}
	without.Reaches("10.0.2.13")
	if other.Ping("8.8.8.8", "") || far.Ping("8.8.8.8", "") || without.Ping("8.8.8.8", "") {
		t.Error("a source without a route reaches the outside")
	}
	c.vpcs[0].Policies = []objects.Policy{{
		Priority: 0, Match: "ip4.src == 10.0.1.11 && ip4.dst == 8.8.8.0/24", Action: objects.Reroute, NextHops: []netip.Addr{netip.MustParseAddr("10.0.1.253")},
	}}
	c.ports["s1"] = append(c.ports["s1"], gateways...)
	program := func() {
		t.Helper()
		rows := c.compile(t)
		maps.Copy(rows, change.Set)
		have, err := l.engine.Read(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if err := l.engine.Commit(t.Context(), reconcile.Diff(rows, have)); err != nil {
			t.Fatal(err)
		}
		l.Sync()
	}
	program()
	if !reachesTTL(a, "8.8.8.8", "153") {
		t.Error("a policy of priority 0 does not decide")
	}
	c.vpcs[0].Policies[0].NextHops[0] = netip.MustParseAddr("10.9.9.9")
	program()
	if a.Ping("8.8.8.8", "") {
		t.Error("the packets of a policy whose next hop is not reached take another way")
	}
}
