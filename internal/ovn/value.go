package ovn

import (
	"cmp"
	"crypto/sha1" //nolint:gosec // UUIDs of version 5 are SHA-1 by definition (RFC 9562, 5.5); nothing depends on its strength
	"encoding/hex"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
)

// OwnerKey is the key in external_ids with a row's owner.
const OwnerKey = "weft.dev/owner"

// Table is the name of a table of the northbound database (ovn-nb(5)).
type Table string

// The tables that the engine writes.
const (
	Router     Table = "Logical_Router"
	RouterPort Table = "Logical_Router_Port"
	Route      Table = "Logical_Router_Static_Route"
	Policy     Table = "Logical_Router_Policy"
	Switch     Table = "Logical_Switch"
	SwitchPort Table = "Logical_Switch_Port"
	ACL        Table = "ACL"
)

// Key names a row.
type Key struct {
	Table Table
	// UUID is the row's UUID in canonical form.
	UUID string
}

// String returns the key as errors show it.
func (k Key) String() string { return string(k.Table) + " " + k.UUID }

// Compare orders keys by table and UUID.
func (k Key) Compare(other Key) int {
	return cmp.Or(cmp.Compare(k.Table, other.Table), cmp.Compare(k.UUID, other.UUID))
}

// UUID returns the key of a row of the table whose purpose the words name: the same words result in the same key.
func UUID(table Table, words ...string) Key {
	// The name space is a random UUID of version 4, chosen once. Each word is preceded by its length, so that different lists of words never
	// result in the same text.
	hash := sha1.New() //nolint:gosec // see the import
	hash.Write([]byte("\x5f\x0c\xd3\x4e\x9b\x1a\x4c\x27\x8e\x62\x71\xd0\xa8\x3f\x55\x19"))
	for _, word := range append([]string{string(table)}, words...) {
		hash.Write([]byte(strconv.Itoa(len(word)) + ":" + word))
	}
	raw := hash.Sum(nil)[:16]
	raw[6], raw[8] = raw[6]&0x0f|0x50, raw[8]&0x3f|0x80
	text := hex.EncodeToString(raw)
	return Key{Table: table, UUID: strings.Join([]string{text[:8], text[8:12], text[12:16], text[16:20], text[20:]}, "-")}
}

// Row is a row. Omitted columns have the schema's default. Rows must not be changed once they are handed over.
type Row struct {
	// Owner names the object that the row comes from, such as "Vpc/test-vpc-1/<uid>". It is required.
	Owner string
	// Parent is the router or switch of a port, route, policy or ACL. Routers and switches have none.
	Parent Key
	// Text holds columns with one string, optional ones included.
	Text map[string]string
	// Number holds columns with one integer.
	Number map[string]int
	// Set holds columns with sets of strings. The order has no meaning.
	Set map[string][]string
	// Map holds columns with maps, except external_ids.
	Map map[string]map[string]string
}

// Equal reports whether replacing one by the other would change nothing.
func (r Row) Equal(other Row) bool {
	return r.Owner == other.Owner && r.Parent == other.Parent && r.equalColumns(other)
}

func (r Row) equalColumns(other Row) bool {
	return equalColumns(r.Text, other.Text, func(a, b string) bool { return a == b }) &&
		equalColumns(r.Number, other.Number, func(a, b int) bool { return a == b }) &&
		equalColumns(r.Set, other.Set, equalSets) && equalColumns(r.Map, other.Map, maps.Equal)
}

// equalColumns compares columns. An omitted column has the default, which is V's zero value or equal to it. It allocates nothing: at each read
// of a database, every row is compared.
func equalColumns[V any](a, b map[string]V, equal func(V, V) bool) bool {
	for column, value := range a {
		if !equal(value, b[column]) {
			return false
		}
	}
	for column, value := range b {
		if _, compared := a[column]; !compared {
			var omitted V
			if !equal(value, omitted) {
				return false
			}
		}
	}
	return true
}

// equalSets compares sets, whose order has no meaning.
func equalSets(a, b []string) bool {
	return slices.Equal(a, b) || slices.Equal(sorted(a), sorted(b))
}

// sorted returns the elements of a set in one order, each once.
func sorted(set []string) []string { return slices.Compact(slices.Sorted(slices.Values(set))) }

