package nft

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"strings"
)

// Traffic is a kind of packets at a hook that other programs' chains have to let pass: packets from a device, to a device, from a range of
// addresses, to a range, or UDP to a port. Exactly one of the five is set.
type Traffic struct {
	// Family is FamilyIPv4 or FamilyIPv6.
	Family Family
	Hook   Hook
	// InDevice is also the device of an ingress hook.
	InDevice, OutDevice string
	// Source and Destination are of the same family.
	Source, Destination netip.Prefix
	UDPPort             uint16
}

// String implements fmt.Stringer.
func (p Traffic) String() string {
	switch {
	case p.InDevice != "":
		return "from " + p.InDevice
	case p.OutDevice != "":
		return "to " + p.OutDevice
	case p.Source.IsValid():
		return "from " + p.Source.String()
	case p.Destination.IsValid():
		return "to " + p.Destination.String()
	default:
		return "to UDP port " + strconv.Itoa(int(p.UDPPort))
	}
}

// ForeignDrop is a place in another table that drops, or may drop, the packets of a kind of traffic.
type ForeignDrop struct {
	Family   Family
	Table    string
	Chain    string
	Hook     Hook
	Priority int
	// Traffic is the kind of packets that it drops.
	Traffic Traffic
	// Rule is the dropping rule, in the words of nft's listing, or "policy drop".
	Rule string
	// Handle of the rule; 0 for a policy.
	Handle int
	// In is the chain that contains the rule, if Chain reaches it by a jump; else it is Chain.
	In string
	// Conditional reports that the rule, or the jump to it, has further conditions, so that it drops only some of the packets.
	Conditional bool
	// Named reports that the rule, or the jump to it, names its device or port: it is intended.
	Named bool
	// Openable reports that a ForeignJump can be added to Chain.
	Openable bool
}

// String names the chain and the rule, for messages.
func (d *ForeignDrop) String() string {
	text := fmt.Sprintf("chain %s of table %s %s (hook %s) drops packets %s: %s", d.Chain, d.Family, d.Table, d.Hook, d.Traffic, d.Rule)
	if d.In != d.Chain {
		text += " (in chain " + d.In + ")"
	}
	return text
}

// Jump returns the item that, committed, lets the kind of traffic through the chain. Commit it under a separate owner: the chain belongs to another
// program and may be removed at any time; then nft rejects the transaction and names the chain.
func (d *ForeignDrop) Jump(owner string) *ForeignJump {
	return &ForeignJump{
		Family: d.Family, Table: d.Table, Chain: d.Chain, Owner: owner,
		InDevice: d.Traffic.InDevice, OutDevice: d.Traffic.OutDevice, UDPPort: d.Traffic.UDPPort,
		Source: d.Traffic.Source, Destination: d.Traffic.Destination,
	}
}

// Survey is the effect of other programs' chains on some kinds of traffic.
type Survey struct {
	// Drops are in the order of the chains. Rules with Mark are ignored: what they let pass is in Drops as long as it would be dropped without
	// them.
	Drops []ForeignDrop
	// watched are the chains that were examined.
	watched map[Key]bool
	// rules counts the rules of the chains in tables that were listed completely.
	rules map[Key]int
}

// Rules returns how many rules a chain of another program has. Tables with very many chains, tables without a base chain, and tables of the
// families arp and bridge are not examined: their chains count as empty.
func (s *Survey) Rules(chain Key) int { return s.rules[chain] }

// Concerns reports whether a drift may change the result of a Survey of the same kinds of traffic.
func (s *Survey) Concerns(drift *Drift) bool {
	if drift.All || drift.Hooks && !drift.InCare {
		return true
	}
	return slices.ContainsFunc(drift.Chains, func(chain string) bool {
		return s.watched[Key{drift.Family, drift.Table, KindChain, chain}]
	})
}

// wholeTable is the maximum number of chains of a foreign table that is listed completely: firewalls have far fewer. Of larger tables,
// which are kube-proxy's, only the base chains are examined.
const wholeTable = 1000

// Survey searches the base chains of tables that are not Weft's for what drops packets of the kinds of traffic. In doubt it reports a drop, as
// conditional: sets and verdict maps are not examined. Rules of legacy iptables (not iptables-nft) are not visible to nft and not in the
// result. It may be called while the engine is used.
func (e *Engine) Survey(ctx context.Context, traffic ...Traffic) (*Survey, error) {
	survey := &Survey{watched: map[Key]bool{}, rules: map[Key]int{}}
	bases, counts, err := e.foreignChains()
	if err != nil {
		return nil, fmt.Errorf("looking for dropping rules: %w", err)
	}
	listings := map[tableKey]*foreignListing{}
	for _, base := range bases {
		key := tableKey{base.Family, base.Table}
		table := listings[key]
		if table == nil || counts[key] > wholeTable {
			table, err = e.foreignListing(ctx, base, counts[key] <= wholeTable)
			if errors.Is(err, ErrMissing) {
				continue // deleted meanwhile; an event reports it
			}
			if err != nil {
				return nil, fmt.Errorf("looking for dropping rules: %w", err)
			}
			listings[key] = table
			for chain, rules := range table.rules {
				survey.rules[Key{base.Family, base.Table, KindChain, chain}] = len(rules)
			}
		}
		for _, kind := range traffic {
			if !base.meets(kind) {
				continue
			}
			search := &dropSearch{table: table, base: base, kind: kind, survey: survey, walked: map[string]walked{}}
			search.look()
		}
	}
	return survey, nil
}

