package agent

import (
	"log/slog"
	"slices"
	"strings"
	"sync"
	"time"

	networkv1 "weft.dev/weft/api/openshift/v1"
	"weft.dev/weft/internal/clusternetwork"
	"weft.dev/weft/internal/realised"
)

// How long it is waited for more, once another node tells other ports: all do when the port changes. While this node waits for none, what
// others tell has time: at a port that it has not closed is nobody yet.
const (
	waitingGather = 500 * time.Millisecond
	restingGather = 5 * time.Second
)

// fewWaits is of how few nodes each is named when it is the next to be waited for.
const fewWaits = 3

// lowestPort is the lowest that another node may tell, but for the ClusterNetwork's and this node's own: whoever has taken over a node
// must not close the ports of DNS, NTP and their like to the pods of all.
const lowestPort = 1024

// tunnelPorts is what the agent tells other nodes of its tunnels' ports, and what they tell.
type tunnelPorts struct {
	node   string
	log    *slog.Logger
	signal func()
	// after is time.AfterFunc.
	after func(time.Duration, func()) *time.Timer

	mu sync.Mutex
	// programmed is what is told of the ports that the node has; nil before it has any.
	programmed []uint16
	// written is what was written of them and may not have been seen yet, in order.
	written [][]uint16
	// taken is the resourceVersion of the last write, 0 while it is under way, and if it failed: the API server may have taken it.
	taken uint64
	// gathering says that it will be looked at what others tell.
	gathering bool
	// waits are the nodes that were waited for last.
	waits []string
}

// place returns the node's ports.
func (p *tunnelPorts) place(wanted uint16, subnets []networkv1.HostSubnet) clusternetwork.TunnelPorts {
	p.mu.Lock()
	defer p.mu.Unlock()
	seen, others := []uint16(nil), map[string][]uint16{}
	for i := range subnets {
		object := &subnets[i]
		told, node := clusternetwork.ToldPorts(object)
		switch {
		case object.Name == p.node:
			seen = told
			if version, err := realised.Version(object.ResourceVersion); err == nil && p.taken > 0 && version >= p.taken {
				p.written = nil
			}
		case node:
			others[object.Name] = told
		}
	}
	own := append([][]uint16{seen}, p.written...)
	if p.programmed != nil {
		own = append(own, p.programmed)
	}
	mine := slices.Concat(own...)
	for name, told := range others {
		others[name] = slices.DeleteFunc(told, func(port uint16) bool {
			return port < lowestPort && port != wanted && !slices.Contains(mine, port)
		})
	}
	ports, waits := clusternetwork.PlaceTunnels(wanted, own, others)
	p.say(wanted, ports.Port, waits)
	return ports
}

// say says for whom the tunnels wait: at first, and of the last nodes.
func (p *tunnelPorts) say(wanted, port uint16, waits []string) {
	if port == wanted {
		waits = nil
	}
	begins, last := len(p.waits) == 0, len(waits) <= fewWaits && !slices.Equal(waits, p.waits)
	p.waits = waits
	if len(waits) > 0 && (begins || last) {
		p.log.Info("the tunnels move to another port once all nodes have closed it to their pods",
			"wanted", wanted, "now", port, "waiting_for", len(waits), "nodes", strings.Join(waits[:min(len(waits), fewWaits)], " "))
	}
}

// program takes note of what is programmed now. What the node tells, and then has to look at, may be other than before.
func (p *tunnelPorts) program(ports clusternetwork.TunnelPorts, wanted uint16) {
	p.mu.Lock()
	defer p.mu.Unlock()
	told := ports.Told(wanted)
	if !slices.Equal(told, p.programmed) {
		p.programmed = told
		p.signal()
	}
}

// updated has it looked at a HostSubnet of which nothing else concerns this node, if it tells other ports, or shows what was written.
func (p *tunnelPorts) updated(old, now *networkv1.HostSubnet) {
	p.mu.Lock()
	defer p.mu.Unlock()
	differ := !slices.Equal(old.Status.VXLANPorts, now.Status.VXLANPorts)
	switch {
	case now.Name == p.node:
		if differ || len(p.written) > 1 {
			p.signal()
		}
	case differ && !p.gathering:
		p.gathering = true
		rest := restingGather
		if len(p.waits) > 0 {
			rest = waitingGather
		}
		p.after(rest, func() {
			p.mu.Lock()
			p.gathering = false
			p.mu.Unlock()
			p.signal()
		})
	}
}

// tells returns what is to be told; nil if nothing is known.
func (p *tunnelPorts) tells() []uint16 {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.programmed
}

// write returns what to write, and takes it for written from now on. While nothing is known, what is there stays.
func (p *tunnelPorts) write(there []int32) []int32 {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.programmed == nil {
		return there
	}
	p.taken = 0
	if last := len(p.written) - 1; last < 0 || !slices.Equal(p.written[last], p.programmed) {
		p.written = append(p.written, p.programmed)
	}
	return portNumbers(p.programmed)
}

// wrote takes note of the version that the API server gave to what was written: it may have been seen before that was known.
func (p *tunnelPorts) wrote(version string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if number, err := realised.Version(version); err == nil {
		p.taken = number
	}
	if len(p.written) > 1 {
		p.signal()
	}
}

func portNumbers(ports []uint16) []int32 {
	var numbers []int32
	for _, port := range ports {
		numbers = append(numbers, int32(port))
	}
	return numbers
}
