package nft

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"sigs.k8s.io/knftables"
)

// ForeignDrop is a place in another table that would, or might, drop traffic of given interfaces.
type ForeignDrop struct {
	Family   Family
	Table    string
	Chain    string
	Hook     Hook
	Priority int
	// Rule is what drops, in the words of nft's listing, or "policy drop".
	Rule string
	// Handle of the rule; 0 for a policy.
	Handle int
	// In is the chain that the rule stands in, when Chain reaches it by a jump; else it is Chain.
	In string
	// Conditional says that the rule, or the way to it, has further conditions, so that it may drop some packets only.
	Conditional bool
	// Covered says that Weft's own accepting rules stand above it for all the interfaces.
	Covered bool
}

// String names the chain and the rule, for a condition on the node.
func (d ForeignDrop) String() string {
	text := fmt.Sprintf("chain %s of table %s %s (hook %s): %s", d.Chain, d.Family, d.Table, d.Hook, d.Rule)
	if d.In != d.Chain {
		text += " (in chain " + d.In + ")"
	}
	return text
}

// text is the rule as it should stand: devices, counter and accept, in the order in which iptables-nft writes them, so that it
// can read them back.
func (j *ForeignJump) text() string {
	var words []string
	if j.InDevice != "" {
		words = append(words, "iifname", strconv.Quote(j.InDevice))
	}
	if j.OutDevice != "" {
		words = append(words, "oifname", strconv.Quote(j.OutDevice))
	}
	return strings.Join(append(words, "counter accept"), " ")
}

func (j *ForeignJump) comment() string { return strings.TrimSpace(Mark + " " + j.Owner) }

// foreign adds the operations for rules in other tables' chains. All removals go first, by handle.
func (b *build) foreign() {
	drop := func(key Key) {
		have, ok := b.engine.known[key].(*ForeignJump)
		if !ok {
			return
		}
		for _, handle := range have.handles {
			b.remove(key, &knftables.Rule{Family: knftables.Family(key.Family), Table: key.Table, Chain: have.Chain, Handle: &handle})
		}
	}
	for key := range ofKind[*ForeignJump](b.change.Delete) {
		drop(key)
	}
	for key := range ofKind[*ForeignJump](b.change.Set) {
		drop(key)
	}
	for key, jump := range ofKind[*ForeignJump](b.change.Set) {
		comment := jump.comment()
		b.tx.Insert(&knftables.Rule{
			Family: knftables.Family(key.Family), Table: key.Table, Chain: jump.Chain, Rule: jump.text(), Comment: &comment,
		})
		b.lines = append(b.lines, key)
	}
}

// foreignListing is another table with its base chains in order.
type foreignListing struct {
	chains map[string]chainObject
	bases  []chainObject
	rules  map[string][]ruleObject
}

// foreignBases lists the base chains at the forward and input hooks of tables that are not in care.
func (e *Engine) foreignBases(ctx context.Context) ([]chainObject, error) {
	text, err := e.run(ctx, "", "-j", "list", "chains")
	if err != nil {
		return nil, err
	}
	all, err := parseObjects(text)
	if err != nil {
		return nil, err
	}
	return slices.DeleteFunc(all.chains, func(chain chainObject) bool {
		return chain.Hook != HookForward && chain.Hook != HookInput || e.cares(tableKey{chain.Family, chain.Table})
	}), nil
}

// foreignTables lists the tables of the foreign base chains, whole: to follow their jumps.
func (e *Engine) foreignTables(ctx context.Context) ([]foreignListing, error) {
	bases, err := e.foreignBases(ctx)
	if err != nil {
		return nil, err
	}
	var order []tableKey
	for _, chain := range bases {
		if key := (tableKey{chain.Family, chain.Table}); !slices.Contains(order, key) {
			order = append(order, key)
		}
	}
	var tables []foreignListing
	for _, key := range order {
		text, err := e.run(ctx, "", "-j", "-t", "list", "table", string(key.family), key.name)
		if errors.Is(err, ErrMissing) {
			continue
		}
		if err != nil {
			return nil, err
		}
		objects, err := parseObjects(text)
		if err != nil {
			return nil, err
		}
		tables = append(tables, newForeignListing(objects))
	}
	return tables, nil
}

func newForeignListing(objects *objects) foreignListing {
	table := foreignListing{chains: map[string]chainObject{}, rules: map[string][]ruleObject{}}
	for _, chain := range objects.chains {
		table.chains[chain.Name] = chain
		if chain.Hook == HookForward || chain.Hook == HookInput {
			table.bases = append(table.bases, chain)
		}
	}
	for _, rule := range objects.rules {
		table.rules[rule.Chain] = append(table.rules[rule.Chain], rule)
	}
	return table
}