// foreignListing is another table, or one base chain of it.
type foreignListing struct {
	rules map[string][]ruleObject
	words map[int]string // of the rules, by handle; empty if no rule drops
}

// meets reports whether packets of a kind of traffic traverse a base chain.
func (c *chainObject) meets(kind Traffic) bool {
	switch c.Family {
	case FamilyInet, FamilyNetdev, kind.Family:
	default:
		return false
	}
	if c.Hook == HookIngress && !slices.Contains(c.devices, kind.InDevice) {
		return false
	}
	return c.Hook == kind.Hook
}

// addWords reads the rules' words from a text listing.
func (l *foreignListing) addWords(text string) {
	for line := range strings.Lines(text) {
		rule, number, found := strings.Cut(strings.TrimSpace(line), " # handle ")
		if handle, err := strconv.Atoi(number); found && err == nil && !strings.HasSuffix(rule, "{") {
			l.words[handle] = rule
		}
	}
}

// foreignListing lists the table of a base chain, or the chain alone. Only dropping rules are reported with their words: without any, the
// text listing, which is another process, is not needed.
func (e *Engine) foreignListing(ctx context.Context, base chainObject, whole bool) (*foreignListing, error) {
	what := listingOf(base, whole)
	structured, err := e.ask(ctx, append([]string{"-j", "-t"}, what...)...)
	if err != nil {
		return nil, err
	}
	objects, err := parseObjects(structured)
	if err != nil {
		return nil, err
	}
	table := newForeignListing(objects)
	if slices.ContainsFunc(objects.rules, func(rule ruleObject) bool { return drops(&rule) }) {
		text, err := e.ask(ctx, append([]string{"-s", "-a", "-t"}, what...)...)
		if err != nil {
			return nil, err
		}
		table.addWords(string(text))
	}
	return table, nil
}

// drops reports whether a rule's own verdict is to drop.
func drops(rule *ruleObject) bool {
	verdict, _ := ruleVerdict(rule)
	return verdict == "drop" || verdict == "reject"
}

func newForeignListing(objects *objects) *foreignListing {
	table := &foreignListing{rules: map[string][]ruleObject{}, words: map[int]string{}}
	for _, rule := range objects.rules {
		table.rules[rule.Chain] = append(table.rules[rule.Chain], rule)
	}
	return table
}

// dropSearch walks one base chain and the chains it jumps to, for one kind of traffic.
type dropSearch struct {
	table  *foreignListing
	base   chainObject
	kind   Traffic
	survey *Survey
	walked map[string]walked
}

// walked records a walk of a chain: whether all packets reached it, and the result of walk.
type walked struct{ all, ended bool }

func (s *dropSearch) look() {
	if ended := s.walk(s.base.Name, reach{any: true}); !ended && s.base.Policy == PolicyDrop {
		s.found(s.base.Name, "policy drop", 0, reach{any: true})
	}
}

func (s *dropSearch) found(chain, rule string, handle int, way reach) {
	s.survey.Drops = append(s.survey.Drops, ForeignDrop{
		Family: s.base.Family, Table: s.base.Table, Chain: s.base.Name, Hook: s.base.Hook, Priority: s.base.Priority,
		Traffic: s.kind, Rule: rule, Handle: handle, In: chain, Conditional: way.conditional, Named: way.named, Openable: opens(s.base),
	})
}

// walk examines a chain's rules and reports whether no packet of the kind of traffic gets past its end. A chain is examined once, and a second time
// if at first only some packets reached it and later all.
func (s *dropSearch) walk(chain string, way reach) (ended bool) {
	all := !way.conditional && !way.named
	if before, ok := s.walked[chain]; ok && (before.all || !all) {
		return before.ended
	}
	s.survey.watched[Key{s.base.Family, s.base.Table, KindChain, chain}] = true
	s.walked[chain] = walked{all, false}
	ended = s.walkRules(chain, way)
	s.walked[chain] = walked{all || s.walked[chain].all, ended}
	return ended
}

