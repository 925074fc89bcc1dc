package ipam

import "fmt"

// Ofports of a bridge that pods get: 1 is the tunnel's and 2 the node's own; from 0xff00 on OpenFlow reserves them.
const (
	// OfportMin is the lowest ofport of a pod.
	OfportMin uint32 = 3
	// OfportMax is the highest ofport of a pod (OFPP_MAX - 1, as ovs-vswitchd assigns them).
	OfportMax uint32 = 0xfeff
)

// Ofports picks OpenFlow port numbers for pods, round robin like Pool. The zero value is ready and starts at OfportMin.
type Ofports struct {
	last uint32
}

// Resume makes the next pick start after the ofport, as after a restart with the one picked last. One that is no pod's
// changes nothing.
func (o *Ofports) Resume(last uint32) {
	if OfportMin <= last && last <= OfportMax {
		o.last = last
	}
}

// Pick returns the next ofport that inUse does not report as used. It records nothing but its place. It fails with
// ErrExhausted.
func (o *Ofports) Pick(inUse func(uint32) bool) (uint32, error) {
	port := o.last
	for range OfportMax - OfportMin + 1 {
		if port++; port < OfportMin || port > OfportMax {
			port = OfportMin
		}
		if !inUse(port) {
			o.last = port
			return port, nil
		}
	}
	return 0, fmt.Errorf("%w: all %d ofports for pods are used", ErrExhausted, OfportMax-OfportMin+1)
}
