package ruleset

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"net/netip"
	"regexp"
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
	objects *objects
	blocks  map[blockKey][]string
}

// ruleLines returns the lines of a chain's rules, in order.
func ruleLines(block []string) []string {
	if len(block) > 0 && strings.HasPrefix(block[0], "type ") && strings.Contains(block[0], " hook ") {
		return block[1:]
	}
	return block
}

// digestLines is the digest of a chain's listing.
func digestLines(lines []string) string {
	hash := sha256.Sum256([]byte(strings.Join(lines, "\n")))
	return hex.EncodeToString(hash[:16])
}

// record is the content of the state set for a chain.
type record struct{ desired, listed string }

//nolint:gochecknoglobals // a constant pattern
var recordPattern = regexp.MustCompile(`^desired ([0-9a-f]{32}) listed ([0-9a-f]{32})$`)

func (r record) String() string { return "desired " + r.desired + " listed " + r.listed }

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
		for _, element := range parseElements(set.Elem, false) {
			match := recordPattern.FindStringSubmatch(element.Owner)
			if match != nil && len(element.Match) == 1 {
				found[element.Match[0]] = record{match[1], match[2]}
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
		add(&nft.Table{Family: table.Family, Name: table.Name})
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
		flags := l.flags("set", set)
		add(&nft.Set{Family: set.Family, Table: set.Table, Name: set.Name, Type: strings.Join(words(set.Type), " . "), Flags: flags, Size: set.Size})
		l.addElements(set, flags, false, add)
	}
	for _, set := range l.objects.maps {
		flags := l.flags("map", set)
		add(&nft.Map{
			Family: set.Family, Table: set.Table, Name: set.Name, Type: strings.Join(words(set.Type), " . "),
			Value: strings.Join(words(set.Map), " . "), Flags: flags, Size: set.Size,
		})
		l.addElements(set, flags, true, add)
	}
	return found
}

//nolint:gochecknoglobals // a constant pattern
var devicePattern = regexp.MustCompile(`hook \S+ device "?([^" ]+)"? priority`)

// chain returns a chain with its device, which nft 1.0.6 omits in the JSON.
func (l *listing) chain(object chainObject) *nft.Chain {
	chain := &nft.Chain{
		Family: object.Family, Table: object.Table, Name: object.Name, Type: object.Type, Hook: object.Hook,
		Priority: object.Priority, Policy: object.Policy,
	}
	if block := l.blocks[blockKey{"chain", object.Name}]; len(block) > 0 {
		if match := devicePattern.FindStringSubmatch(block[0]); match != nil {
			chain.Device = match[1]
		}
	}
	return chain
}

// chainRules compares a chain with its record. A chain without rules and record has no item.
func (l *listing) chainRules(chain string, records map[string]record) *nft.ChainRules {
	lines := ruleLines(l.blocks[blockKey{"chain", chain}])
	recorded, ok := records[recordKey(chain)]
	if !ok && len(lines) == 0 {
		return nil
	}
	var altered string
	if !ok || recorded.listed != digestLines(lines) {
		altered = "now { " + strings.Join(lines, "; ") + " }"
	}
	return nft.ListedRules(l.table.object(nft.KindRules, chain), recorded.desired, altered)
}

// flags returns a set's flags from the text; nft 1.0.6 omits "dynamic" in the JSON.
func (l *listing) flags(kind string, object setObject) []nft.SetFlag {
	list := words(object.Flags)
	for _, line := range l.blocks[blockKey{kind, object.Name}] {
		if text, ok := strings.CutPrefix(line, "flags "); ok {
			list = strings.Split(text, ",")
		}
	}
	flags := make([]nft.SetFlag, 0, len(list))
	for _, flag := range list {
		flags = append(flags, nft.SetFlag(flag))
	}
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
	for _, element := range parseElements(set.Elem, isMap) {
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
