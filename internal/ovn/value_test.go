package ovn_test

import (
	"testing"

	"weft.dev/weft/internal/ovn"
)

// Rows are equal if replacing one by the other would change nothing: a default is as good as an omitted column, and sets have no order.
func TestEqual(t *testing.T) {
	type dicts = map[string]map[string]string
	type sets = map[string][]string
	for name, test := range map[string]struct {
		a, b ovn.Row
		want bool
	}{
		"nothing":           {ovn.Row{}, ovn.Row{}, true},
		"defaults":          {ovn.Row{Text: text{"a": ""}, Number: map[string]int{"b": 0}, Set: sets{"c": {}}, Map: dicts{"d": {}}}, ovn.Row{}, true},
		"other defaults":    {ovn.Row{Text: text{"a": ""}}, ovn.Row{Text: text{"b": ""}}, true},
		"owner":             {ovn.Row{Owner: "o"}, ovn.Row{}, false},
		"parent":            {ovn.Row{Parent: key(ovn.Switch, "s")}, ovn.Row{}, false},
		"text":              {ovn.Row{Text: text{"a": "1"}}, ovn.Row{Text: text{"a": "2"}}, false},
		"omitted text":      {ovn.Row{Text: text{"a": "1"}}, ovn.Row{}, false},
		"other column":      {ovn.Row{Text: text{"a": "1"}}, ovn.Row{Text: text{"b": "1"}}, false},
		"number":            {ovn.Row{Number: map[string]int{"a": 1}}, ovn.Row{}, false},
		"order":             {ovn.Row{Set: sets{"a": {"1", "2"}}}, ovn.Row{Set: sets{"a": {"2", "1"}}}, true},
		"element twice":     {ovn.Row{Set: sets{"a": {"1", "1"}}}, ovn.Row{Set: sets{"a": {"1"}}}, true},
		"element":           {ovn.Row{Set: sets{"a": {"1", "2"}}}, ovn.Row{Set: sets{"a": {"1"}}}, false},
		"pair":              {ovn.Row{Map: dicts{"a": {"k": "v"}}}, ovn.Row{Map: dicts{"a": {"k": "w"}}}, false},
		"pair and no pairs": {ovn.Row{Map: dicts{"a": {"k": "v"}}}, ovn.Row{Map: dicts{"a": nil}}, false},
		"equal": {
			ovn.Row{Owner: "o", Text: text{"a": "1", "b": ""}, Number: map[string]int{"n": 2}, Set: sets{"s": {"x"}}, Map: dicts{"m": {"k": "v"}}},
			ovn.Row{Owner: "o", Text: text{"a": "1"}, Number: map[string]int{"n": 2}, Set: sets{"s": {"x"}}, Map: dicts{"m": {"k": "v"}}},
			true,
		},
	} {
		if test.a.Equal(test.b) != test.want || test.b.Equal(test.a) != test.want {
			t.Errorf("%s: not %t", name, test.want)
		}
	}
}
