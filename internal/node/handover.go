package node

import (
	"slices"
	"sync"

	"weft.dev/weft/internal/link"
	"weft.dev/weft/internal/nft"
	"weft.dev/weft/internal/ovsdb"
)

// Handovers tracks which networks have not handed over their complete state yet. Until then the loops remove nothing that may belong to
// them: a network that starts earlier, or alone, does not remove the state of the others. A network that never hands over does not delay
// the others.
type Handovers struct {
	mu      sync.Mutex
	waiting map[string]Care
	// bridges are the bridges of all networks.
	bridges []string
	resync  []func()
}

// NewHandovers returns the handovers of networks with the given cares. None of them has handed over.
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

// OnChange adds the KeepChanged of a loop, to be called when what is kept changes.
func (h *Handovers) OnChange(resync func()) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.resync = append(h.resync, resync)
}

// Done records that a network has handed over its complete state, or that it is not present and has none.
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

// any reports whether the condition is true for the care of a network that has not handed over.
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

// KeepRule is the Keep of a RuleLoop. Each table belongs to one network.
func (h *Handovers) KeepRule(key nft.Key, _ nft.Item) bool {
	return h.any(func(c Care) bool {
		return slices.ContainsFunc(c.Tables, func(t nft.Table) bool { return t.Family == key.Family && t.Name == key.Table })
	})
}

// KeepLink is the Keep of a LinkLoop. The network of a route or a device is not known, so all are kept until all networks have handed over.
func (h *Handovers) KeepLink(link.Key, link.Item) bool { return h.Waiting() }

// KeepRow is the Keep of a RowLoop. Each bridge belongs to one network. Rows on other bridges are kept until all networks have handed over.
func (h *Handovers) KeepRow(key ovsdb.Key, row ovsdb.Row) bool {
	bridge := key.Name
	if port, ok := row.(*ovsdb.Port); ok {
		bridge = port.Bridge
	}
	return h.any(func(c Care) bool {
		return slices.ContainsFunc(c.Bridges, func(b Bridge) bool { return b.Name == bridge })
	}) || h.Waiting() && !slices.Contains(h.bridges, bridge)
}