// readForeign adds the rules that carry Mark. It lists the base chains alone: the tables around them may be kube-proxy's, with
// thousands of chains.
func (e *Engine) readForeign(ctx context.Context, state map[Key]Item) error {
	bases, err := e.foreignBases(ctx)
	if err != nil {
		return err
	}
	for _, chain := range bases {
		text, err := e.run(ctx, "", "-j", "-t", "list", "chain", string(chain.Family), chain.Table, chain.Name)
		if errors.Is(err, ErrMissing) {
			continue
		}
		if err != nil {
			return err
		}
		objects, err := parseObjects(text)
		if err != nil {
			return err
		}
		for _, jump := range markedRules(objects.rules) {
			if have, ok := state[jump.Key()].(*ForeignJump); ok {
				have.handles = append(have.handles, jump.handles...)
				have.misplaced = true
				continue
			}
			state[jump.Key()] = jump
		}
	}
	return nil
}

// markedRules returns the rules of a chain that carry Mark, those that are not above all others as misplaced.
func markedRules(rules []ruleObject) []*ForeignJump {
	var found []*ForeignJump
	top := true
	for i := range rules {
		rule := &rules[i]
		owner, marked := strings.CutPrefix(rule.Comment, Mark)
		if !marked || owner != "" && owner[0] != ' ' {
			top = false
			continue
		}
		jump := &ForeignJump{
			Family: rule.Family, Table: rule.Table, Chain: rule.Chain, Owner: strings.TrimSpace(owner),
			misplaced: !top, handles: []int{rule.Handle},
		}
		accepts := false
		for _, expr := range rule.Expr {
			in, out, ok := deviceMatch(expr)
			switch {
			case ok && in != "":
				jump.InDevice = in
			case ok && out != "":
				jump.OutDevice = out
			case has(expr, "accept"):
				accepts = true
			case !has(expr, "counter"):
				jump.misplaced = true // somebody has narrowed it
			}
		}
		jump.misplaced = jump.misplaced || !accepts
		found = append(found, jump)
	}
	return found
}

func has(expr map[string]json.RawMessage, word string) bool {
	_, ok := expr[word]
	return ok
}

// matchExpr is a "match" statement of libnftables-json(5), as far as it is used.
type matchExpr struct {
	Op   string `json:"op"`
	Left struct {
		Meta struct {
			Key string `json:"key"`
		} `json:"meta"`
	} `json:"left"`
	Right json.RawMessage `json:"right"`
}

// deviceMatch returns the device that a statement compares the incoming or outgoing one with for equality.
func deviceMatch(expr map[string]json.RawMessage) (in, out string, ok bool) {
	var match matchExpr
	var name string
	if json.Unmarshal(expr["match"], &match) != nil || json.Unmarshal(match.Right, &name) != nil || match.Op != "==" {
		return "", "", false
	}
	switch match.Left.Meta.Key {
	case "iifname", "iif":
		return name, "", true
	case "oifname", "oif":
		return "", name, true
	}
	return "", "", false
}

// ForeignDrops looks through the base chains at the forward and input hooks of tables that are not Weft's for what
// would drop traffic that comes in or goes out by one of the devices. It errs on the side of naming too much. Rules of
// legacy iptables (not iptables-nft) are not visible to nft and not in the answer.
func (e *Engine) ForeignDrops(ctx context.Context, devices ...string) ([]ForeignDrop, error) {
	tables, err := e.foreignTables(ctx)
	if err != nil {
		return nil, fmt.Errorf("looking for foreign drops: %w", err)
	}
	var found []ForeignDrop
	for _, table := range tables {
		for _, chain := range table.bases {
			search := &dropSearch{table: table, base: chain, devices: devices, visited: map[string]bool{}}
			search.look()
			if len(search.found) == 0 {
				continue
			}
			words, err := e.ruleWords(ctx, chain)
			if err != nil {
				return nil, fmt.Errorf("looking for foreign drops: %w", err)
			}
			for _, drop := range search.found {
				if drop.Handle != 0 {
					drop.Rule = words[drop.Handle]
				}
				found = append(found, drop)
			}
		}
	}
	return found, nil
}

// ruleWords returns the rules of a chain's table in the words of nft by their handle.
func (e *Engine) ruleWords(ctx context.Context, chain chainObject) (map[int]string, error) {
	text, err := e.run(ctx, "", "-s", "-a", "-t", "list", "table", string(chain.Family), chain.Table)
	if err != nil {
		return nil, err
	}
	words := map[int]string{}
	for line := range strings.Lines(string(text)) {
		rule, number, found := strings.Cut(strings.TrimSpace(line), " # handle ")
		if handle, err := strconv.Atoi(number); found && err == nil && !strings.HasSuffix(rule, "{") {
			words[handle] = rule
		}
	}
	return words, nil
}

// dropSearch walks one base chain and what it jumps to.
type dropSearch struct {
	table   foreignListing
	base    chainObject
	devices []string
	visited map[string]bool
	found   []ForeignDrop
}

