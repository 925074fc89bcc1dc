package ruleset

import (
	"bytes"
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"net/netip"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"weft.dev/weft/internal/nft"
)

// objects is the used part of nft's JSON listing (libnftables-json(5)).
type objects struct {
	tables []tableObject
	chains []chainObject
	rules  []ruleObject
	sets   []setObject
	maps   []setObject
}

type tableObject struct {
	Family nft.Family `json:"family"`
	Name   string     `json:"name"`
}

type chainObject struct {
	Family   nft.Family    `json:"family"`
	Table    string        `json:"table"`
	Name     string        `json:"name"`
	Type     nft.ChainType `json:"type"`
	Hook     nft.Hook      `json:"hook"`
	Priority int           `json:"prio"`
	Policy   nft.Policy    `json:"policy"`
	// devices are those of an ingress or egress chain, if the chain was not read from JSON.
	devices []string
}

type ruleObject struct {
	Family  nft.Family                   `json:"family"`
	Table   string                       `json:"table"`
	Chain   string                       `json:"chain"`
	Handle  int                          `json:"handle"`
	Comment string                       `json:"comment"`
	Expr    []map[string]json.RawMessage `json:"expr"`
}

type setObject struct {
	Family nft.Family      `json:"family"`
	Table  string          `json:"table"`
	Name   string          `json:"name"`
	Type   json.RawMessage `json:"type"` // a string, or a list of strings
	Map    json.RawMessage `json:"map"`
	Flags  json.RawMessage `json:"flags"` // a string, or a list of strings
	Size   uint64          `json:"size"`
	Elem   json.RawMessage `json:"elem"`
	// elements are the set's, if it was not read from JSON.
	elements []*nft.Element
}

// list returns the elements of the set, or the pairs of the map.
func (s *setObject) list(isMap bool) []*nft.Element {
	if s.elements != nil {
		return s.elements
	}
	return parseElements(s.Elem, isMap)
}

// parseObjects reads nft's JSON listing. It ignores unknown objects.
func parseObjects(text []byte) (*objects, error) {
	var document struct {
		Nftables []map[string]json.RawMessage `json:"nftables"`
	}
	if err := json.Unmarshal(text, &document); err != nil {
		return nil, fmt.Errorf("parsing nft's listing: %w", err)
	}
	list := &objects{}
	for _, entry := range document.Nftables {
		for kind, body := range entry {
			if err := list.add(kind, body); err != nil {
				return nil, fmt.Errorf("parsing nft's listing of a %s: %w", kind, err)
			}
		}
	}
	return list, nil
}

func (o *objects) add(kind string, body json.RawMessage) error {
	switch kind {
	case "table":
		return appendJSON(&o.tables, body)
	case "chain":
		return appendJSON(&o.chains, body)
	case "rule":
		return appendJSON(&o.rules, body)
	case "set":
		return appendJSON(&o.sets, body)
	case "map":
		return appendJSON(&o.maps, body)
	}
	return nil
}

func appendJSON[T any](list *[]T, body json.RawMessage) error {
	var item T
	if err := json.Unmarshal(body, &item); err != nil {
		return err
	}
	*list = append(*list, item)
	return nil
}

// words reads a string or a list of strings.
func words(raw json.RawMessage) []string {
	var list []string
	if json.Unmarshal(raw, &list) == nil {
		return list
	}
	var one string
	if json.Unmarshal(raw, &one) == nil && one != "" {
		return []string{one}
	}
	return nil
}

// blockKey names an object of a table in nft's text listing: "chain" "forward".
type blockKey struct{ kind, name string }

// parseBlocks splits the text listing of one table into its objects' lines, without indentation.
func parseBlocks(text string) map[blockKey][]string {
	blocks := map[blockKey][]string{}
	var current blockKey
	inside := false
	for line := range strings.Lines(text) {
		line = strings.TrimRight(line, "\n")
		switch {
		case inside && line == "\t}":
			inside = false
		case inside:
			blocks[current] = append(blocks[current], strings.TrimLeft(line, "\t"))
		default:
			fields := strings.Fields(line)
			if strings.HasPrefix(line, "\t") && len(fields) == 3 && fields[2] == "{" {
				current, inside = blockKey{fields[0], fields[1]}, true
				blocks[current] = []string{}
			}
		}
	}
	return blocks
}

// listing is the listing of one table.
type listing struct {
	table   tableKey
	dormant bool
	objects *objects
	kernel  kernelTable
	blocks  map[blockKey][]string // nil: no chain is altered
}

