package clusternetwork

import (
	"fmt"
	"maps"
	"reflect"
	"slices"
	"testing"

	"pgregory.net/rapid"

	networkv1 "weft.dev/weft/api/openshift/v1"
)

func TestPlaceTunnels(t *testing.T) {
	type told = map[string][]uint16
	for _, test := range []struct {
		what   string
		own    [][]uint16
		others told
		want   TunnelPorts
		waits  []string
	}{
		{"alone", [][]uint16{nil}, nil, TunnelPorts{4790, []uint16{4790}}, nil},
		{"at rest", [][]uint16{{4790}}, told{"b": {4790}}, TunnelPorts{4790, []uint16{4790}}, nil},
		{"it has not told that it has closed it", [][]uint16{{4789}}, told{"b": {4789, 4790}}, TunnelPorts{4789, []uint16{4789, 4790}}, nil},
		{"another has not", [][]uint16{{4789, 4790}}, told{"b": {4789, 4790}, "c": {4789}}, TunnelPorts{4789, []uint16{4789, 4790}}, []string{"c"}},
		{"all have", [][]uint16{{4789, 4790}}, told{"b": {4789, 4790}, "c": {4790}}, TunnelPorts{4790, []uint16{4789, 4790}}, nil},
		{"another has not moved", [][]uint16{{4790}}, told{"b": {4789, 4790}}, TunnelPorts{4790, []uint16{4789, 4790}}, nil},
		{"one that tells nothing yet", [][]uint16{{4789, 4790}}, told{"b": nil}, TunnelPorts{4789, []uint16{4789, 4790}}, []string{"b"}},
		{"a node that comes", [][]uint16{nil}, told{"a": {53}, "b": {4789}, "c": {4789, 4790}, "d": {4790}}, TunnelPorts{4789, []uint16{53, 4789, 4790}}, []string{"a", "b"}},
		{"one tells nonsense, and others nothing yet", [][]uint16{nil}, told{"a": {5000}, "b": nil}, TunnelPorts{4790, []uint16{4790, 5000}}, []string{"a", "b"}},
		{"the first node", [][]uint16{nil}, told{"b": nil}, TunnelPorts{4790, []uint16{4790}}, []string{"b"}},
		{"it has told nothing yet", [][]uint16{nil, {4789, 4790}}, nil, TunnelPorts{4789, []uint16{4789, 4790}}, nil},
		{"what it wrote is not seen yet", [][]uint16{{4789, 4790}, {4789, 4791}}, told{"b": {4790}}, TunnelPorts{4789, []uint16{4789, 4790, 4791}}, nil},
		{"a second change before the first is done", [][]uint16{{4789, 4800}}, told{"b": {4800}}, TunnelPorts{4789, []uint16{4789, 4790, 4800}}, []string{"b"}},
	} {
		ports, waits := PlaceTunnels(4790, test.own, test.others)
		if !reflect.DeepEqual(ports, test.want) || !slices.Equal(waits, test.waits) {
			t.Errorf("%s: %v, waiting for %q; want %v, %q", test.what, ports, waits, test.want, test.waits)
		}
	}
}

func TestToldPorts(t *testing.T) {
	hs := &networkv1.HostSubnet{Status: networkv1.HostSubnetStatus{VXLANPorts: []int32{-1, 0, 1, 65535, 65536}}}
	if told, node := ToldPorts(hs); !reflect.DeepEqual(told, []uint16{1, 65535}) || !node {
		t.Errorf("ports %v, of a node: %t", told, node)
	}
	hs.Status.VXLANPorts = nil
	if told, node := ToldPorts(hs); told != nil || node {
		t.Errorf("of a host without a node: ports %v, of a node: %t", told, node)
	}
	hs.Annotations = map[string]string{networkv1.AnnotationNodeUID: "u"}
	if told, node := ToldPorts(hs); told != nil || !node {
		t.Errorf("of a node that has told nothing: ports %v, of a node: %t", told, node)
	}
}

// cluster is an API server with all that it ever had, and nodes that see it late, each kind of object and each node in its own time.
type cluster struct {
	wanted []uint16
	told   []map[string][]uint16 // nodes that have a HostSubnet
	nodes  map[string]*tunnelNode
}

type tunnelNode struct {
	wanted, told int // what it has seen of the API server's histories
	// may are the ports that it may have: one, but while it programs others.
	may []TunnelPorts
	// next is what it would tell once that is programmed, programmed what it tells, and written what it wrote and has not seen.
	next, programmed []uint16
	written          [][]uint16
	// writing says that the API server has not taken the last of those, lost that nobody knows; otherwise it has, and taken is when.
	writing, lost bool
	taken         int
}

// write changes what the API server has of a node.
func (c *cluster) write(name string, ports []uint16) {
	told := maps.Clone(c.told[len(c.told)-1])
	told[name] = ports
	c.told = append(c.told, told)
}

// join has a node come: its HostSubnet is there before it programs anything.
func (c *cluster) join(name string) {
	c.write(name, nil)
	c.nodes[name] = &tunnelNode{}
	c.restart(name)
}

// restart has a node's agent start anew: it knows what the API server has, and nothing else.
func (c *cluster) restart(name string) {
	n := c.nodes[name]
	c.take(name) // or the API server never will
	*n = tunnelNode{wanted: len(c.wanted) - 1, told: len(c.told) - 1, may: n.may}
}

