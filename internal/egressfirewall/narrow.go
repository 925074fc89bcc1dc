package egressfirewall

import (
	"cmp"
	"encoding/binary"
	"net/netip"
	"slices"
)

// Narrowed reports whether the new firewall denies a destination that the old one allows. Nil means no firewall: everything is allowed.
func Narrowed(was, now *Firewall) bool {
	before, after := was.steps(), now.steps()
	old, fresh := Deny, Deny
	for len(before) > 0 || len(after) > 0 {
		var at uint64
		switch {
		case len(after) == 0, len(before) > 0 && before[0].from < after[0].from:
			at = before[0].from
		default:
			at = after[0].from
		}
		if len(before) > 0 && before[0].from == at {
			old, before = before[0].verdict, before[1:]
		}
		if len(after) > 0 && after[0].from == at {
			fresh, after = after[0].verdict, after[1:]
		}
		if old == Allow && fresh == Deny {
			return true
		}
	}
	return false
}

// step is the verdict on all addresses from one address up to the next step.
type step struct {
	from    uint64
	verdict Verdict
}

// span is a range and its verdict.
type span struct {
	first, last uint64
	verdict     Verdict
}

// steps returns the verdicts on all addresses, in the order of addresses.
func (f *Firewall) steps() []step {
	if f == nil {
		return []step{{0, Allow}}
	}
	spans := make([]span, 0, len(f.Entries))
	for i := range f.Entries {
		first, last := ends(f.Entries[i].To)
		spans = append(spans, span{first, last, f.Entries[i].Verdict})
	}
	slices.SortFunc(spans, func(a, b span) int { return cmp.Or(cmp.Compare(a.first, b.first), cmp.Compare(b.last, a.last)) })
	list := []step{{0, Deny}}
	say := func(from uint64, verdict Verdict) {
		if list[len(list)-1].from == from {
			list = list[:len(list)-1]
		}
		list = append(list, step{from, verdict})
	}
	var within []span // each contains the next
	leave := func(until uint64) {
		for len(within) > 0 && within[len(within)-1].last < until {
			after := within[len(within)-1].last + 1
			within = within[:len(within)-1]
			verdict := Deny
			if len(within) > 0 {
				verdict = within[len(within)-1].verdict
			}
			say(after, verdict)
		}
	}
	const end = uint64(1) << 32
	for _, s := range spans {
		leave(s.first)
		within = append(within, s)
		say(s.first, s.verdict)
	}
	leave(end)
	if list[len(list)-1].from == end {
		list = list[:len(list)-1]
	}
	return list
}

// ends returns a range's first and last address.
func ends(p netip.Prefix) (first, last uint64) {
	raw := p.Masked().Addr().As4()
	first = uint64(binary.BigEndian.Uint32(raw[:]))
	return first, first + uint64(1)<<(32-p.Bits()) - 1
}