// ruleLines returns the lines of a chain's rules, in order.
func ruleLines(block []string) []string {
	if len(block) > 0 && strings.HasPrefix(block[0], "type ") && strings.Contains(block[0], " hook ") {
		return block[1:]
	}
	return block
}

// record is the content of the state set for a chain: the digest of the desired rules, and that of the rules that the kernel has for them.
type record struct{ desired, rules string }

//nolint:gochecknoglobals // constant patterns
var (
	recordPattern = regexp.MustCompile(`^desired ([0-9a-f]{32}) rules ([0-9a-f]{32})$`)
	// formerPattern is a record of a release that compared listings of nft.
	formerPattern = regexp.MustCompile(`^desired [0-9a-f]{32} listed [0-9a-f]{32}$`)
)

func (r record) String() string { return "desired " + r.desired + " rules " + r.rules }

// former is the record of a chain that a former release has written. It equals no desired state, so the chain is written again.
func former() record { return record{desired: "of a former release"} }

// recordKey is a chain's element in the state set: its name's digest in the form of an IPv6 address, the only type of element that is long
// enough and needs no other object.
func recordKey(chain string) string {
	hash := sha256.Sum256([]byte(chain))
	return netip.AddrFrom16([16]byte(hash[:16])).String()
}

// records returns the records by recordKey.
func (l *listing) records() map[string]record {
	found := map[string]record{}
	for _, set := range l.objects.sets {
		if set.Name != nft.StateSet {
			continue
		}
		for _, element := range set.list(false) {
			if len(element.Match) != 1 {
				continue
			}
			if match := recordPattern.FindStringSubmatch(element.Owner); match != nil {
				found[element.Match[0]] = record{match[1], match[2]}
			} else if formerPattern.MatchString(element.Owner) {
				found[element.Match[0]] = former()
			}
		}
	}
	return found
}

// items returns the content of the listing as items.
func (l *listing) items() map[nft.Key]nft.Item {
	found := map[nft.Key]nft.Item{}
	add := func(item nft.Item) { found[item.Key()] = item }
	for _, table := range l.objects.tables {
		add(&nft.Table{Family: table.Family, Name: table.Name, Dormant: l.dormant})
	}
	records := l.records()
	for _, chain := range l.objects.chains {
		add(l.chain(chain))
		if rules := l.chainRules(chain.Name, records); rules != nil {
			add(rules)
		}
	}
	for _, set := range l.objects.sets {
		if set.Name == nft.StateSet {
			continue
		}
		flags := l.flags(set)
		add(&nft.Set{Family: set.Family, Table: set.Table, Name: set.Name, Type: strings.Join(words(set.Type), " . "), Flags: flags, Size: set.Size})
		l.addElements(set, flags, false, add)
	}
	for _, set := range l.objects.maps {
		flags := l.flags(set)
		add(&nft.Map{
			Family: set.Family, Table: set.Table, Name: set.Name, Type: strings.Join(words(set.Type), " . "),
			Value: strings.Join(words(set.Map), " . "), Flags: flags, Size: set.Size,
		})
		l.addElements(set, flags, true, add)
	}
	return found
}

// chain returns a chain with its device, which nft 1.0.6 omits in the JSON.
func (l *listing) chain(object chainObject) *nft.Chain {
	return &nft.Chain{
		Family: object.Family, Table: object.Table, Name: object.Name, Type: object.Type, Hook: object.Hook,
		Priority: object.Priority, Policy: object.Policy, Device: l.kernel.devices[object.Name],
	}
}

// chainRules compares a chain with its record. A chain without rules and record has no item.
func (l *listing) chainRules(chain string, records map[string]record) *nft.ChainRules {
	recorded, ok := records[recordKey(chain)]
	if !ok && !l.kernel.rules.Any(chain) {
		return nil
	}
	var altered string
	if l.differs(chain, records) {
		altered = "now { " + strings.Join(ruleLines(l.blocks[blockKey{"chain", chain}]), "; ") + " }"
	}
	return nft.ListedRules(l.table.object(nft.KindRules, chain), recorded.desired, altered)
}

// differs reports whether another program has changed a chain's rules.
func (l *listing) differs(chain string, records map[string]record) bool {
	recorded, ok := records[recordKey(chain)]
	if !ok {
		return l.kernel.rules.Any(chain)
	}
	return recorded != former() && recorded.rules != l.kernel.rules.Of(chain)
}

// altered reports whether another program has changed rules.
func (l *listing) altered() bool {
	records := l.records()
	return slices.ContainsFunc(l.objects.chains, func(chain chainObject) bool { return l.differs(chain.Name, records) })
}