// place has a node begin to program what it knows of.
func (c *cluster) place(name string) {
	n := c.nodes[name]
	wanted, others := c.wanted[n.wanted], maps.Clone(c.told[n.told])
	own := [][]uint16{others[name]}
	delete(others, name)
	if !n.writing && !n.lost && n.told >= n.taken {
		n.written = nil
	}
	own = append(own, n.written...)
	if n.programmed != nil {
		own = append(own, n.programmed)
	}
	ports, _ := PlaceTunnels(wanted, own, others)
	n.may, n.next = append(n.may, ports), ports.Told(wanted)
}

// program has a node come to the end of that.
func (c *cluster) program(name string) {
	if n := c.nodes[name]; n.next != nil {
		n.may, n.programmed = n.may[len(n.may)-1:], n.next
	}
}

// begin has a node begin to write what it tells.
func (c *cluster) begin(name string) {
	if n := c.nodes[name]; !n.writing && n.programmed != nil {
		n.written, n.writing = append(n.written, n.programmed), true
	}
}

// take has the API server take what a node writes.
func (c *cluster) take(name string) {
	n := c.nodes[name]
	if n.writing {
		c.write(name, n.written[len(n.written)-1])
		n.writing, n.lost, n.taken = false, false, len(c.told)-1
	}
}

// hole returns a node's tunnels that another's pods may send to, and that would take it.
func (c *cluster) hole() string {
	for at, to := range c.nodes {
		for from, by := range c.nodes {
			if _, known := c.told[to.told][from]; at == from || !known {
				continue
			}
			for _, place := range to.may {
				for _, closes := range by.may {
					if !slices.Contains(closes.Closed, place.Port) {
						return fmt.Sprintf("%s's tunnels may be at %d, and %s's pods send to it: %v", at, place.Port, from, closes.Closed)
					}
				}
			}
		}
	}
	return ""
}

// However late nodes hear of what, and however often the port changes meanwhile, no node's tunnels are at a port that another's pods
// may send to; and when it changes no more, all come to it, and close no other. Only while a node comes, it does not change twice.
func TestTunnelsNeverMeetPods(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		c := &cluster{wanted: []uint16{4789}, told: []map[string][]uint16{{}}, nodes: map[string]*tunnelNode{}}
		join := func() {
			name := fmt.Sprint("n", len(c.nodes))
			c.join(name)
		}
		for range 2 { // who have told already, as others come
			join()
			name := fmt.Sprint("n", len(c.nodes)-1)
			c.place(name)
			c.program(name)
			c.write(name, c.nodes[name].programmed)
		}
		port := rapid.SampledFrom([]uint16{4789, 4790, 4791})
		node := func(t *rapid.T) string { return fmt.Sprint("n", rapid.IntRange(0, len(c.nodes)-1).Draw(t, "node")) }
		t.Repeat(map[string]func(*rapid.T){
			"change": func(t *rapid.T) {
				for _, told := range c.told[len(c.told)-1] {
					if told == nil { // where its tunnels are, nobody knows: it may have come during the change before
						return
					}
				}
				c.wanted = append(c.wanted, port.Draw(t, "port"))
			},
			"join": func(t *rapid.T) {
				if len(c.nodes) < 4 {
					join()
				}
			},
			"hear of the ClusterNetwork": func(t *rapid.T) {
				n := c.nodes[node(t)]
				n.wanted = rapid.IntRange(n.wanted, len(c.wanted)-1).Draw(t, "up to")
			},
			"hear of HostSubnets": func(t *rapid.T) {
				n := c.nodes[node(t)]
				n.told = rapid.IntRange(n.told, len(c.told)-1).Draw(t, "up to")
			},
			"place":   func(t *rapid.T) { c.place(node(t)) },
			"program": func(t *rapid.T) { c.program(node(t)) },
			"begin":   func(t *rapid.T) { c.begin(node(t)) },
			"take":    func(t *rapid.T) { c.take(node(t)) },
			"restart": func(t *rapid.T) { c.restart(node(t)) },
			"lose": func(t *rapid.T) { // whether the API server took it is not known
				name := node(t)
				n := c.nodes[name]
				if !n.writing {
					return
				}
				if rapid.Bool().Draw(t, "taken") {
					c.take(name)
				}
				n.writing, n.lost = false, true
			},
			"": func(t *rapid.T) {
				if hole := c.hole(); hole != "" {
					t.Fatal(hole)
				}
			},
		})
		for range 8 {
			for name, n := range c.nodes {
				n.wanted, n.told = len(c.wanted)-1, len(c.told)-1
				c.place(name)
				c.program(name)
				c.take(name)
				c.begin(name)
				c.take(name)
				if hole := c.hole(); hole != "" {
					t.Fatal(hole)
				}
			}
		}
		wanted := c.wanted[len(c.wanted)-1]
		for name, n := range c.nodes {
			if want := []TunnelPorts{{wanted, []uint16{wanted}}}; !reflect.DeepEqual(n.may, want) {
				t.Errorf("in the end %s has %v, want %v", name, n.may, want)
			}
		}
	})
}