// String returns the row in one line: its owner, and its columns, sorted.
func (r Row) String() string {
	var words []string
	for column, value := range r.texts() {
		words = append(words, fmt.Sprintf("%s=%q", column, value))
	}
	for column, value := range r.numbers() {
		words = append(words, fmt.Sprintf("%s=%d", column, value))
	}
	for column, value := range r.sets() {
		words = append(words, fmt.Sprintf("%s=%q", column, value))
	}
	for column, value := range r.dicts() {
		for _, key := range slices.Sorted(maps.Keys(value)) {
			words = append(words, fmt.Sprintf("%s:%s=%q", column, key, value[key]))
		}
	}
	slices.Sort(words)
	if r.Parent != (Key{}) {
		words = append([]string{"in " + r.Parent.String()}, words...)
	}
	return r.Owner + ": " + strings.Join(words, " ")
}

// texts, numbers, sets and dicts return the columns whose value is not the schema's default, in one form.
func (r Row) texts() map[string]string {
	return without(r.Text, func(s string) bool { return s == "" })
}

func (r Row) numbers() map[string]int { return without(r.Number, func(n int) bool { return n == 0 }) }

func (r Row) sets() map[string][]string {
	sets := without(r.Set, func(s []string) bool { return len(s) == 0 })
	for column, set := range sets {
		sets[column] = sorted(set)
	}
	return sets
}

func (r Row) dicts() map[string]map[string]string {
	return without(r.Map, func(m map[string]string) bool { return len(m) == 0 })
}

func without[V any](columns map[string]V, isDefault func(V) bool) map[string]V {
	kept := make(map[string]V, len(columns))
	for column, value := range columns {
		if !isDefault(value) {
			kept[column] = value
		}
	}
	return kept
}

// columns are the columns of a table that the engine reads and writes, by type.
type columns struct {
	text, optional, number, set, dict []string
	// parent is the table that refers to the rows, in column.
	parent Table
	column string
}

// schema returns the columns of a table; ok is false for a table that the engine does not write.
func schema(table Table) (c columns, ok bool) {
	switch table {
	case Router:
		return columns{text: []string{"name"}, dict: []string{"options"}}, true
	case RouterPort:
		return columns{
			text: []string{"name", "mac"}, optional: []string{"peer"}, set: []string{"networks"}, dict: []string{"options"},
			parent: Router, column: "ports",
		}, true
	case Route:
		return columns{
			text: []string{"route_table", "ip_prefix", "nexthop"}, optional: []string{"policy"}, dict: []string{"options"},
			parent: Router, column: "static_routes",
		}, true
	case Policy:
		return columns{
			text: []string{"match", "action"}, number: []string{"priority"}, set: []string{"nexthops"}, dict: []string{"options"},
			parent: Router, column: "policies",
		}, true
	case Switch:
		return columns{text: []string{"name"}, dict: []string{"other_config"}}, true
	case SwitchPort:
		return columns{
			text: []string{"name", "type"}, set: []string{"addresses", "port_security"}, dict: []string{"options"},
			parent: Switch, column: "ports",
		}, true
	case ACL:
		return columns{
			text: []string{"direction", "match", "action"}, number: []string{"priority"}, dict: []string{"options"},
			parent: Switch, column: "acls",
		}, true
	default:
		return columns{}, false
	}
}

// tables returns the tables in the order in which rows are written: parents first.
func tables() []Table { return []Table{Router, Switch, RouterPort, Route, Policy, SwitchPort, ACL} }

// ErrInvalid is wrapped by the error of a row that every database would reject.
var ErrInvalid = errors.New("invalid row")

// Validate returns why the row must not be written under the key, nil if it may be.
func (r Row) Validate(key Key) error {
	c, ok := schema(key.Table)
	switch {
	case !ok:
		return fmt.Errorf("%w: table %q is not written", ErrInvalid, key.Table)
	case len(key.UUID) != 36:
		return fmt.Errorf("%w: %q is not a UUID", ErrInvalid, key.UUID)
	case r.Owner == "":
		return fmt.Errorf("%w: no owner", ErrInvalid)
	case r.Parent.Table != c.parent:
		return fmt.Errorf("%w: parent is a %q, not a %q", ErrInvalid, r.Parent.Table, c.parent)
	}
	for kind, pair := range map[string][2][]string{
		"text":   {slices.Concat(c.text, c.optional), slices.Collect(maps.Keys(r.Text))},
		"number": {c.number, slices.Collect(maps.Keys(r.Number))},
		"set":    {c.set, slices.Collect(maps.Keys(r.Set))},
		"map":    {c.dict, slices.Collect(maps.Keys(r.Map))},
	} {
		for _, column := range pair[1] {
			if !slices.Contains(pair[0], column) {
				return fmt.Errorf("%w: %s has no column %s of kind %s", ErrInvalid, key.Table, column, kind)
			}
		}
	}
	return nil
}
