package daemon

import (
	"context"
	"log/slog"
	"maps"
	"net/netip"
	"slices"
	"sync"

	"weft.dev/weft/internal/flannel/extension"
	"weft.dev/weft/internal/flannel/fabric"
	"weft.dev/weft/internal/flannel/lease"
	"weft.dev/weft/internal/flannel/netconf"
	"weft.dev/weft/internal/nft"
	"weft.dev/weft/internal/reconcile"
)

// ownOwner is the owner of the node's own fragment, peerOwner the prefix of the owners of other nodes'.
const (
	ownOwner  reconcile.Owner = "node"
	peerOwner reconcile.Owner = "lease/"
)

// peers hands other nodes' leases to the engines.
type peers struct {
	engines *engines
	log     *slog.Logger

	// mu guards what follows.
	mu      sync.Mutex
	present *presence // the current generation
	// handed are the leases of all generations so far whose fragments the engines have. waiting are nftables items of added or removed peers
	// that wait for the generation's own rules.
	handed  map[string]bool
	waiting map[reconcile.Owner]map[nft.Key]nft.Item
}

func newPeers(e *engines, log *slog.Logger) *peers {
	return &peers{engines: e, log: log, handed: map[string]bool{}, waiting: map[reconcile.Owner]map[nft.Key]nft.Item{}}
}

// begin makes a generation the current one.
func (n *peers) begin(p *presence) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.present = p
}

// report applies an update of the store: the leases that it changes are compiled and handed to the engine.
func (n *peers) report(p *presence, update lease.Update) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.present != p { // a former generation's store
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
	problems := n.apply(p, &verdict)
	maps.Copy(problems, verdict.Refused)
	maps.Copy(problems, update.Problems)
	p.warn(n.log, problems, verdict.Judged)
	if first {
		close(p.known)
	}
}

// apply compiles the leases that changed and hands their fragments to the engines.
func (n *peers) apply(p *presence, verdict *lease.Verdict) map[string]error {
	fragments, problems := map[reconcile.Owner]fabric.Fragment{}, map[string]error{}
	commands := map[reconcile.Owner]map[extension.Key]extension.Item{}
	nodes, rules := map[reconcile.Owner]map[nft.Key]nft.Item{}, p.rules
	script, _ := p.view.Backend.(netconf.Extension)
	for name, l := range verdict.Accepted {
		fragment, err := p.view.Peer(l)
		if err != nil {
			problems[name] = err
		}
		owner := peerOwner + reconcile.Owner(name)
		fragments[owner], commands[owner] = fragment, extension.Compile(script, l)
		nodes[owner] = rules.Node([2]netip.Addr{l.PublicIP, l.PublicIP6})
		n.handed[name] = true
	}
	for _, name := range verdict.Gone {
		owner := peerOwner + reconcile.Owner(name)
		fragments[owner], commands[owner], nodes[owner] = fabric.Fragment{}, nil, nil
		delete(n.handed, name)
	}
	n.hand(fragments, commands, nodes)
	return problems
}

// relink compiles all leases again if the uplink's ranges have changed.
func (n *peers) relink(p *presence, links []netip.Prefix) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.present != p || slices.Equal(p.view.Links, links) {
		return
	}
	n.log.Info("the ranges that the interface to other nodes reaches without a gateway changed", "interface", p.view.Uplink.Name, "ranges", links)
	p.view.Links = links
	n.apply(p, &lease.Verdict{Accepted: p.leases.Accepted()}) // problems of leases do not depend on it
}

// hand sets the fragments of changed leases in the engines.
func (n *peers) hand(
	fragments map[reconcile.Owner]fabric.Fragment, commands map[reconcile.Owner]map[extension.Key]extension.Item,
	nodes map[reconcile.Owner]map[nft.Key]nft.Item,
) {
	if len(fragments) > 0 {
		n.handNodes(nodes) // first: the peer's packets may arrive at once
		n.engines.links.Set(fragments)
		n.engines.commands.Set(commands)
	}
}

// handNodes hands the addresses of nodes to the rules' engine. Until the generation's own rules are there, which contain the set for the
// addresses, they wait. Waiting items are kept if the generation ends first.
func (n *peers) handNodes(nodes map[reconcile.Owner]map[nft.Key]nft.Item) {
	if n.present.ruled {
		n.engines.rules.Set(nodes)
		return
	}
	maps.Copy(n.waiting, nodes)
}

// programRules brings the node's own rules into effect, and hands over the addresses of other nodes. It commits both in one transaction if
// the node has a tunnel device, through which packets arrive already, or an earlier process's rules, whose addresses would be removed
// first. Otherwise it does not wait for the addresses: nft(8) takes a while for thousands of them, and the devices are made meanwhile.
func (n *peers) programRules(ctx context.Context, p *presence) error {
	present, err := hasTunnel()
	if err == nil && !present {
		present, err = hasRules()
	}
	if err != nil {
		return err
	}
	if present {
		return n.engines.rules.Start(ctx, n.rule(p))
	}
	if err := n.engines.rules.Start(ctx, map[reconcile.Owner]map[nft.Key]nft.Item{ownOwner: p.rules.Rules()}); err != nil {
		return err
	}
	n.rule(p)
	return nil
}

// rule hands over the node's own rules with all items that waited for them.
func (n *peers) rule(p *presence) map[reconcile.Owner]map[nft.Key]nft.Item {
	n.mu.Lock()
	defer n.mu.Unlock()
	own := map[reconcile.Owner]map[nft.Key]nft.Item{ownOwner: p.rules.Rules()}
	all := maps.Clone(own)
	maps.Copy(all, n.waiting)
	n.engines.rules.Set(all)
	p.ruled = true
	clear(n.waiting)
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
func (n *peers) forget(p *presence) {
	n.mu.Lock()
	defer n.mu.Unlock()
	fragments, commands := map[reconcile.Owner]fabric.Fragment{}, map[reconcile.Owner]map[extension.Key]extension.Item{}
	nodes := map[reconcile.Owner]map[nft.Key]nft.Item{}
	for name := range n.handed {
		if !p.leases.Has(name) {
			owner := peerOwner + reconcile.Owner(name)
			fragments[owner], commands[owner], nodes[owner] = fabric.Fragment{}, nil, nil
			delete(n.handed, name)
		}
	}
	n.hand(fragments, commands, nodes)
}

// each passes the accepted leases of a generation to use until that returns false, in the map's random order: sorting thousands would delay
// updates.
func (n *peers) each(p *presence, use func(lease.Lease) bool) {
	n.mu.Lock()
	defer n.mu.Unlock()
	for _, l := range p.leases.Accepted() {
		if !use(l) {
			return
		}
	}
}
