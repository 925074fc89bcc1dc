//go:build real

package ovn_test

import (
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"weft.dev/weft/internal/ovn"
	"weft.dev/weft/internal/ovn/ovntest"
)

func open(t *testing.T, c *ovntest.Central, changed func()) *ovn.Engine {
	t.Helper()
	e, err := ovn.Open(t.Context(), ovn.Config{Endpoints: []string{c.NB()}, Changed: changed})
	must(t, err)
	t.Cleanup(e.Close)
	return e
}

func TestReal(t *testing.T) {
	suite(t, func(t *testing.T) *bench {
		c := ovntest.New(t, nil)
		c.Start(ovntest.Northbound)
		return &bench{open: func(t *testing.T) engine { return open(t, c, nil) }}
	})
}

// Rows of other programs are neither read nor removed, their external_ids stay, and their changes are reported.
func TestForeignRows(t *testing.T) {
	c := ovntest.New(t, nil)
	c.Start(ovntest.Northbound)
	c.Nbctl("ls-add", "foreign", "--", "lsp-add", "foreign", "fp")
	var reports atomic.Int64
	e := open(t, c, func() { reports.Add(1) })
	must(t, e.Lead(t.Context(), 1))
	s := key(ovn.Switch, "s")
	want := rows{s: logicalSwitch("s"), key(ovn.SwitchPort, "p"): port(s, "p", "unknown")}
	expect(t, e, rows{})
	commit(t, e, want, nil)
	c.Nbctl("set", "Logical_Switch", "s", "external_ids:note=mine")
	ovntest.Eventually(t, "a report", func() bool { return reports.Load() > 0 })
	c.Nbctl("set", "Logical_Switch", "s", "name=other")
	want[s] = ovn.Row{Owner: "Subnet/new", Text: text{"name": "s"}}
	commit(t, e, want, nil)
	expect(t, e, want)
	if got := c.Nbctl("get", "Logical_Switch", "s", "external_ids:note"); got != "mine" {
		t.Errorf("another's external_ids: %s", got)
	}
	commit(t, e, nil, want)
	if got := c.Nbctl("--bare", "--columns=name", "list", "Logical_Switch"); got != "foreign" {
		t.Errorf("switches: %s", got)
	}
}

// If a database is replaced by an empty one, the term and the rows are written again; if it is killed, it is used as it is.
func TestReplacedDatabase(t *testing.T) {
	c := ovntest.New(t, nil)
	c.Start(ovntest.Northbound)
	e := open(t, c, nil)
	must(t, e.Lead(t.Context(), 5))
	s := key(ovn.Switch, "s")
	want := rows{s: logicalSwitch("s"), key(ovn.SwitchPort, "p"): port(s, "p", "unknown")}
	commit(t, e, want, nil)
	c.Stop(ovntest.Northbound)
	c.Start(ovntest.Northbound)
	expect(t, e, want)
	c.Stop(ovntest.Northbound)
	c.Wipe(ovntest.Northbound)
	c.Start(ovntest.Northbound)
	expect(t, e, rows{})
	commit(t, e, want, nil)
	expect(t, e, want)
	if err := open(t, c, nil).Lead(t.Context(), 4); err == nil {
		t.Error("an older term leads the new database")
	}
}

// What another program changes during a commit is reported too; the engine's own changes are not.
func TestDriftDuringCommit(t *testing.T) {
	c := ovntest.New(t, nil)
	c.Start(ovntest.Northbound)
	reports := make(chan struct{}, 1)
	e := open(t, c, func() {
		select {
		case reports <- struct{}{}:
		default:
		}
	})
	other := open(t, c, nil)
	must(t, e.Lead(t.Context(), 1))
	must(t, other.Lead(t.Context(), 1))
	s, p, q := key(ovn.Switch, "s"), key(ovn.SwitchPort, "p"), key(ovn.SwitchPort, "q")
	expect(t, e, rows{})
	before := rows{s: logicalSwitch("s"), p: port(s, "p", "unknown"), q: port(s, "q", "unknown")}
	after := rows{s: logicalSwitch("s"), p: port(s, "p", "0a:58:0a:00:01:05 10.0.1.5")}
	for range 20 {
		commit(t, e, before, nil)
		commit(t, e, after, rows{q: {}})
	}
	if len(reports) > 0 {
		t.Error("the engine reports its own changes")
	}
	for i := range 50 {
		commit(t, e, before, nil)
		var group sync.WaitGroup
		group.Go(func() { commit(t, other, nil, rows{q: {}}) })
		commit(t, e, after, nil)
		group.Wait()
		select {
		case <-reports:
		case <-time.After(time.Minute):
			t.Fatalf("round %d: no report of the port that another removed", i)
		}
		expect(t, e, after)
	}
}
