package session

import (
	"encoding/json"
	"reflect"
	"testing"
	"unsafe"

	"github.com/google/go-cmp/cmp"
	"github.com/ovn-kubernetes/libovsdb/model"
)

type item struct {
	UUID    string            `ovsdb:"_uuid"`
	Name    string            `ovsdb:"name"`
	Count   int               `ovsdb:"count"`
	Whole   bool              `ovsdb:"whole"`
	Parent  *string           `ovsdb:"parent"`
	Parts   []string          `ovsdb:"parts"`
	Options map[string]string `ovsdb:"options"`
}

func newItems() *replica { return newReplica(map[string]model.Model{"Item": &item{}}) }

// items returns the rows of the copy.
func items(r *replica) map[string]item {
	all := map[string]item{}
	r.each("Item", func(uuid string, row any) { all[uuid] = *row.(*item) })
	return all
}

const firstItem = `{"Item": {"u1": {"initial": {
	"name": "a", "count": 3, "whole": true, "parent": ["uuid", "u0"], "parts": ["set", [["uuid", "p1"], ["uuid", "p2"]]],
	"options": ["map", [["k", "v"], ["l", "w"]]], "other": 1}}}}`

func TestReplica(t *testing.T) {
	parent := "u0"
	first := item{
		UUID: "u1", Name: "a", Count: 3, Whole: true, Parent: &parent, Parts: []string{"p1", "p2"}, Options: map[string]string{"k": "v", "l": "w"},
	}
	for name, test := range map[string]struct {
		update string
		want   func(*item)
	}{
		"values":           {`{"u1": {"modify": {"name": "b", "count": -4, "whole": false}}}`, func(i *item) { i.Name, i.Count, i.Whole = "b", -4, false }},
		"no optional":      {`{"u1": {"modify": {"parent": ["set", []]}}}`, func(i *item) { i.Parent = nil }},
		"element added":    {`{"u1": {"modify": {"parts": ["uuid", "p3"]}}}`, func(i *item) { i.Parts = []string{"p1", "p2", "p3"} }},
		"element removed":  {`{"u1": {"modify": {"parts": ["set", [["uuid", "p1"]]]}}}`, func(i *item) { i.Parts = []string{"p2"} }},
		"element replaced": {`{"u1": {"modify": {"parts": ["set", [["uuid", "p1"], ["uuid", "p0"]]]}}}`, func(i *item) { i.Parts = []string{"p2", "p0"} }},
		"pair added":       {`{"u1": {"modify": {"options": ["map", [["m", "x"]]]}}}`, func(i *item) { i.Options["m"] = "x" }},
		"pair removed":     {`{"u1": {"modify": {"options": ["map", [["k", "v"]]]}}}`, func(i *item) { delete(i.Options, "k") }},
		"pair changed":     {`{"u1": {"modify": {"options": ["map", [["k", "w"]]]}}}`, func(i *item) { i.Options["k"] = "w" }},
	} {
		t.Run(name, func(t *testing.T) {
			r := newItems()
			if _, err := r.apply(json.RawMessage(firstItem)); err != nil {
				t.Fatal(err)
			}
			former := map[string]any{}
			r.each("Item", func(uuid string, row any) { former[uuid] = row })
			changed, err := r.apply(json.RawMessage(`{"Item": ` + test.update + `}`))
			if want := map[string][]string{"Item": {"u1"}}; err != nil || !cmp.Equal(changed, want) {
				t.Fatalf("changed %v: %v", changed, err)
			}
			if diff := cmp.Diff(first, *former["u1"].(*item)); diff != "" {
				t.Errorf("the former version of the row (-want +got):\n%s", diff)
			}
			want := first
			want.Options = map[string]string{"k": "v", "l": "w"}
			test.want(&want)
			if diff := cmp.Diff(map[string]item{"u1": want}, items(r)); diff != "" {
				t.Errorf("-want +got:\n%s", diff)
			}
		})
	}
	r := newItems()
	for _, update := range []string{firstItem, `{"Item": {"u1": {"delete": null}}, "Other": {"u2": {"insert": {}}}}`} {
		if _, err := r.apply(json.RawMessage(update)); err != nil {
			t.Fatal(err)
		}
	}
	if rows := items(r); len(rows) != 0 {
		t.Errorf("after the deletion: %v", rows)
	}
}

