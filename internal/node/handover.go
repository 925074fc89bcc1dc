package node

import (
	"slices"
	"sync"

	"weft.dev/weft/internal/link"
	"weft.dev/weft/internal/nft"
	"weft.dev/weft/internal/ovsdb"
)

// Handovers knows which networks have not handed over their complete state yet. Until then the loops remove nothing that may be
// theirs: a network that starts sooner, or alone, leaves the others' state as it is. One that never hands over holds up no other.
type Handovers struct {
	mu      sync.Mutex
	waiting map[string]Care
	// bridges are those in any network's care.
	bridges []string
	resync  []func()
}

// NewHandovers returns the handovers of networks with these cares, none of which has handed over.
func NewHandovers(cares map[string]Care) *Handovers {
	h := &Handovers{waiting: map[string]Care{}}
	for name, care := range cares {
		h.waiting[name] = care
		for _, bridge := range care.Bridges {
			h.bridges = append(h.bridges, bridge.Name)
		}
	}
	return h
}

// OnChange has a loop asked again what is to be kept: its Resync.
func (h *Handovers) OnChange(resync func()) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.resync = append(h.resync, resync)
}

// Done says that a network has handed over its complete state, or that it is not present and has none.
func (h *Handovers) Done(network string) {
	h.mu.Lock()
	_, waited := h.waiting[network]
	delete(h.waiting, network)
	resync := slices.Clone(h.resync)
	h.mu.Unlock()
	if waited {
		for _, again := range resync {
			again()
		}
	}
}

// Waiting reports whether any network has not handed over.
func (h *Handovers) Waiting() bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	return len(h.waiting) > 0
}

// any reports whether the care of a network that has not handed over satisfies a condition.
func (h *Handovers) any(condition func(Care) bool) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, care := range h.waiting {
		if condition(care) {
			return true
		}
	}
	return false
}

// KeepRule is the Keep of a RuleLoop: tables belong to one network each.
func (h *Handovers) KeepRule(key nft.Key, _ nft.Item) bool {
	return h.any(func(c Care) bool {
		return slices.ContainsFunc(c.Tables, func(t nft.Table) bool { return t.Family == key.Family && t.Name == key.Table })
	})
}

// KeepLink is the Keep of a LinkLoop. Whose a route or a device is cannot be seen in it, so all are kept until all have handed over.
func (h *Handovers) KeepLink(link.Key, link.Item) bool { return h.Waiting() }

// KeepRow is the Keep of a RowLoop: bridges belong to one network each. A row on a bridge of none is kept until all have handed over.
func (h *Handovers) KeepRow(key ovsdb.Key, row ovsdb.Row) bool {
	bridge := key.Name
	if port, ok := row.(*ovsdb.Port); ok {
		bridge = port.Bridge
	}
	return h.any(func(c Care) bool {
		return slices.ContainsFunc(c.Bridges, func(b Bridge) bool { return b.Name == bridge })
	}) || h.Waiting() && !slices.Contains(h.bridges, bridge)
}
