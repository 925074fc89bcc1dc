package probe

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"maps"
	"net"
	"net/netip"
	"slices"

	"weft.dev/weft/test/hostile"
	"weft.dev/weft/test/traffic"
)

// discard is the destination port of honest packets (RFC 863).
const discard = 9

// Sniffers are the places where packets of an attack could arrive, by their names.
type Sniffers map[string]*traffic.Sniffer

// Receivers returns the sniffers that received a marker, sorted.
func (s Sniffers) Receivers(marker []byte) []string {
	return slices.DeleteFunc(slices.Sorted(maps.Keys(s)), func(name string) bool {
		_, received := s[name].Find(marker)
		return !received
	})
}

// arrivals returns the sniffers that received each hostile marker, sorted.
func (s Sniffers) arrivals() map[string][]string {
	by := map[string][]string{}
	for _, name := range slices.Sorted(maps.Keys(s)) {
		for _, frame := range s[name].Frames() {
			for _, marker := range hostile.Markers(frame) {
				if !slices.Contains(by[marker], name) {
					by[marker] = append(by[marker], name)
				}
			}
		}
	}
	return by
}

// Honest is a packet that must arrive.
type Honest struct {
	Name string
	// From sends it, with the addresses of Source, in a frame to Via.
	From   *traffic.Raw
	Source hostile.End
	Via    net.HardwareAddr
	To     netip.Addr
	// Port is the destination port; 0: that of the discard protocol.
	Port uint16
	// At are the sniffers on its way.
	At []string
}

// Attack is the judgement of hostile packets: honest packets show that the sniffers receive what arrives, and no sniffer may receive a hostile
// one.
type Attack struct {
	// Scene is what the packets are made for, and Raw the attacker's interface.
	Scene    hostile.Scene
	Raw      *traffic.Raw
	Sniffers Sniffers
	// Honest are sent before and after the hostile packets.
	Honest []Honest
	// Allowed reports whether a hostile packet may nevertheless arrive at a sniffer.
	Allowed func(f *hostile.Frame, sniffer string) bool
}

// Run sends all packets. It returns the hostile ones, and an error that names those that arrived where they must not.
func (a *Attack) Run() ([]hostile.Frame, error) {
	frames, err := hostile.Frames(a.Scene)
	if err != nil {
		return nil, err
	}
	errs := []error{a.honest("-before")}
	for i := range frames {
		if i%burst == burst-1 {
			errs = append(errs, a.passed(i))
		}
		if err := a.Raw.Send(frames[i].Data); err != nil {
			errs = append(errs, fmt.Errorf("%s: %s: %w", frames[i].Class, frames[i].Name, err))
		}
	}
	errs = append(errs, a.honest("-after"))
	arrivals := a.Sniffers.arrivals()
	for i := range frames {
		f := &frames[i]
		by := slices.DeleteFunc(arrivals[string(f.Marker)], func(sniffer string) bool { return a.Allowed(f, sniffer) })
		if len(by) > 0 {
			errs = append(errs, fmt.Errorf("%s: %s: received at %v", f.Class, f.Name, by))
		}
	}
	return frames, errors.Join(errs...)
}

// burst is how many hostile packets are sent before the next honest one has arrived: a queue that overflows would drop them before any flow does.
const burst = 50

// passed sends one of the attacker's own honest packets, and awaits it.
func (a *Attack) passed(sent int) error {
	at := slices.IndexFunc(a.Honest, func(x Honest) bool { return x.From == a.Raw })
	if at < 0 {
		return nil
	}
	one := a.Honest[at]
	one.At = one.At[:1]
	return a.send(&one, fmt.Sprintf("-%d", sent))
}

// honest sends the honest packets, and awaits each at the sniffers on its way. After an attack they are sent last: earlier packets on the
// same way have arrived by then, or never will.
func (a *Attack) honest(round string) error {
	var errs []error
	for i := range a.Honest {
		errs = append(errs, a.send(&a.Honest[i], round))
	}
	return errors.Join(errs...)
}

// send sends an honest packet, and awaits it at the sniffers on its way.
func (a *Attack) send(x *Honest, round string) error {
	frame, err := hostile.Honest(x.Name+round, x.Source, x.Via, netip.AddrPortFrom(x.To, cmp.Or(x.Port, discard)))
	if err == nil {
		err = x.From.Send(frame.Data)
	}
	if err != nil {
		return fmt.Errorf("an honest packet to the %s: %w", x.Name, err)
	}
	var errs []error
	for _, name := range x.At {
		if _, ok := a.Sniffers[name].Await(frame.Marker, Patience); !ok {
			errs = append(errs, fmt.Errorf("an honest packet to the %s was not received at %s, so missing hostile packets prove nothing there; received at %v",
				x.Name, name, a.Sniffers.Receivers(frame.Marker)))
		}
	}
	return errors.Join(errs...)
}

// Classes returns how many frames there are of each class.
func Classes(frames []hostile.Frame) map[string]int {
	classes := map[string]int{}
	for i := range frames {
		classes[frames[i].Class]++
	}
	return classes
}

// Poisoned returns an error for each entry of the neighbour caches of namespaces that has another MAC than the pod with its address. A cache
// without pods is an error as well. pods are the addresses that are compared.
func Poisoned(namespaces map[string]string, pods func(netip.Addr) bool, want func(netip.Addr) net.HardwareAddr) error {
	var errs []error
	for _, name := range slices.Sorted(maps.Keys(namespaces)) {
		cache, err := traffic.Neighbours(namespaces[name])
		if err != nil {
			errs = append(errs, fmt.Errorf("the neighbour cache of %s: %w", name, err))
			continue
		}
		known := 0
		for ip, mac := range cache {
			if !pods(ip) {
				continue
			}
			known++
			if !bytes.Equal(mac, want(ip)) {
				errs = append(errs, fmt.Errorf("the neighbour cache of %s has MAC address %s for %s, want %s", name, mac, ip, want(ip)))
			}
		}
		if known == 0 {
			errs = append(errs, fmt.Errorf("the neighbour cache of %s is empty, so there is nothing to check", name))
		}
	}
	return errors.Join(errs...)
}
