package ports

import (
	"errors"
	"fmt"

	"weft.dev/weft/internal/neutron/host"
)

// errTwice is the problem of a port whose names on the switch another port has.
var errTwice = errors.New("another port of this node has the same first 12 digits: delete this port and create another")

// slots are the numbers of a node's ports.
type slots struct {
	// of has the port of each slot.
	of map[host.Slot]string
	// former is what a former agent process left, by the digits of the port.
	former map[string]host.Left
}

func newSlots() slots { return slots{of: map[host.Slot]string{}, former: map[string]host.Left{}} }

// assign assigns a port a slot: that of a former agent process if it had one.
func (s *slots) assign(uuid string) (host.Slot, error) {
	digits := host.Digits(uuid)
	for _, other := range s.of {
		if other != uuid && host.Digits(other) == digits {
			return -1, errTwice
		}
	}
	left, had := s.former[digits]
	delete(s.former, digits)
	if _, taken := s.of[left.Slot]; had && !taken {
		s.of[left.Slot] = uuid
		return left.Slot, nil
	}
	kept := map[host.Slot]bool{}
	for _, left := range s.former {
		kept[left.Slot] = true
	}
	for slot := range host.Slot(host.Slots) {
		if _, taken := s.of[slot]; !taken && !kept[slot] {
			s.of[slot] = uuid
			return slot, nil
		}
	}
	return -1, fmt.Errorf("the node has %d ports already", host.Slots)
}