// TestReplicaShares: rows of one update share equal maps and strings, until one of them changes.
func TestReplicaShares(t *testing.T) {
	r := newItems()
	apply := func(update string) map[string]item {
		t.Helper()
		if _, err := r.apply(json.RawMessage(update)); err != nil {
			t.Fatal(err)
		}
		return items(r)
	}
	rows := apply(`{"Item": {
		"u1": {"initial": {"name": "a", "options": ["map", [["k", "v"], ["l", "w"]]], "parts": ["uuid", "u2"]}},
		"u2": {"initial": {"name": "a", "options": ["map", [["l", "w"], ["k", "v"]]], "parts": ["set", []]}},
		"u3": {"initial": {"name": "b", "options": ["map", [["k", "vl"], ["", "w"]]]}},
		"u4": {"initial": {"name": "b", "options": ["map", []]}}}}`)
	pointer := func(uuid string) uintptr { return reflect.ValueOf(rows[uuid].Options).Pointer() }
	if pointer("u1") != pointer("u2") || pointer("u1") == pointer("u3") {
		t.Error("equal options are not shared, or others are")
	}
	if unsafe.StringData(rows["u1"].Parts[0]) != unsafe.StringData(rows["u2"].UUID) {
		t.Error("a row's UUID is not shared with the reference to the row")
	}
	if rows["u4"].Options != nil || rows["u2"].Parts != nil {
		t.Error("an empty column takes memory")
	}
	rows = apply(`{"Item": {"u1": {"modify": {"options": ["map", [["k", "x"]]]}}, "u4": {"modify": {"options": ["map", [["k", "v"]]], "parts": "p"}}}}`)
	want := map[string]map[string]string{"u1": {"k": "x", "l": "w"}, "u2": {"k": "v", "l": "w"}, "u3": {"k": "vl", "": "w"}, "u4": {"k": "v"}}
	for uuid, options := range want {
		if diff := cmp.Diff(options, rows[uuid].Options); diff != "" {
			t.Errorf("options of %s (-want +got):\n%s", uuid, diff)
		}
	}
}

// TestReplicaRefuses applies updates that no server sends. Each is refused as a whole.
func TestReplicaRefuses(t *testing.T) {
	for name, update := range map[string]string{
		"no object":        `[]`,
		"no change":        `{"Item": {"u1": {}}}`,
		"unknown change":   `{"Item": {"u1": {"renew": {}}}}`,
		"unknown row":      `{"Item": {"u9": {"modify": {"name": "b"}}}}`,
		"number for text":  `{"Item": {"u2": {"insert": {"name": 1}}}}`,
		"text for number":  `{"Item": {"u2": {"insert": {"count": "1"}}}}`,
		"fraction":         `{"Item": {"u2": {"insert": {"count": 1.5}}}}`,
		"inexact number":   `{"Item": {"u2": {"insert": {"count": 9007199254740993}}}}`,
		"set for a value":  `{"Item": {"u2": {"insert": {"name": ["set", []]}}}}`,
		"two optional":     `{"Item": {"u2": {"insert": {"parent": ["set", ["a", "b"]]}}}}`,
		"value for a map":  `{"Item": {"u2": {"insert": {"options": "a"}}}}`,
		"set for a map":    `{"Item": {"u2": {"insert": {"options": ["set", []]}}}}`,
		"no pair":          `{"Item": {"u2": {"insert": {"options": ["map", [["k"]]]}}}}`,
		"set in a set":     `{"Item": {"u2": {"insert": {"parts": ["set", [["set", []]]]}}}}`,
		"set of no list":   `{"Item": {"u2": {"insert": {"parts": ["set", 1]}}}}`,
		"bad and good row": `{"Item": {"u2": {"insert": {"name": "c"}}, "u3": {"insert": {"name": 1}}}}`,
	} {
		r := newItems()
		if _, err := r.apply(json.RawMessage(firstItem)); err != nil {
			t.Fatal(err)
		}
		if _, err := r.apply(json.RawMessage(update)); err == nil {
			t.Errorf("%s: not refused", name)
		}
		if rows := items(r); len(rows) != 1 || rows["u1"].Name != "a" {
			t.Errorf("%s: the copy is %v", name, rows)
		}
	}
}

func FuzzReplica(f *testing.F) {
	f.Add(firstItem, `{"Item": {"u1": {"modify": {"parts": ["uuid", "p3"], "options": ["map", [["k", "w"]]]}}}}`)
	f.Add(`{"Item": {"u1": {"delete": null}}}`, `{"Item": {"u1": {"insert": {"parent": ["set", []]}}}}`)
	f.Fuzz(func(t *testing.T, first, second string) {
		r := newItems()
		for _, update := range []string{first, second} {
			before := items(r)
			if _, err := r.apply(json.RawMessage(update)); err != nil && !cmp.Equal(before, items(r)) {
				t.Errorf("a refused update changed the copy")
			}
		}
	})
}
