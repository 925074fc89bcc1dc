package openflow

import (
	"maps"
	"slices"
	"strings"
)

// Text prints entries one a line: groups, then flows by table, falling priority and match.
func Text(entries map[Key]Entry) string {
	keys := slices.SortedFunc(maps.Keys(entries), CompareKeys)
	var b strings.Builder
	for _, k := range keys {
		b.WriteString(entries[k].String())
		b.WriteByte('\n')
	}
	return b.String()
}

// CompareKeys orders groups before flows, flows by table, falling priority and match.
func CompareKeys(a, b Key) int {
	if (a.Group != 0) != (b.Group != 0) {
		if a.Group != 0 {
			return -1
		}
		return 1
	}
	if a.Group != b.Group {
		return int(int64(a.Group) - int64(b.Group))
	}
	if a.Table != b.Table {
		return int(a.Table) - int(b.Table)
	}
	if a.Priority != b.Priority {
		return int(b.Priority) - int(a.Priority)
	}
	return strings.Compare(a.Match, b.Match)
}
