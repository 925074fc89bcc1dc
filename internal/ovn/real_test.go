//go:build real

package ovn_test

import (
	"sync/atomic"
	"testing"

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

// Rows of others are neither read nor removed, others' external_ids stay, and what others change is reported.
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

// A database that was replaced by an empty one gets the term and the rows again; a killed one is used again as it is.
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
