package ports

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"

	"weft.dev/weft/internal/attach"
	"weft.dev/weft/internal/link"
	"weft.dev/weft/internal/link/podlink"
	"weft.dev/weft/internal/neutron/host"
)

// Links creates, lists and deletes pre-plugged pairs. *podveth.Pods does it in the kernel, *podlink.Fake in memory.
type Links interface {
	podlink.PrepluggedLinks
	Delete(ctx context.Context, hostNames ...string) error
}

// pairs are the pre-plugged pairs of ports (podlink.Preplugged). A port's pair is plugged into br-n together with the port, and closed until a
// pod's flows open it: so an ADD changes no row and no link of the switch. A pair serves one pod. It is deleted when its port is unplugged,
// and another one is created before the port is plugged again, so that nothing a pod has kept is on the next pod's port.
type pairs struct {
	// links is nil if there are no pairs.
	links Links
	// path is that of the namespace with the veth peers. While it does not exist, pods get interfaces of their own.
	path string
	// shape has what is common to all pairs.
	shape podlink.Preplugged
	// left are the pairs of a former agent process that no port has adopted. Only Start and passes use it.
	left map[host.Slot]podlink.PrepluggedPort
}

// defaultMTU is the kernel's default.
const defaultMTU = 1500

// of returns the desired pair of a slot.
func (m *pairs) of(slot host.Slot, mtu int) podlink.Preplugged {
	pair := m.shape
	pair.Name, pair.MTU = slot.Preplugged(), cmp.Or(mtu, defaultMTU)
	return pair
}

// delete deletes pairs, and returns why some may still exist, by their names. Another program's link with the name of one is not a pair.
func (m *pairs) delete(ctx context.Context, names []string) map[string]error {
	if len(names) == 0 || m.links.Delete(ctx, names...) == nil {
		return nil
	}
	failed := map[string]error{}
	for _, name := range names { // each alone: the failure of one does not hide another's
		if err := m.links.Delete(ctx, name); err != nil && !errors.Is(err, link.ErrForeign) {
			failed[name] = fmt.Errorf("delete pre-plugged port %s: %w", name, err)
		}
	}
	return failed
}

// outdated reports whether a port has a pair that differs from the desired one.
func (m *pairs) outdated(p *port) bool { return p.paired() && p.pair != m.of(p.slot, p.spec.MTU) }

// recover reads the pairs of a former agent process.
func (m *pairs) recover(ctx context.Context) error {
	m.left = map[host.Slot]podlink.PrepluggedPort{}
	if m.links == nil {
		return nil
	}
	found, err := m.links.ListPreplugged(ctx, m.path)
	if err != nil {
		return fmt.Errorf("pre-plugged ports of a former agent process: %w", err)
	}
	for name, pair := range found {
		if slot, is := host.PrepluggedSlot(name); is && !pair.Gone {
			m.left[slot] = pair
		}
	}
	return nil
}

// create creates pairs, and returns the names of those that exist afterwards. The namespace's absence is no error: the plugin creates it
// with the next ADD.
func (m *pairs) create(ctx context.Context, list []podlink.Preplugged) (created map[string]bool, err error) {
	created = map[string]bool{}
	err = m.links.CreatePreplugged(ctx, m.path, list...)
	switch {
	case errors.Is(err, link.ErrNoNamespace) || errors.Is(err, link.ErrNotNamespace):
		return created, nil
	case err == nil:
		for _, pair := range list {
			created[pair.Name] = true
		}
		return created, nil
	}
	var errs []error
	for _, pair := range list { // each alone: an interrupted run, or another program, has left a link with the name of one
		err := m.links.Delete(ctx, pair.Name)
		if err == nil {
			err = m.links.CreatePreplugged(ctx, m.path, pair)
		}
		created[pair.Name] = err == nil
		errs = append(errs, err)
	}
	return created, errors.Join(errs...)
}

// OnPair reports whether the attachment's interface is on its port's pre-plugged pair.
func OnPair(rec *attach.Record) bool {
	_, is := host.PrepluggedSlot(rec.HostInterface)
	return is
}

// adopt gives a port the pair of a former agent process. If an interface is on it, a pod has used the port.
func (m *pairs) adopt(p *port) {
	left, had := m.left[p.slot]
	if !had {
		return
	}
	delete(m.left, p.slot)
	p.pair = m.of(p.slot, left.MTU)
	p.pair.TxOffloadOff = left.TxOffloadOff
	p.used = p.used || !left.Idle
}

// pair creates the pairs of ports without one. Pods are kept off these ports until plug has plugged them.
func (ps *Ports) pair(ctx context.Context) error {
	if ps.pairs.links == nil {
		return nil
	}
	var chosen []*port
	var list []podlink.Preplugged
	ps.mu.Lock()
	for _, p := range ps.all {
		if p.wanted && !p.leaving && p.holder == nil && !p.used && !p.paired() {
			p.making = true
			chosen, list = append(chosen, p), append(list, ps.pairs.of(p.slot, p.spec.MTU))
		}
	}
	ps.mu.Unlock()
	if len(list) == 0 {
		return nil
	}
	created, err := ps.pairs.create(ctx, list)
	ps.mu.Lock()
	defer ps.mu.Unlock()
	for i, p := range chosen {
		if p.making = created[list[i].Name]; p.making {
			p.pair = list[i]
		}
	}
	if err != nil && ctx.Err() == nil {
		ps.opts.Log.WarnContext(ctx, "pre-plugging ports failed, trying again; pods get interfaces of their own meanwhile", "error", err)
	}
	return err
}

// unpair deletes the pairs of ports whose rows were removed, and adds to stuck those whose pairs may still exist.
func (ps *Ports) unpair(ctx context.Context, all []*port, stuck map[*port]error) {
	on := map[string]*port{}
	var names []string
	ps.mu.Lock()
	for _, p := range all {
		if p.paired() && stuck[p] == nil {
			on[p.pair.Name], names = p, append(names, p.pair.Name)
		}
	}
	ps.mu.Unlock()
	failed := ps.pairs.delete(ctx, names)
	for name, err := range failed {
		stuck[on[name]] = err
	}
}

// sweep deletes the pairs of a former agent process whose ports do not exist any more.
func (m *pairs) sweep(ctx context.Context) error {
	var names []string
	for slot := range m.left {
		names = append(names, slot.Preplugged())
	}
	failed := m.delete(ctx, names)
	maps.DeleteFunc(m.left, func(slot host.Slot, _ podlink.PrepluggedPort) bool { return failed[slot.Preplugged()] == nil })
	return errors.Join(slices.Collect(maps.Values(failed))...)
}

// look marks ports without pods whose pairs another program has deleted: they are plugged anew. A pod keeps its port until it is removed.
func (ps *Ports) look(ctx context.Context) error {
	if ps.pairs.links == nil || !ps.unseen.Swap(false) {
		return nil
	}
	found, err := ps.pairs.links.ListPreplugged(ctx, ps.pairs.path)
	if err != nil {
		ps.unseen.Store(true)
		return fmt.Errorf("look for missing pre-plugged ports: %w", err)
	}
	ps.mu.Lock()
	defer ps.mu.Unlock()
	for _, p := range ps.all {
		if pair, there := found[p.pair.Name]; p.paired() && p.holder == nil && (!there || pair.Gone) {
			p.outdated = true
		}
	}
	return nil
}
