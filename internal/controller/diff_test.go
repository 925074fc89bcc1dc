package controller

import (
	"context"
	"errors"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"weft.dev/weft/internal/admin"
	"weft.dev/weft/internal/ovn"
	"weft.dev/weft/internal/reconcile"
	vpccluster "weft.dev/weft/internal/vpc/cluster"
)

// The controller compares the northbound database with what it should have: rows that are missing, extra and different, by their owners, with the
// reason why they could not be written.
func TestDiff(t *testing.T) {
	row := func(owner, name string) ovn.Row {
		return ovn.Row{Owner: owner, Text: map[string]string{"name": name}}
	}
	key := func(name string) ovn.Key { return ovn.UUID(ovn.Switch, name) }
	type difference = reconcile.Difference[ovn.Key, ovn.Row]
	i := inspect(func(context.Context) (reconcile.Inspection[ovn.Key, ovn.Row], error) {
		return reconcile.Inspection[ovn.Key, ovn.Row]{Desired: 7, Programmed: 8, Differences: []difference{
			{Key: key("b"), Want: row("Subnet/b/uid", "b"), Wanted: true, Err: errors.New("refused")},
			{Key: key("c"), Have: row("Subnet/c/uid", "c"), Held: true},
			{Key: key("a"), Want: row("Subnet/a/uid", "a"), Wanted: true, Have: row("Subnet/a/uid", "other"), Held: true},
		}}, nil
	})
	server := httptest.NewServer(admin.DiffHandler(i.diff))
	defer server.Close()
	have, err := (&admin.Client{Controller: strings.TrimPrefix(server.URL, "http://")}).Diff(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	text := func(name string, r ovn.Row) string { return key(name).String() + " " + r.String() }
	want := admin.Diff{Engines: []admin.EngineDiff{{Name: northboundEngine, Desired: 7, Programmed: 8, Differences: []admin.Difference{
		{
			Owner: "Subnet/a/uid", Change: admin.Different, Item: key("a").String(), Want: text("a", row("Subnet/a/uid", "a")),
			Have: text("a", row("Subnet/a/uid", "other")),
		},
		{Owner: "Subnet/b/uid", Change: admin.Missing, Item: key("b").String(), Want: text("b", row("Subnet/b/uid", "b")), Why: "refused"},
		{Owner: "Subnet/c/uid", Change: admin.Extra, Item: key("c").String(), Have: text("c", row("Subnet/c/uid", "c"))},
	}}}}
	if d := cmp.Diff(want, have); d != "" {
		t.Error(d)
	}
}

// Beside health, a controller answers that it serves no VPCs, or does not lead.
func TestDiffWithoutDatabase(t *testing.T) {
	for want, options := range map[string]*Options{
		"VPCs are not served": {}, "does not lead": {vpcs: &vpccluster.Options{Inspector: &vpccluster.Inspector{}}},
	} {
		alive := http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusNoContent) })
		server := httptest.NewServer(withDiff(alive, options))
		defer server.Close()
		_, err := (&admin.Client{Controller: strings.TrimPrefix(server.URL, "http://")}).Diff(t.Context())
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v, want %q", err, want)
		}
		answer, err := http.Get(server.URL + "/healthz")
		if err != nil {
			t.Fatal(err)
		}
		if err := answer.Body.Close(); err != nil || answer.StatusCode != http.StatusNoContent {
			t.Errorf("health: %d, %v", answer.StatusCode, err)
		}
	}
}
