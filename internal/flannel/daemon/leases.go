package daemon

import (
	"log/slog"
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

// begin makes a generation the current one.
func (d *Daemon) begin(p *presence) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.present = p
}

// report applies an update of the store: the leases that it changes are compiled and handed to the engine.
func (d *Daemon) report(p *presence, update lease.Update) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.present != p { // a former generation's store
		return
	}
	if update.Restart != nil {
		select {
		case p.restart <- update.Restart:
		default: // a restart is already requested
		}
	}
	first := !p.leases.Known()
	if first && !update.All {
		return
	}
	verdict := p.leases.Update(update)
	problems := d.apply(p, &verdict)
	maps.Copy(problems, verdict.Refused)
	maps.Copy(problems, update.Problems)
	p.warn(d.options.Log, problems, verdict.Judged)
	if first {
		close(p.known)
	}
}

// apply compiles the leases that changed and hands their fragments to the engines.
func (d *Daemon) apply(p *presence, verdict *lease.Verdict) map[string]error {
	fragments, problems := map[reconcile.Owner]fabric.Fragment{}, map[string]error{}
	commands := map[reconcile.Owner]map[extension.Key]extension.Item{}
	nodes, rules := map[reconcile.Owner]map[nft.Key]nft.Item{}, d.nodeRules(p)
	script, _ := p.view.Backend.(netconf.Extension)
	for name, l := range verdict.Accepted {
		fragment, err := p.view.Peer(l)
		if err != nil {
			problems[name] = err
		}
		owner := peerOwner + reconcile.Owner(name)
		fragments[owner], commands[owner] = fragment, extension.Compile(script, l)
		nodes[owner] = rules.Node([2]netip.Addr{l.PublicIP, l.PublicIP6})
		d.handed[name] = true
	}
	for _, name := range verdict.Gone {
		owner := peerOwner + reconcile.Owner(name)
		fragments[owner], commands[owner], nodes[owner] = fabric.Fragment{}, nil, nil
		delete(d.handed, name)
	}
	d.hand(fragments, commands, nodes)
	return problems
}

// hand sets the fragments of changed leases in the engines.
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

// handNodes hands the addresses of nodes to the rules' engine. Until the generation's own rules are there, which contain the set for the
// addresses, they wait. Waiting items are kept if the generation ends first.
func (d *Daemon) handNodes(nodes map[reconcile.Owner]map[nft.Key]nft.Item) {
	if d.present.ruled {
		d.rules.Set(nodes)
		return
	}
	maps.Copy(d.waiting, nodes)
}

// rule hands over the node's own rules with all items that waited for them.
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

// warn logs the problems of leases, each once. Of judged leases without a problem, it deletes the record of what was logged.
func (p *presence) warn(log *slog.Logger, problems map[string]error, judged []string) {
	for _, name := range slices.Sorted(maps.Keys(problems)) {
		if text := problems[name].Error(); p.refused[name] != text {
			p.refused[name] = text
			log.Warn("lease not used", "lease", name, "error", problems[name])
		}
	}
	for _, name := range judged {
		if problems[name] == nil {
			delete(p.refused, name)
		}
	}
}

// forget withdraws the fragments of former generations' leases that do not exist any more.
func (d *Daemon) forget(p *presence) {
	d.mu.Lock()
	defer d.mu.Unlock()
	fragments, commands := map[reconcile.Owner]fabric.Fragment{}, map[reconcile.Owner]map[extension.Key]extension.Item{}
	nodes := map[reconcile.Owner]map[nft.Key]nft.Item{}
	for name := range d.handed {
		if !p.leases.Has(name) {
			owner := peerOwner + reconcile.Owner(name)
			fragments[owner], commands[owner], nodes[owner] = fabric.Fragment{}, nil, nil
			delete(d.handed, name)
		}
	}
	d.hand(fragments, commands, nodes)
}
