package pipeline_test

import (
	"fmt"
	"net/netip"
	"regexp"
	"slices"
	"strings"
	"testing"

	"weft.dev/weft/internal/goldentest"
	"weft.dev/weft/internal/overlay/pipeline"
	"weft.dev/weft/internal/overlay/pipeline/cookies"
	"weft.dev/weft/internal/overlay/pipeline/layout"
	"weft.dev/weft/internal/reconcile"
)

func TestFlows(t *testing.T) {
	for name, conntrack := range map[string]bool{"flat": false, "flat-conntrack": true} {
		t.Run(name, func(t *testing.T) {
			goldentest.Compare(t, "testdata/"+name+".flows", text(allFlows(sample(conntrack))))
		})
	}
}

// Flows of different owners must not have the same key: deleting a pod would delete another owner's flow.
func TestOwnersDoNotMeet(t *testing.T) {
	c := sample(true)
	again := remote
	again.UID, again.Subnet = "node-b-recreated", netip.MustParsePrefix("10.131.0.0/23")
	all := append(sections(c), section{"again", c.RemoteRules(again)})
	seen := map[string]string{}
	for _, s := range all {
		for _, r := range s.rules {
			key := r.Flow.Key().String()
			if other, ok := seen[key]; ok {
				t.Errorf("%s of %s is already %s's", key, s.owner, other)
			}
			seen[key] = s.owner
			if r.Purpose == "" {
				t.Errorf("%s has no purpose", key)
			}
		}
	}
}

// A packet only goes to tables with greater numbers, so there can be no loop.
func TestTablesOnlyGoUp(t *testing.T) {
	goTo := regexp.MustCompile(`goto_table:(\d+)`)
	for _, f := range allFlows(sample(true)) {
		for _, m := range goTo.FindAllStringSubmatch(f.String(), -1) {
			var to int
			if _, err := fmt.Sscan(m[1], &to); err != nil || to <= int(f.Table) {
				t.Errorf("%s goes down", f)
			}
			if layout.TableName(uint8(to)) == "" {
				t.Errorf("%s goes to a table without a name", f)
			}
		}
	}
}

func TestCookie(t *testing.T) {
	owners := []reconcile.Owner{"cluster", "state", "attachment/a/eth0", "attachment/b/eth0", "hostsubnet/u", "hostsubnet/v", "policy/x"}
	seen := map[uint64]reconcile.Owner{}
	for _, owner := range owners {
		cookie := cookies.Of(owner)
		if other, ok := seen[cookie]; ok {
			t.Errorf("%s and %s have one cookie", owner, other)
		}
		seen[cookie] = owner
		if cookie != cookies.Of(owner) || cookie>>56 == 0 || cookie>>56 == 0xff {
			t.Errorf("cookie of %s: %#x", owner, cookie)
		}
	}
	if got := cookies.Of("attachment/a/eth0") >> 56; got != 3 {
		t.Errorf("an attachment's kind is %d, want 3 for good", got)
	}
}