// flags returns a set's flags; nft 1.0.6 omits "dynamic" in the JSON.
func (l *listing) flags(object setObject) []nft.SetFlag {
	var flags []nft.SetFlag
	if l.kernel.dynamic[object.Name] {
		flags = append(flags, nft.FlagDynamic)
	}
	for _, word := range words(object.Flags) {
		if flag := nft.SetFlag(word); !slices.Contains(flags, flag) {
			flags = append(flags, flag)
		}
	}
	slices.Sort(flags)
	return flags
}

// addElements adds the elements of a set or map, unless packets write them.
func (l *listing) addElements(set setObject, flags []nft.SetFlag, isMap bool, add func(nft.Item)) {
	for _, flag := range flags {
		if flag == nft.FlagDynamic || flag == nft.FlagTimeout {
			return
		}
	}
	types := words(set.Type)
	for _, element := range set.list(isMap) {
		element.Family, element.Table, element.Set = set.Family, set.Table, set.Name
		for i, text := range element.Match {
			if i < len(types) && types[i] == "inet_proto" {
				element.Match[i] = protocolName(text)
			}
		}
		add(element)
	}
}

// protocolName returns a protocol's name. nft prints the number if there is no /etc/protocols, as in an image without it. The numbers and
// names are IANA's, as in Debian's file.
func protocolName(text string) string {
	switch text {
	case "1":
		return "icmp"
	case "6":
		return "tcp"
	case "17":
		return "udp"
	case "58":
		return "ipv6-icmp"
	case "132":
		return "sctp"
	default:
		return text
	}
}

// parseElements reads the elements of a set, or the pairs of a map. It ignores what it cannot parse.
func parseElements(raw json.RawMessage, isMap bool) []*nft.Element {
	var list []json.RawMessage
	if json.Unmarshal(raw, &list) != nil {
		return nil
	}
	var found []*nft.Element
	for _, entry := range list {
		element := &nft.Element{}
		key := entry
		if isMap {
			var pair []json.RawMessage
			if json.Unmarshal(entry, &pair) != nil || len(pair) != 2 {
				continue
			}
			key = pair[0]
			element.Value = values(pair[1])
		}
		var wrapped struct {
			Elem *struct {
				Val     json.RawMessage `json:"val"`
				Comment string          `json:"comment"`
			} `json:"elem"`
		}
		if json.Unmarshal(key, &wrapped) == nil && wrapped.Elem != nil {
			key, element.Owner = wrapped.Elem.Val, wrapped.Elem.Comment
		}
		if element.Match = values(key); len(element.Match) > 0 {
			found = append(found, element)
		}
	}
	return found
}

// values returns the parts of a key or value as texts.
func values(raw json.RawMessage) []string {
	var concat struct {
		Concat []json.RawMessage `json:"concat"`
	}
	if json.Unmarshal(raw, &concat) == nil && len(concat.Concat) > 0 {
		parts := make([]string, 0, len(concat.Concat))
		for _, part := range concat.Concat {
			parts = append(parts, value(part))
		}
		return parts
	}
	if text := value(raw); text != "" {
		return []string{text}
	}
	return nil
}

// value returns one expression of a set's element in nft's syntax.
func value(raw json.RawMessage) string {
	raw = bytes.TrimSpace(raw)
	var text string
	if json.Unmarshal(raw, &text) == nil {
		return text
	}
	var number int64
	if json.Unmarshal(raw, &number) == nil && len(raw) > 0 && raw[0] != 'n' {
		return strconv.FormatInt(number, 10)
	}
	var object struct {
		Prefix *struct {
			Addr string `json:"addr"`
			Len  int    `json:"len"`
		} `json:"prefix"`
		Range []json.RawMessage `json:"range"`
	}
	if json.Unmarshal(raw, &object) == nil {
		if object.Prefix != nil {
			return object.Prefix.Addr + "/" + strconv.Itoa(object.Prefix.Len)
		}
		if len(object.Range) == 2 {
			return value(object.Range[0]) + "-" + value(object.Range[1])
		}
	}
	return verdict(raw)
}

// verdict returns a verdict in nft's syntax, or "".
func verdict(raw json.RawMessage) string {
	var object map[string]*struct {
		Target string `json:"target"`
	}
	if json.Unmarshal(raw, &object) != nil || len(object) != 1 {
		return ""
	}
	for word, body := range object {
		switch word {
		case "accept", "drop", "continue", "return":
			return word
		case "jump", "goto":
			if body != nil {
				return word + " " + body.Target
			}
		}
	}
	return ""
}
