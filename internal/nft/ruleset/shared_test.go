package ruleset

import (
	"testing"
	"time"
)

// An answer is shared by questions of the same generation, for a limited time.
func TestListingsAreShared(t *testing.T) {
	var l listings
	begin := time.Unix(1000, 0)
	first, mine := l.find(7, "list chains", begin)
	if !mine {
		t.Fatal("the first question is not the caller's to ask")
	}
	for _, c := range []struct {
		name       string
		generation uint32
		question   string
		at         time.Duration
		mine       bool
	}{
		{"the same", 7, "list chains", time.Second, false},
		{"another question", 7, "list table inet weft", time.Second, true},
		{"the same, later", 7, "list chains", shareFor, true},
		{"the same again", 7, "list chains", shareFor, false},
		{"another generation", 8, "list chains", shareFor, true},
		{"the table in that generation", 8, "list table inet weft", shareFor, true},
	} {
		if _, mine := l.find(c.generation, c.question, begin.Add(c.at)); mine != c.mine {
			t.Errorf("%s: to be asked: %t, want %t", c.name, mine, c.mine)
		}
	}
	l.drop("list chains", first) // it has been replaced
	if _, mine := l.find(8, "list chains", begin.Add(shareFor)); mine {
		t.Error("dropping an answer dropped its successor")
	}
}
