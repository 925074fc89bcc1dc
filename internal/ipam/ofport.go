package ipam

import "fmt"

// The ofports of pods. 1 is the tunnel and 2 the node itself; OpenFlow reserves those from 0xff00 on.
const (
	// OfportMin is the lowest ofport of a pod.
	OfportMin uint32 = 3
	// OfportMax is the highest ofport of a pod (OFPP_MAX - 1, as ovs-vswitchd assigns them).
	OfportMax uint32 = 0xfeff
)

// Ofports picks OpenFlow port numbers for pods, round robin like Pool. The zero value is ready for use and starts at OfportMin.
type Ofports struct {
	last uint32
}

// Resume lets the next pick start after the given ofport, for example after a restart with the ofport picked last. An ofport that is not
// for pods changes nothing.
func (o *Ofports) Resume(last uint32) {
	if OfportMin <= last && last <= OfportMax {
		o.last = last
	}
}

// Pick returns the next ofport for which inUse returns false. It stores only its position. It fails with ErrExhausted.
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