func TestInvalidOpensNothing(t *testing.T) {
	c := sample(false)
	pods := map[string]pipeline.Pod{
		"tunnel's port":    {Owner: "attachment/x/eth0", OFPort: 1, Addrs: addrs("10.128.0.7")},
		"gateway":          {Owner: "attachment/x/eth0", OFPort: 5, Addrs: addrs("10.128.0.1")},
		"other node's":     {Owner: "attachment/x/eth0", OFPort: 5, Addrs: addrs("10.129.0.7")},
		"one of two wrong": {Owner: "attachment/x/eth0", OFPort: 5, Addrs: addrs("10.128.0.7", "192.0.2.2")},
		"IPv6 only":        {Owner: "attachment/x/eth0", OFPort: 5, Addrs: addrs("fd00::7")},
		"multicast MAC":    {Owner: "attachment/x/eth0", OFPort: 5, Addrs: addrs("10.128.0.7"), MAC: []byte{1, 0, 0x5e, 0, 0, 1}},
	}
	for name, pod := range pods {
		if len(c.Pod(pod)) != 0 || c.CheckPod(pod) == nil {
			t.Errorf("pod with %s: has flows or no error", name)
		}
	}
	remotes := map[string]pipeline.Remote{
		"this node's address": {UID: "x", NodeIP: c.NodeIP, Subnet: remote.Subnet},
		"a pod's address":     {UID: "x", NodeIP: addrs("10.128.0.9")[0], Subnet: remote.Subnet},
		"a Service's address": {UID: "x", NodeIP: addrs("172.30.0.1")[0], Subnet: remote.Subnet},
		"loopback":            {UID: "x", NodeIP: addrs("127.0.0.1")[0], Subnet: remote.Subnet},
		"IPv6":                {UID: "x", NodeIP: addrs("fd00::1")[0], Subnet: remote.Subnet},
		"no subnet":           {UID: "x", NodeIP: remote.NodeIP},
		"outside subnet":      {UID: "x", NodeIP: remote.NodeIP, Subnet: netip.MustParsePrefix("198.51.100.0/24")},
		"everything":          {UID: "x", NodeIP: remote.NodeIP, Subnet: netip.MustParsePrefix("0.0.0.0/0")},
		"whole cluster":       {UID: "x", NodeIP: remote.NodeIP, Subnet: c.ClusterNetworks[0]},
		"this node's subnet":  {UID: "x", NodeIP: remote.NodeIP, Subnet: c.LocalSubnet},
		"VNID out of range":   {UID: "x", NodeIP: remote.NodeIP, Subnet: remote.Subnet, FixedVNID: 1 << 24},
	}
	for name, r := range remotes {
		if len(c.Remote(r)) != 0 || c.CheckRemote(r) == nil {
			t.Errorf("host with %s: has flows or no error", name)
		}
	}
}

func TestValidate(t *testing.T) {
	if err := sample(true).Validate(); err != nil {
		t.Errorf("the sample: %v", err)
	}
	for name, spoil := range map[string]func(*pipeline.Config){
		"mode":             func(c *pipeline.Config) { c.Mode = "another" },
		"cluster network":  func(c *pipeline.Config) { c.ClusterNetworks = nil },
		"service network":  func(c *pipeline.Config) { c.ServiceNetwork = netip.MustParsePrefix("10.128.0.0/16") },
		"local subnet":     func(c *pipeline.Config) { c.LocalSubnet = netip.MustParsePrefix("10.0.0.0/23") },
		"gateway":          func(c *pipeline.Config) { c.Gateway = netip.MustParseAddr("10.129.0.1") },
		"node address":     func(c *pipeline.Config) { c.NodeIP = netip.Addr{} },
		"gateway MAC":      func(c *pipeline.Config) { c.GatewayMAC = []byte{1, 2} },
		"IPv6 in the pods": func(c *pipeline.Config) { c.ClusterNetworks[0] = netip.MustParsePrefix("fd00::/48") },
	} {
		c := sample(false)
		spoil(c)
		if c.Validate() == nil {
			t.Errorf("a wrong %s is accepted", name)
		}
	}
}

func TestNote(t *testing.T) {
	key, entry := pipeline.Note(reconcile.Hash{1, 2, 3, 4})
	if key.Table != layout.TableNote || !strings.Contains(entry.String(), "note:00.00.00.00.00.00.00.01.") {
		t.Errorf("note is %s", entry)
	}
}

// If tunnels have several ports, each is closed to pods wherever a packet leaves for a host.
func TestClosedPorts(t *testing.T) {
	c := sample(true)
	c.VXLANPort, c.ClosedPorts = 4790, []uint16{4788, 4790}
	closed := map[uint8][]string{}
	for key := range c.Static() {
		if _, port, has := strings.Cut(key.Match, "tp_dst=47"); has {
			closed[key.Table] = append(closed[key.Table], port)
		}
	}
	for _, table := range []uint8{layout.TableRoute, layout.TableHost, layout.TableExternal} {
		slices.Sort(closed[table])
		if got := strings.Join(closed[table], " "); got != "88 90" {
			t.Errorf("table %d closes 47.. %q", table, got)
		}
	}
}
