package metrics

import (
	"errors"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil/promlint"

	"weft.dev/weft/internal/goldentest"
	"weft.dev/weft/internal/reconcile"
)

// TestDocument checks that docs/metrics.md is up to date with what is registered.
func TestDocument(t *testing.T) {
	const path = "../../docs/metrics.md"
	goldentest.Compare(t, path, Document())
}

// full returns metrics with a value in every possible series.
func full() (*Agent, *Controller) {
	agent := NewAgent("v1")
	agent.Request("overlay", "ADD", 0, 14*time.Millisecond)
	agent.Request("overlay", "ADD", 11, time.Second)
	agent.Step("overlay", "ADD", "link", time.Millisecond)
	agent.Commit(reconcile.Event{Engine: "openflow", Set: 3, Deleted: 1, Took: time.Millisecond, Waited: 2 * time.Millisecond, Drift: reconcile.Drift{Altered: 2}})
	agent.Commit(reconcile.Event{Engine: "nft", Set: 3, Err: errors.New("refused")})
	agent.Commit(reconcile.Event{Engine: "nft", Read: true, Err: errors.New("gone")})
	agent.Bundle(4, nil)
	agent.Bundle(4, errors.New("refused"))
	agent.Connected("openflow")
	agent.Synced("overlay", time.Second)
	agent.Event(true)
	agent.Event(false)
	agent.KubeRequest("GET", 200)
	agent.KubeRequest("GET", 0)
	agent.KubeWatches(2)
	agent.Watch(func() State {
		return State{
			Engines: map[string]Engine{"openflow": {
				Status:     reconcile.Status{Started: true, Items: 5, Failures: map[reconcile.Owner]error{"a": errors.New("refused")}},
				Programmed: 4,
			}},
			Networks: map[string]Network{
				"overlay": {Ready: true, AddressesInUse: 2, Addresses: 509, Attachments: map[string]int{"attached": 2}, Flows: map[string]int{"pod": 3, "groups": 1}},
				"vpc":     {Attachments: map[string]int{"attached": 1}},
			},
		}
	})
	controller := NewController("v1").For("overlay")
	controller.Lead(true)
	controller.Reconciled("subnets", time.Millisecond, nil)
	controller.Wrote("create", "ok")
	controller.Problems("subnets", map[string]int{"Exhausted": 1})
	controller.Subnets(3, 509)
	controller.VNIDs(7)
	return agent, controller
}

// Names, help and types follow the rules of Prometheus' own linter, and every definition is exported.
func TestConventions(t *testing.T) {
	agent, controller := full()
	for name, r := range map[string]*Registry{"agent": agent.Registry, "controller": controller.Registry} {
		families, err := r.Gatherer().Gather()
		if err != nil {
			t.Fatal(err)
		}
		problems, err := promlint.NewWithMetricFamilies(families).Lint()
		if err != nil {
			t.Fatal(err)
		}
		for _, p := range problems {
			t.Errorf("%s: %s: %s", name, p.Metric, p.Text)
		}
		var have []string
		for _, family := range families {
			have = append(have, family.GetName())
		}
		for _, d := range r.Definitions() {
			if !slices.Contains(have, d.Name) {
				t.Errorf("%s: %s is promised and not there", name, d.Name)
			}
			if !strings.HasPrefix(d.Name, "weft_") {
				t.Errorf("%s: %s: the name does not begin with weft_", name, d.Name)
			}
			for _, label := range d.Labels {
				if slices.Contains([]string{"pod", "namespace", "service", "node", "owner", "address"}, label) {
					t.Errorf("%s: %s: label %s grows with the cluster", name, d.Name, label)
				}
			}
		}
	}
}

// A scrape returns the recorded values.
func TestValues(t *testing.T) {
	agent, controller := full()
	expect(t, agent.Handler(),
		`weft_cni_request_duration_seconds_count{code="0",command="ADD",network="overlay"} 1`,
		`weft_cni_request_duration_seconds_bucket{code="0",command="ADD",network="overlay",le="0.016"} 1`,
		`weft_cni_request_duration_seconds_bucket{code="0",command="ADD",network="overlay",le="0.008"} 0`,
		`weft_cni_request_duration_seconds_count{code="11",command="ADD",network="overlay"} 1`,
		`weft_cni_step_duration_seconds_count{command="ADD",network="overlay",step="link"} 1`,
		`weft_engine_changes_total{change="set",engine="openflow"} 3`,
		`weft_engine_drift_total{engine="openflow",kind="altered"} 2`,
		`weft_engine_drift_total{engine="link",kind="stray"} 0`,
		`weft_engine_commit_errors_total{engine="nft"} 1`,
		`weft_engine_read_errors_total{engine="nft"} 1`,
		`weft_engine_latency_seconds_count{engine="openflow"} 1`,
		`weft_openflow_bundles_total{result="error"} 1`,
		`weft_openflow_flow_mods_total 4`,
		`weft_openflow_flows{network="overlay",table="pod"} 3`,
		`weft_openflow_flows{network="overlay",table="groups"} 1`,
		`weft_engine_programmed{engine="openflow"} 4`,
		`weft_engine_in_step{engine="openflow"} 0`,
		`weft_events_total{result="dropped"} 1`,
		`weft_kube_requests_total{method="GET",status="error"} 1`,
		`weft_kube_watches 2`,
		`weft_addresses{network="overlay"} 509`,
		`weft_attachments{network="overlay",state="attached"} 2`,
		`weft_attachments{network="vpc",state="attached"} 1`,
		`weft_ready{network="overlay"} 1`,
		`weft_ready{network="vpc"} 0`,
	)
	expect(t, controller.Handler(),
		`weft_controller_leader 1`,
		`weft_controller_problems{controller="subnets",network="overlay",reason="Exhausted"} 1`,
		`weft_controller_free_subnets 509`,
		`weft_controller_writes_total{network="overlay",result="ok",verb="create"} 1`,
	)
}

// A replica that is not the leader exports that, and no values that it does not know: an alert on too few subnets must not fire for it.
func TestReplicaThatWaits(t *testing.T) {
	controller := NewController("v1").For("overlay")
	expect(t, controller.Handler(), `weft_controller_leader 0`, `weft_controller_writes_total{network="overlay",result="error",verb="create"} 0`)
	families, err := controller.Gatherer().Gather()
	if err != nil {
		t.Fatal(err)
	}
	for _, family := range families {
		if slices.Contains([]string{"weft_controller_free_subnets", "weft_controller_host_subnets", "weft_controller_vnids"}, family.GetName()) {
			t.Errorf("%s is reported", family.GetName())
		}
	}
}

func expect(t *testing.T, handler http.Handler, lines ...string) {
	t.Helper()
	answer := httptest.NewRecorder()
	handler.ServeHTTP(answer, httptest.NewRequest(http.MethodGet, "/metrics", http.NoBody))
	have := strings.Split(answer.Body.String(), "\n")
	for _, line := range lines {
		if !slices.Contains(have, line) {
			t.Errorf("no line %s", line)
		}
	}
}

// Two registries in one process, as in tests, share nothing.
func TestRegistriesAreApart(t *testing.T) {
	one, two := NewAgent("v1"), NewAgent("v1")
	one.Connected("ovsdb")
	expect(t, two.Handler(), `weft_engine_connections_total{to="ovsdb"} 0`)
}
