package session

import (
	"maps"
	"reflect"
	"slices"
	"strconv"
	"strings"
)

// decoding decodes the values of one update. Values that are equal are kept in memory once: the rows of one owner have the same external_ids,
// and the UUID of a row is also in a set of its parent. In a database of 10,000 ports, half of the copy would be repetitions.
type decoding struct {
	texts map[string]string
	dicts map[string]reflect.Value
}

func newDecoding() *decoding { return &decoding{map[string]string{}, map[string]reflect.Value{}} }

// text returns the first of the strings that are equal to s.
func (d *decoding) text(s string) string {
	if first, there := d.texts[s]; there {
		return first
	}
	d.texts[s] = s
	return s
}

// dict returns the first of the maps that are equal to all. Rows may share a map, because it is never written to.
func (d *decoding) dict(all reflect.Value) reflect.Value {
	pairs, ok := reflect.TypeAssert[map[string]string](all)
	if !ok {
		return all
	}
	var content strings.Builder
	for _, key := range slices.Sorted(maps.Keys(pairs)) {
		content.WriteString(strconv.Quote(key) + strconv.Quote(pairs[key]))
	}
	if first, there := d.dicts[content.String()]; there {
		return first
	}
	d.dicts[content.String()] = all
	return all
}
