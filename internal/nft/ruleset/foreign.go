package ruleset

import (
	"context"
	"encoding/json"
	"errors"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
	"sigs.k8s.io/knftables"

	"weft.dev/weft/internal/nft"
	"weft.dev/weft/internal/nft/nfnetlink"
)

// jumpText returns the rule's text: devices, ranges, port, counter and accept, in the order in which iptables-nft writes them, so that
// iptables-nft can read it.
func jumpText(j *nft.ForeignJump) string {
	var words []string
	if j.InDevice != "" {
		words = append(words, "iifname", strconv.Quote(j.InDevice))
	}
	if j.OutDevice != "" {
		words = append(words, "oifname", strconv.Quote(j.OutDevice))
	}
	if j.Source.IsValid() {
		words = append(words, l3(j.Source), "saddr", j.Source.String())
	}
	if j.Destination.IsValid() {
		words = append(words, l3(j.Destination), "daddr", j.Destination.String())
	}
	if j.UDPPort != 0 {
		words = append(words, "udp dport", strconv.Itoa(int(j.UDPPort)))
	}
	return strings.Join(append(words, "counter accept"), " ")
}

func jumpComment(j *nft.ForeignJump) string { return strings.TrimSpace(nft.Mark + " " + j.Owner) }

// foreign adds the operations for rules in other tables' chains. All removals come first, by handle.
func (b *build) foreign() {
	drop := func(key nft.Key) {
		have, ok := b.engine.known[key].(*nft.ForeignJump)
		if !ok {
			return
		}
		for _, handle := range have.Handles {
			b.remove(key, &knftables.Rule{Family: knftables.Family(key.Family), Table: key.Table, Chain: have.Chain, Handle: &handle})
		}
	}
	for key := range ofKind[*nft.ForeignJump](b.change.Delete) {
		drop(key)
	}
	for key := range ofKind[*nft.ForeignJump](b.change.Set) {
		drop(key)
	}
	for key, jump := range ofKind[*nft.ForeignJump](b.change.Set) {
		comment := jumpComment(jump)
		b.tx.Insert(&knftables.Rule{
			Family: knftables.Family(key.Family), Table: key.Table, Chain: jump.Chain, Rule: jumpText(jump), Comment: &comment,
		})
		b.lines = append(b.lines, key)
	}
}

// foreignChains lists the base chains of type filter of other programs' tables, and counts all chains of each table. Chains that
// translate see only the first packet of a connection, and are not meant for dropping. Chains of the families arp and bridge see no packets
// of a Passage, and ForeignJumps are not possible there.
func (e *Engine) foreignChains() (bases []chainObject, chains map[tableKey]int, err error) {
	var all []nfnetlink.Chain
	err = e.namespace.Inside(func() (err error) {
		all, err = nfnetlink.Chains(unix.NFPROTO_UNSPEC)
		return err
	})
	if err != nil {
		return nil, nil, err
	}
	chains = map[tableKey]int{}
	for i := range all {
		chain := newChainObject(&all[i])
		table := tableKey{chain.Family, chain.Table}
		chains[table]++
		if chain.Hook != "" && chain.Type != nft.TypeNAT && seesIP(chain.Family) && !e.cares(table) && !e.apart[table] {
			bases = append(bases, chain)
		}
	}
	return bases, chains, nil
}

// newChainObject returns a chain as nft lists it, with the devices that nft 1.0.6 omits.
func newChainObject(chain *nfnetlink.Chain) chainObject {
	object := chainObject{Family: familyOf(chain.Family), Table: chain.Table, Name: chain.Name}
	if hook := chain.Hook; hook != nil {
		object.Type, object.Hook, object.Priority = nft.ChainType(hook.Type), hookOf(object.Family, hook.Number), hook.Priority
		object.Policy, object.devices = nft.PolicyAccept, hook.Devices
		if hook.Drop {
			object.Policy = nft.PolicyDrop
		}
	}
	return object
}

// hookOf returns the name of a hook (NF_INET_*, NF_BR_*, NF_ARP_* and NF_NETDEV_*), like nft "unknown" for one that it does not have.
func hookOf(family nft.Family, number uint32) nft.Hook {
	hooks := []nft.Hook{nft.HookPrerouting, nft.HookInput, nft.HookForward, nft.HookOutput, nft.HookPostrouting}
	switch family {
	case nft.FamilyInet:
		hooks = append(hooks, nft.HookIngress)
	case nft.FamilyARP:
		hooks = []nft.Hook{nft.HookInput, nft.HookOutput, nft.HookForward}
	case nft.FamilyNetdev:
		hooks = []nft.Hook{nft.HookIngress, nft.HookEgress}
	}
	if int(number) >= len(hooks) {
		return "unknown"
	}
	return hooks[number]
}

// seesIP reports whether the chains of a family see packets of IP as such.
func seesIP(family nft.Family) bool {
	switch family {
	case nft.FamilyIPv4, nft.FamilyIPv6, nft.FamilyInet, nft.FamilyNetdev:
		return true
	default:
		return false
	}
}

