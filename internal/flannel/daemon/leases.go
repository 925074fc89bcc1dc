package daemon

import (
	"maps"
	"net/netip"
	"slices"

	"weft.dev/weft/internal/flannel/extension"
	"weft.dev/weft/internal/flannel/fabric"
	"weft.dev/weft/internal/flannel/lease"
	"weft.dev/weft/internal/flannel/netconf"
	"weft.dev/weft/internal/nft"
	"weft.dev/weft/internal/reconcile"
)

// begin makes a generation the present one.
func (d *Daemon) begin(p *presence) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.present = p
}

// report takes an update of the store: the leases that changed by it are compiled and handed to the engine.
func (d *Daemon) report(p *presence, update lease.Update) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.present != p { // a former generation's store
		return
	}
	if update.Restart != nil {
		select {
		case p.restart <- update.Restart:
		default: // one is under way
		}
	}
	first := p.claims == nil
	if first && !update.All {
		return
	}
	if update.All {
		p.claims = maps.Clone(update.Set)
	} else {
		maps.Copy(p.claims, update.Set)
	}
	for _, name := range update.Delete {
		delete(p.claims, name)
	}
	accepted, refused := lease.Judge(p.claims, p.own)
	problems := d.apply(p, accepted)
	maps.Copy(problems, refused)
	maps.Copy(problems, update.Problems)
	d.tell(p, problems, update)
	if first {
		close(p.known)
	}
}

// apply hands the fragments of leases that changed to the engine.
func (d *Daemon) apply(p *presence, accepted map[string]lease.Lease) map[string]error {
	fragments, problems := map[reconcile.Owner]fabric.Fragment{}, map[string]error{}
	commands := map[reconcile.Owner]map[extension.Key]extension.Item{}
	nodes, rules := map[reconcile.Owner]map[nft.Key]nft.Item{}, d.nodeRules(p)
	script, _ := p.view.Backend.(netconf.Extension)
	for name, l := range accepted {
		if before, ok := p.accepted[name]; ok && before == l {
			continue
		}
		fragment, err := p.view.Peer(l)
		if err != nil {
			problems[name] = err
		}
		owner := peerOwner + reconcile.Owner(name)
		fragments[owner], commands[owner] = fragment, extension.Compile(script, l)
		nodes[owner] = rules.Node([2]netip.Addr{l.PublicIP, l.PublicIP6})
		d.handed[name] = true
	}
	for name := range p.accepted {
		if _, ok := accepted[name]; !ok {
			owner := peerOwner + reconcile.Owner(name)
			fragments[owner], commands[owner], nodes[owner] = fabric.Fragment{}, nil, nil
			delete(d.handed, name)
		}
	}
	p.accepted = accepted
	d.hand(fragments, commands, nodes)
	return problems
}

// hand gives the engines the fragments of leases that changed.
func (d *Daemon) hand(
	fragments map[reconcile.Owner]fabric.Fragment, commands map[reconcile.Owner]map[extension.Key]extension.Item,
	nodes map[reconcile.Owner]map[nft.Key]nft.Item,
) {
	if len(fragments) > 0 {
		d.handNodes(nodes) // first: the peer's packets may arrive at once
		d.links.Set(fragments)
		d.commands.Set(commands)
	}
}

// handNodes gives the rules' engine the addresses of nodes, which wait for the set that they are in until the generation's own rules are
// there. What waits outlives a generation that ends before.
func (d *Daemon) handNodes(nodes map[reconcile.Owner]map[nft.Key]nft.Item) {
	if d.present.ruled {
		d.rules.Set(nodes)
		return
	}
	maps.Copy(d.waiting, nodes)
}

// rule hands over the node's own rules with all that waited for them.
func (d *Daemon) rule(p *presence) map[reconcile.Owner]map[nft.Key]nft.Item {
	d.mu.Lock()
	defer d.mu.Unlock()
	own := map[reconcile.Owner]map[nft.Key]nft.Item{ownOwner: d.nodeRules(p).Rules()}
	all := maps.Clone(own)
	maps.Copy(all, d.waiting)
	d.rules.Set(all)
	p.ruled = true
	clear(d.waiting)
	return own
}

// tell logs what is wrong with leases, once for each.
func (d *Daemon) tell(p *presence, problems map[string]error, update lease.Update) {
	if p.refused == nil {
		p.refused = map[string]string{}
	}
	for _, name := range slices.Sorted(maps.Keys(problems)) {
		if text := problems[name].Error(); p.refused[name] != text {
			p.refused[name] = text
			d.options.Log.Warn("lease not used", "lease", name, "error", problems[name])
		}
	}
	for name := range update.Set {
		if problems[name] == nil {
			delete(p.refused, name)
		}
	}
	for _, name := range update.Delete {
		delete(p.refused, name)
	}
}

// forget withdraws the fragments of former generations' leases that are gone by now.
func (d *Daemon) forget(p *presence) {
	d.mu.Lock()
	defer d.mu.Unlock()
	fragments, commands := map[reconcile.Owner]fabric.Fragment{}, map[reconcile.Owner]map[extension.Key]extension.Item{}
	nodes := map[reconcile.Owner]map[nft.Key]nft.Item{}
	for name := range d.handed {
		if _, ok := p.accepted[name]; !ok {
			owner := peerOwner + reconcile.Owner(name)
			fragments[owner], commands[owner], nodes[owner] = fabric.Fragment{}, nil, nil
			delete(d.handed, name)
		}
	}
	d.hand(fragments, commands, nodes)
}