func (s *dropSearch) walkRules(chain string, way reach) (ended bool) {
	for i := range s.table.rules[chain] {
		rule := &s.table.rules[chain][i]
		if _, marked := isMarked(rule); marked {
			continue
		}
		reach := s.reach(rule)
		if !reach.any {
			continue
		}
		narrowed := way.and(reach)
		switch verdict, target := ruleVerdict(rule); verdict {
		case "drop", "reject":
			s.found(chain, s.table.words[rule.Handle], rule.Handle, narrowed)
			ended = !reach.conditional
		case "accept":
			ended = !reach.conditional
		case "return":
			if !reach.conditional {
				return false // back to the calling chain
			}
		case "jump":
			ended = s.walk(target, narrowed) && !reach.conditional
		case "goto":
			if inner := s.walk(target, narrowed); !reach.conditional {
				return inner // the target's end returns to the caller of this chain
			}
		}
		if ended {
			return true
		}
	}
	return false
}

// reach is the set of packets of a kind of traffic that a rule applies to: none, some (conditional), or all; and whether the rule names them
// (named).
type reach struct{ any, conditional, named bool }

func (r reach) and(other reach) reach {
	return reach{r.any && other.any, r.conditional || other.conditional, r.named || other.named}
}

func (s *dropSearch) reach(rule *ruleObject) reach {
	all := reach{any: true}
	for _, expr := range rule.Expr {
		if has(expr, "counter") || has(expr, "log") || isComment(expr) {
			continue
		}
		if verdict, _ := exprVerdict(expr); verdict != "" {
			continue
		}
		all = all.and(s.exprReach(expr))
	}
	return all
}

func (s *dropSearch) exprReach(expr map[string]json.RawMessage) reach {
	in, out, isDevice := deviceMatch(expr)
	port, isPort := udpPortMatch(expr)
	switch {
	case isDevice && in != "" && s.kind.InDevice != "":
		return s.compare(sameDevice(in, s.kind.InDevice), in == s.kind.InDevice)
	case isDevice && out != "" && s.kind.OutDevice != "":
		return s.compare(sameDevice(out, s.kind.OutDevice), out == s.kind.OutDevice)
	case isPort && s.kind.UDPPort != 0:
		return s.compare(port == s.kind.UDPPort, true)
	case isDevice && in == loopback && s.kind.UDPPort != 0:
		return reach{} // packets of other nodes
	}
	if source, destination, ok := rangeMatch(expr); ok {
		if source.IsValid() && s.kind.Source.IsValid() {
			return rangeReach(source, s.kind.Source)
		}
		if destination.IsValid() && s.kind.Destination.IsValid() {
			return rangeReach(destination, s.kind.Destination)
		}
	}
	return reach{any: true, conditional: true}
}

// rangeReach returns which addresses of a range are in a rule's range.
func rangeReach(inRule, kind netip.Prefix) reach {
	switch {
	case !inRule.Overlaps(kind):
		return reach{}
	case inRule.Bits() > kind.Bits():
		return reach{any: true, conditional: true, named: true}
	default:
		return reach{any: true, named: inRule.Bits() == kind.Bits()}
	}
}

// loopback is the device on which no packet of another node arrives.
const loopback = "lo"

func (s *dropSearch) compare(equal, named bool) reach {
	return reach{any: equal, named: equal && named}
}

// sameDevice compares a device's name with that in a rule, which may end with an asterisk.
func sameDevice(inRule, device string) bool {
	prefix, wild := strings.CutSuffix(inRule, "*")
	return inRule == device || wild && strings.HasPrefix(device, prefix)
}

// ruleVerdict returns a rule's verdict, and the target of its jump.
func ruleVerdict(rule *ruleObject) (verdict, target string) {
	for _, expr := range rule.Expr {
		if verdict, target = exprVerdict(expr); verdict != "" {
			return verdict, target
		}
	}
	return "", ""
}

func exprVerdict(expr map[string]json.RawMessage) (verdict, target string) {
	for word, body := range expr {
		switch word {
		case "accept", "drop", "reject", "return":
			return word, ""
		case "jump", "goto":
			var to struct {
				Target string `json:"target"`
			}
			_ = json.Unmarshal(body, &to) // an unknown form has no target
			return word, to.Target
		case "xt":
			if extensionOf(expr) == (extension{"target", "REJECT"}) {
				return "reject", ""
			}
		}
	}
	return "", ""
}

// extension is an iptables statement that nft cannot express.
type extension struct {
	Type string `json:"type"`
	Name string `json:"name"`
}

func extensionOf(expr map[string]json.RawMessage) extension {
	var found extension
	if json.Unmarshal(expr["xt"], &found) != nil {
		return extension{}
	}
	return found
}

// isComment reports whether a statement is a comment of iptables-restore; nft does not print its text.
func isComment(expr map[string]json.RawMessage) bool {
	return extensionOf(expr) == extension{"match", "comment"}
}