// readForeign adds the rules with Mark. Of tables with thousands of chains, which are kube-proxy's, it lists only the base chains.
func (e *Engine) readForeign(ctx context.Context, state map[nft.Key]nft.Item) error {
	bases, counts, err := e.foreignChains()
	if err != nil {
		return err
	}
	for _, chain := range bases {
		if !nft.Openable(chain.Family, chain.Hook) {
			continue
		}
		text, err := e.ask(ctx, append([]string{"-j", "-t"}, listingOf(chain, counts[tableKey{chain.Family, chain.Table}] <= wholeTable)...)...)
		if errors.Is(err, nft.ErrMissing) {
			continue
		}
		if err != nil {
			return err
		}
		objects, err := parseObjects(text)
		if err != nil {
			return err
		}
		objects.rules = slices.DeleteFunc(objects.rules, func(rule ruleObject) bool { return rule.Chain != chain.Name })
		for _, jump := range markedRules(objects.rules) {
			if have, ok := state[jump.Key()].(*nft.ForeignJump); ok {
				have.Handles = append(have.Handles, jump.Handles...)
				have.Misplaced = true
				continue
			}
			state[jump.Key()] = jump
		}
	}
	return nil
}

// listingOf returns nft's arguments that list the table of a base chain, or the chain alone.
func listingOf(base chainObject, whole bool) []string {
	if whole {
		return []string{"list", "table", string(base.Family), base.Table}
	}
	return []string{"list", "chain", string(base.Family), base.Table, base.Name}
}

// isMarked returns the owner of a rule with Mark.
func isMarked(rule *ruleObject) (owner string, marked bool) {
	owner, marked = strings.CutPrefix(rule.Comment, nft.Mark)
	return strings.TrimSpace(owner), marked && (owner == "" || owner[0] == ' ')
}

// markedRules returns the rules of a chain with Mark; those that are not above all others are misplaced.
func markedRules(rules []ruleObject) []*nft.ForeignJump {
	var found []*nft.ForeignJump
	top := true
	for i := range rules {
		rule := &rules[i]
		owner, marked := isMarked(rule)
		if !marked {
			top = false
			continue
		}
		jump := &nft.ForeignJump{Family: rule.Family, Table: rule.Table, Chain: rule.Chain, Owner: owner, Handles: []int{rule.Handle}}
		asWritten := parseJump(jump, rule.Expr)
		jump.Misplaced = !top || !asWritten
		found = append(found, jump)
	}
	return found
}

// parseJump reads what the rule lets pass. It reports whether jumpText could have written the rule; otherwise another program has narrowed or
// widened it.
func parseJump(j *nft.ForeignJump, exprs []map[string]json.RawMessage) (asWritten bool) {
	accepts, others := false, false
	for _, expr := range exprs {
		in, out, ok := deviceMatch(expr)
		port, isPort := udpPortMatch(expr)
		source, destination, isRange := rangeMatch(expr)
		switch {
		case isRange && source.IsValid():
			j.Source = source
		case isRange:
			j.Destination = destination
		case ok && in != "":
			j.InDevice = in
		case ok && out != "":
			j.OutDevice = out
		case isPort:
			j.UDPPort = port
		case has(expr, "accept"):
			accepts = true
		case !has(expr, "counter"):
			others = true
		}
	}
	return accepts && !others && !j.Empty()
}

// l3 is the protocol of a range's addresses, in nft's syntax.
func l3(r netip.Prefix) string {
	if r.Addr().Is4() {
		return "ip"
	}
	return "ip6"
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
		Payload struct {
			Protocol string `json:"protocol"`
			Field    string `json:"field"`
		} `json:"payload"`
	} `json:"left"`
	Right json.RawMessage `json:"right"`
}

// deviceMatch returns the device with which a statement compares the incoming or outgoing device for equality.
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

// udpPortMatch returns the port with which a statement compares a UDP packet's destination port for equality.
func udpPortMatch(expr map[string]json.RawMessage) (port uint16, ok bool) {
	var match matchExpr
	if json.Unmarshal(expr["match"], &match) != nil || match.Op != "==" {
		return 0, false
	}
	payload := match.Left.Payload
	if payload.Protocol != "udp" || payload.Field != "dport" || json.Unmarshal(match.Right, &port) != nil {
		return 0, false
	}
	return port, true
}

// rangeMatch returns the range with which a statement compares a packet's source or destination address for equality.
func rangeMatch(expr map[string]json.RawMessage) (source, destination netip.Prefix, ok bool) {
	var match matchExpr
	if json.Unmarshal(expr["match"], &match) != nil || match.Op != "==" {
		return source, destination, false
	}
	payload := match.Left.Payload
	if payload.Protocol != "ip" && payload.Protocol != "ip6" {
		return source, destination, false
	}
	text := value(match.Right)
	r, err := netip.ParsePrefix(text)
	if addr, single := netip.ParseAddr(text); single == nil {
		r, err = netip.PrefixFrom(addr, addr.BitLen()), nil
	}
	if err != nil {
		return source, destination, false
	}
	switch payload.Field {
	case "saddr":
		return r, destination, true
	case "daddr":
		return source, r, true
	}
	return source, destination, false
}
