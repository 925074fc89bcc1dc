package attach

import (
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func claiming(n int, claims ...string) Record {
	rec := sample(n)
	rec.Claims = claims
	rec.Details = json.RawMessage(`{"uid": "a<b", "list": [1, 2]}`)
	return rec
}

// TestClaims: of two attachments with one claim, the second is refused until the first is deleted, whatever their networks are.
func TestClaims(t *testing.T) {
	s := open(t, filepath.Join(t.TempDir(), "attachments"))
	first, second := claiming(1, "ofport br-n 7", "address vpc.x 10.0.0.4"), claiming(2, "address vpc.x 10.0.0.4")
	second.Network = "other"
	if err := s.Put(t.Context(), first); err != nil {
		t.Fatal(err)
	}
	var conflict *ConflictError
	if err := s.Put(t.Context(), second); !errors.As(err, &conflict) || conflict.What != "address vpc.x 10.0.0.4" || conflict.Holder != first.Key() {
		t.Fatalf("a second claim: %v", err)
	}
	if use := s.InUse(); len(use.Claims) != 2 || use.Claims["ofport br-n 7"] != first.Key() {
		t.Errorf("in use: %v", use.Claims)
	}
	first.State = Closing
	put(t, s, first)
	if err := s.Put(t.Context(), second); !errors.As(err, &conflict) {
		t.Errorf("a claim of a closing attachment: %v", err)
	}
	if err := s.Delete(t.Context(), first.Key()); err != nil {
		t.Fatal(err)
	}
	put(t, s, second)
}

// TestDetailsOutliveARestart: details are read back as the same JSON. They are in a file beside the record, not in it: an older agent
// treats a record with an unknown field as damaged.
func TestDetailsOutliveARestart(t *testing.T) {
	s := open(t, filepath.Join(t.TempDir(), "attachments"))
	rec := claiming(1, "x")
	put(t, s, rec)
	before, err := s.Get(rec.Key())
	if err != nil {
		t.Fatal(err)
	}
	data, err := os.ReadFile(filepath.Join(s.path, fileName(rec.Key())))
	if err != nil || strings.Contains(string(data), "claims") || strings.Contains(string(data), "details") {
		t.Errorf("the record itself: %s, %v", data, err)
	}
	s = reopen(t, s)
	wantList(t, s, before)
	var have struct {
		UID  string
		List []int
	}
	if err := json.Unmarshal(before.Details, &have); err != nil || have.UID != "a<b" || len(have.List) != 2 {
		t.Errorf("details %s, %v", before.Details, err)
	}
}

// TestUnknownFieldsStay: fields of a later version beside a record survive an older agent, and its writes.
func TestUnknownFieldsStay(t *testing.T) {
	s := open(t, filepath.Join(t.TempDir(), "attachments"))
	rec := claiming(1, "x")
	put(t, s, rec)
	path := extraPath(s, rec)
	data, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	later := `{"laterField":{"a":[1]},` + strings.TrimPrefix(string(data), "{")
	if err := os.WriteFile(path, []byte(later), 0o600); err != nil {
		t.Fatal(err)
	}
	s = reopen(t, s)
	for _, change := range []func(){
		func() { rec.Claims = []string{"y"} },
		func() { rec.Claims, rec.Details = nil, nil },
		func() { rec.State = Attached },
	} {
		change()
		put(t, s, rec)
		if data, err := os.ReadFile(path); err != nil || !strings.Contains(string(data), `"laterField":{"a":[1]}`) {
			t.Fatalf("after a write: %s, %v", data, err)
		}
	}
	s = reopen(t, s)
	wantList(t, s, rec)
	if err := s.Delete(t.Context(), rec.Key()); err != nil || exists(t, path) {
		t.Errorf("after Delete: %v, file there: %t", err, exists(t, path))
	}
}

func TestClaimsRefused(t *testing.T) {
	s := open(t, filepath.Join(t.TempDir(), "attachments"))
	for name, change := range map[string]func(*Record){
		"an empty claim":    func(r *Record) { r.Claims = []string{""} },
		"a long claim":      func(r *Record) { r.Claims = []string{strings.Repeat("x", maxClaim+1)} },
		"a line break":      func(r *Record) { r.Claims = []string{"a\nb"} },
		"too many":          func(r *Record) { r.Claims = make([]string, maxClaims+1) },
		"no JSON":           func(r *Record) { r.Details = json.RawMessage("x") },
		"null":              func(r *Record) { r.Details = json.RawMessage("null") },
		"a list":            func(r *Record) { r.Details = json.RawMessage("[]") },
		"details too large": func(r *Record) { r.Details = json.RawMessage(`{"x":"` + strings.Repeat("x", maxDetails) + `"}`) },
	} {
		rec := sample(1)
		change(&rec)
		if err := s.Put(t.Context(), rec); err == nil {
			t.Errorf("%s: written", name)
		}
	}
	wantList(t, s)
}
