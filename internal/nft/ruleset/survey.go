package ruleset

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	"weft.dev/weft/internal/nft"
)

// wholeTable is the maximum number of chains of a foreign table that is listed completely: firewalls have far fewer. Of larger tables,
// which are kube-proxy's, only the base chains are examined.
const wholeTable = 1000

// Survey searches the base chains of tables that are not Weft's for what drops packets of the kinds of traffic. In doubt it reports a drop, as
// conditional: sets and verdict maps are not examined. Rules of legacy iptables (not iptables-nft) are not visible to nft and not in the
// result. It may be called while the engine is used.
func (e *Engine) Survey(ctx context.Context, traffic ...nft.Traffic) (*nft.Survey, error) {
	survey := &nft.Survey{Watched: map[nft.Key]bool{}, Counts: map[nft.Key]int{}}
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
			if errors.Is(err, nft.ErrMissing) {
				continue // deleted meanwhile; an event reports it
			}
			if err != nil {
				return nil, fmt.Errorf("looking for dropping rules: %w", err)
			}
			listings[key] = table
			for chain, rules := range table.rules {
				survey.Counts[key.object(nft.KindChain, chain)] = len(rules)
			}
		}
		if err := table.search(ctx, e, base, traffic, survey); err != nil {
			return nil, fmt.Errorf("looking for dropping rules: %w", err)
		}
	}
	return survey, nil
}

// foreignListing is another table, or one base chain of it.
type foreignListing struct {
	what  []string // nft's arguments that list it
	rules map[string][]ruleObject
	words map[int]string // of the rules, by handle; nil if they were not needed yet
}

// search adds what drops packets of the kinds of traffic in a base chain to the survey. The words of a rule need a text listing, which is another
// process: most tables have no rule that drops.
func (l *foreignListing) search(ctx context.Context, e *Engine, base chainObject, traffic []nft.Traffic, survey *nft.Survey) error {
	before := len(survey.Drops)
	for _, kind := range traffic {
		if base.meets(kind) {
			(&dropSearch{table: l, base: base, kind: kind, survey: survey, walked: map[string]walked{}}).look()
		}
	}
	drops := survey.Drops[before:]
	for i := range drops {
		if drops[i].Handle == 0 {
			continue // the chain's policy
		}
		if l.words == nil {
			text, err := e.ask(ctx, append([]string{"-s", "-a", "-t"}, l.what...)...)
			if err != nil && !errors.Is(err, nft.ErrMissing) { // a table that was deleted meanwhile; an event reports it
				return err
			}
			l.addWords(string(text))
		}
		drops[i].Rule = l.words[drops[i].Handle]
	}
	return nil
}

// meets reports whether packets of a kind of traffic traverse a base chain.
func (c *chainObject) meets(kind nft.Traffic) bool {
	switch c.Family {
	case nft.FamilyInet, nft.FamilyNetdev, kind.Family:
	default:
		return false
	}
	if c.Hook == nft.HookIngress && !slices.Contains(c.devices, kind.InDevice) {
		return false
	}
	return c.Hook == kind.Hook
}

// addWords reads the rules' words from a text listing.
func (l *foreignListing) addWords(text string) {
	l.words = map[int]string{}
	for line := range strings.Lines(text) {
		rule, number, found := strings.Cut(strings.TrimSpace(line), " # handle ")
		if handle, err := strconv.Atoi(number); found && err == nil && !strings.HasSuffix(rule, "{") {
			l.words[handle] = rule
		}
	}
}

// foreignListing lists the table of a base chain, or the chain alone.
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
	table.what = what
	return table, nil
}

func newForeignListing(objects *objects) *foreignListing {
	table := &foreignListing{rules: map[string][]ruleObject{}}
	for _, rule := range objects.rules {
		table.rules[rule.Chain] = append(table.rules[rule.Chain], rule)
	}
	return table
}

// dropSearch walks one base chain and the chains it jumps to, for one kind of traffic.
type dropSearch struct {
	table  *foreignListing
	base   chainObject
	kind   nft.Traffic
	survey *nft.Survey
	walked map[string]walked
}

// walked records a walk of a chain: whether all packets reached it, and the result of walk.
type walked struct{ all, ended bool }

func (s *dropSearch) look() {
	if ended := s.walk(s.base.Name, reach{any: true}); !ended && s.base.Policy == nft.PolicyDrop {
		s.found(s.base.Name, "policy drop", 0, reach{any: true})
	}
}

func (s *dropSearch) found(chain, rule string, handle int, way reach) {
	s.survey.Drops = append(s.survey.Drops, nft.ForeignDrop{
		Family: s.base.Family, Table: s.base.Table, Chain: s.base.Name, Hook: s.base.Hook, Priority: s.base.Priority,
		Traffic: s.kind, Rule: rule, Handle: handle, In: chain, Conditional: way.conditional, Named: way.named, Openable: nft.Openable(s.base.Family, s.base.Hook),
	})
}

// walk examines a chain's rules and reports whether no packet of the kind of traffic gets past its end. A chain is examined once, and a second time
// if at first only some packets reached it and later all.
func (s *dropSearch) walk(chain string, way reach) (ended bool) {
	all := !way.conditional && !way.named
	if before, ok := s.walked[chain]; ok && (before.all || !all) {
		return before.ended
	}
	s.survey.Watched[tableKey{s.base.Family, s.base.Table}.object(nft.KindChain, chain)] = true
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
			s.found(chain, "", rule.Handle, narrowed)
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
