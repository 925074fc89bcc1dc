package podlink

import (
	"context"
	"errors"
	"fmt"
	"math"
)

// Shaper is a token bucket (tbf). It counts the bytes of IP packets, without Ethernet's header.
type Shaper struct {
	// Rate is in bytes per second. 0: there is no shaper.
	Rate uint64
	// Burst is how many bytes pass at once after idle time. A larger packet never passes, unless the kernel can segment it.
	Burst uint32
	// Queue is how many bytes wait; further packets are dropped.
	Queue uint32
}

// Shape is the shape of the traffic of a pod on a pre-plugged port. Both shapers are in the namespace of the veth peers, where no pod can
// change them, and not on the host veth, so that the switch does not see them:
//
//   - What the pod sends passes the veth peer, whose root qdisc is Send.
//   - What it receives arrives at the veth peer, is redirected to an ifb device there whose root qdisc is Receive, and goes on to the pod.
//     A queue on the host veth would hold packets of the socket by which Open vSwitch's userspace datapath sends to all its ports
//     (af_packet_sock in its lib/netdev-linux.c): once they fill that socket's buffer, no port receives anything.
type Shape struct {
	Receive, Send Shaper
}

// Shapers reads and repairs shapes. Shapes are created before the interface (PodLinks.Create) and removed with it (PodLinks.Unplug).
// *[podveth.Pods] does it in the kernel, *[Fake] in memory.
type Shapers interface {
	// Shapes returns the shapes of ports with veth peers in the namespace at path, by name; ports without a shape are omitted.
	Shapes(ctx context.Context, path string) (map[string]Shape, error)
	// Reshape sets a port's shape. The zero Shape removes what is left of one, also of a port that does not exist; another Shape is then
	// ErrNoDevice.
	Reshape(ctx context.Context, path, name string, want Shape) error
}

// String returns the shaper in the words of tc(8).
func (s Shaper) String() string {
	if s.Rate == 0 {
		return "no shaper"
	}
	return fmt.Sprintf("rate %dBps burst %d limit %d", s.Rate, s.Burst, s.Queue)
}

// String returns both shapers.
func (s Shape) String() string { return "receive " + s.Receive.String() + ", send " + s.Send.String() }

// Matches reports whether a shape that was read is the desired one.
func (s Shape) Matches(have Shape) bool {
	return s.Receive.matches(have.Receive) && s.Send.matches(have.Send)
}

// matches compares bursts with a tolerance: the kernel stores the time that a burst takes, in its ticks.
func (s Shaper) matches(have Shaper) bool {
	const parts = 100
	off := max(s.Burst, have.Burst) - min(s.Burst, have.Burst)
	return s.Rate == have.Rate && s.Queue == have.Queue && (off <= s.Burst/parts+1 || s.ticks() > math.MaxUint32)
}

// ShaperTick is the unit of times in the kernel's qdiscs, in nanoseconds (PSCHED_SHIFT of linux/net/pkt_sched.h).
const ShaperTick = 64

// ticks is the time that the burst takes.
func (s Shaper) ticks() float64 {
	if s.Rate == 0 {
		return 0
	}
	const second = 1e9
	return float64(s.Burst) * second / float64(s.Rate) / ShaperTick
}

// ReceiverSuffix follows a pre-plugged port's name in the name of its ifb device.
const ReceiverSuffix = "-in"

// ReceiverName is the name of the ifb device of a pre-plugged port.
func ReceiverName(pair string) string { return pair + ReceiverSuffix }

// ErrUnshaped reports that a pod's traffic cannot be shaped.
var ErrUnshaped = errors.New("bandwidth can be limited on pre-plugged ports only")