func (s *dropSearch) look() {
	covered := s.covered()
	passed := s.walk(s.base.Name, false)
	if !passed && s.base.Policy == PolicyDrop {
		s.found = append(s.found, s.drop(s.base.Name, ruleObject{}, false))
		s.found[len(s.found)-1].Rule = "policy drop"
	}
	for i := range s.found {
		s.found[i].Covered = covered
	}
}

// covered reports whether rules of Weft's own at the top accept all devices, in both directions where the hook has both.
func (s *dropSearch) covered() bool {
	in, out := map[string]bool{}, map[string]bool{}
	for _, jump := range markedRules(s.table.rules[s.base.Name]) {
		if jump.misplaced || jump.InDevice != "" && jump.OutDevice != "" {
			continue
		}
		in[jump.InDevice], out[jump.OutDevice] = true, true
	}
	for _, device := range s.devices {
		if !in[device] || s.base.Hook == HookForward && !out[device] {
			return false
		}
	}
	return true
}

func (s *dropSearch) drop(chain string, rule ruleObject, conditional bool) ForeignDrop {
	return ForeignDrop{
		Family: s.base.Family, Table: s.base.Table, Chain: s.base.Name, Hook: s.base.Hook, Priority: s.base.Priority,
		Handle: rule.Handle, In: chain, Conditional: conditional,
	}
}

// walk looks at a chain's rules and reports whether no packet of the devices gets past its end.
func (s *dropSearch) walk(chain string, conditional bool) (ended bool) {
	if s.visited[chain] {
		return false
	}
	s.visited[chain] = true
	for _, rule := range s.table.rules[chain] {
		reach := s.reach(rule)
		if !reach.any {
			continue
		}
		narrowed := conditional || reach.conditional
		switch verdict, target := ruleVerdict(rule); verdict {
		case "drop", "reject":
			s.found = append(s.found, s.drop(chain, rule, narrowed))
			ended = !reach.conditional
		case "accept":
			ended = !reach.conditional
		case "return":
			if !reach.conditional {
				return false // back to whence it jumped
			}
		case "jump":
			ended = s.walk(target, narrowed) && !reach.conditional
		case "goto":
			if inner := s.walk(target, narrowed); !reach.conditional {
				return inner // the other chain's end leads back to whence this one was jumped to
			}
		}
		if ended {
			return true
		}
	}
	return false
}

// reach says which packets of the devices a rule applies to: none, some, or all.
type reach struct{ any, conditional bool }

func (s *dropSearch) reach(rule ruleObject) reach {
	r := reach{any: true}
	in, out := "", ""
	for _, expr := range rule.Expr {
		if has(expr, "counter") || has(expr, "log") {
			continue
		}
		if verdict, _ := exprVerdict(expr); verdict != "" {
			continue
		}
		r.conditional = true
		if i, o, ok := deviceMatch(expr); ok {
			in, out = in+i, out+o
		}
	}
	concerned := func(name string) bool {
		return slices.ContainsFunc(s.devices, func(device string) bool {
			prefix, wild := strings.CutSuffix(name, "*")
			return name == device || wild && strings.HasPrefix(device, prefix)
		})
	}
	// A packet of a device comes in or goes out by it; the other end is open at the forward hook only.
	switch {
	case s.base.Hook == HookInput && in != "" && !concerned(in):
		r.any = false
	case in != "" && out != "" && !concerned(in) && !concerned(out):
		r.any = false
	}
	return r
}

// ruleVerdict returns what a rule does with a packet, and where it jumps to.
func ruleVerdict(rule ruleObject) (verdict, target string) {
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
			_ = json.Unmarshal(body, &to) // an unknown form has no target, and leads nowhere
			return word, to.Target
		case "xt": // a statement of iptables that nft has no words for
			var extension struct {
				Type string `json:"type"`
				Name string `json:"name"`
			}
			if json.Unmarshal(body, &extension) == nil && extension.Type == "target" && extension.Name == "REJECT" {
				return "reject", ""
			}
		}
	}
	return "", ""
}

// Jumps returns the items that, committed, let traffic of the devices pass the chains of the drops: one per chain, device
// and direction. Commit them under an owner of their own: the chain belongs to somebody else and may vanish at any time, and then
// nft refuses the transaction, naming it.
func Jumps(drops []ForeignDrop, owner string, devices ...string) []*ForeignJump {
	var jumps []*ForeignJump
	seen := map[Key]bool{}
	add := func(jump *ForeignJump) {
		if !seen[jump.Key()] {
			seen[jump.Key()] = true
			jumps = append(jumps, jump)
		}
	}
	for _, drop := range drops {
		for _, device := range devices {
			base := ForeignJump{Family: drop.Family, Table: drop.Table, Chain: drop.Chain, Owner: owner}
			in, out := base, base
			in.InDevice, out.OutDevice = device, device
			add(&in)
			if drop.Hook == HookForward {
				add(&out)
			}
		}
	}
	return jumps
}
