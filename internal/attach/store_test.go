package attach

import (
	"errors"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"go.uber.org/goleak"
	"pgregory.net/rapid"

	"weft.dev/weft/internal/cni/rootdir"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func open(t testing.TB, dir string) *Store {
	t.Helper()
	s, err := Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.Close() })
	return s
}

func reopen(t testing.TB, s *Store) *Store {
	t.Helper()
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	return open(t, s.path)
}

func put(t testing.TB, s *Store, rec Record) {
	t.Helper()
	if err := s.Put(t.Context(), rec); err != nil {
		t.Fatal(err)
	}
}

func wantList(t testing.TB, s *Store, want ...Record) {
	t.Helper()
	slices.SortFunc(want, func(a, b Record) int { return strings.Compare(a.ContainerID, b.ContainerID) })
	got := s.List()
	if len(got) == 0 && len(want) == 0 {
		return
	}
	if diff := cmp.Diff(want, got, compareNetip, compareAddr); diff != "" {
		t.Errorf("records (-want +got):\n%s", diff)
	}
}

func TestStoreKeepsRecords(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "var", "attachments")
	s := open(t, dir)
	a, b := sample(1), sample(2)
	put(t, s, a)
	put(t, s, b)
	a.State = Attached
	put(t, s, a)
	s = reopen(t, s)
	wantList(t, s, a, b)
	got, err := s.Get(a.Key())
	if err != nil || got.State != Attached {
		t.Errorf("Get: %+v, %v", got, err)
	}
	for range 2 {
		if err := s.Delete(t.Context(), a.Key()); err != nil {
			t.Error(err)
		}
	}
	if _, err := s.Get(a.Key()); !errors.Is(err, ErrNotFound) {
		t.Errorf("Get after Delete: %v", err)
	}
	s = reopen(t, s)
	wantList(t, s, b)
	if broken := s.Broken(); len(broken) != 0 {
		t.Errorf("broken: %v", broken)
	}
}

func TestStoreModes(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "attachments")
	if err := os.Mkdir(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	s := open(t, dir)
	rec := sample(1)
	put(t, s, rec)
	for path, want := range map[string]os.FileMode{dir: 0o700, dir + "/broken": 0o700, dir + "/" + fileName(rec.Key()): 0o600} {
		info, err := os.Lstat(path)
		if err != nil {
			t.Fatal(err)
		}
		if got := info.Mode().Perm(); got != want {
			t.Errorf("%s: mode %o, want %o", path, got, want)
		}
	}
	if _, err := Open(dir); !errors.Is(err, rootdir.ErrInUse) {
		t.Errorf("a second store in the directory: %v", err)
	}
}

func TestStoreRefusesLinkedDirectory(t *testing.T) {
	dir := t.TempDir()
	if err := os.Mkdir(dir+"/real", 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink("real", dir+"/link"); err != nil {
		t.Fatal(err)
	}
	if _, err := Open(dir + "/link"); err == nil {
		t.Error("a symbolic link was opened")
	}
	if err := os.WriteFile(dir+"/file", nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := Open(dir + "/file"); err == nil {
		t.Error("a file was opened")
	}
	if err := os.Chmod(dir, 0o777); err != nil { //nolint:gosec // The point.
		t.Fatal(err)
	}
	if _, err := Open(dir + "/real"); err == nil {
		t.Error("a directory was opened that other users may replace")
	}
}

func TestStoreSetsBrokenAside(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "attachments")
	s := open(t, dir)
	good, bad := sample(1), sample(2)
	put(t, s, good)
	put(t, s, bad)
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	half := fileName(bad.Key())
	write := func(name, data string) {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(data), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	data, err := os.ReadFile(filepath.Join(dir, fileName(good.Key())))
	if err != nil {
		t.Fatal(err)
	}
	write(half, string(data[:40]))
	write("copy.json", string(data))
	write("large.json", strings.Repeat(" ", MaxRecord)+string(data))
	write(".tmp-7", string(data))
	if err := os.Symlink("/etc/passwd", dir+"/link.json"); err != nil {
		t.Fatal(err)
	}
	if err := os.Mkdir(dir+"/dir.json", 0o700); err != nil {
		t.Fatal(err)
	}

	s = open(t, dir)
	wantList(t, s, good)
	want := []string{"copy.json", "dir.json", "large.json", "link.json", half}
	wantBroken(t, s, want...)
	if _, err := os.Lstat(dir + "/.tmp-7"); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("an interrupted write is still there: %v", err)
	}
	if recorded, err := Recorded(dir, bad.Key()); err != nil || !recorded {
		t.Errorf("a broken record counts as none: %v, %v", recorded, err)
	}

	// The same again: files set aside are not overwritten, and the attachment can get a new record.
	put(t, s, bad)
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	write(half, "{")
	s = open(t, dir)
	wantBroken(t, s, append(want, half+".1")...)
	aside, err := os.ReadFile(filepath.Join(dir, brokenDir, half))
	if err != nil || string(aside) != string(data[:40]) {
		t.Errorf("what was set aside first: %q, %v", aside, err)
	}
}

func wantBroken(t *testing.T, s *Store, names ...string) {
	t.Helper()
	var got []string
	for _, b := range s.Broken() {
		if b.Err == nil {
			t.Errorf("%s: no reason", b.Path)
		}
		if _, err := os.Lstat(b.Path); err != nil {
			t.Errorf("set aside and lost: %v", err)
		}
		got = append(got, filepath.Base(b.Path))
	}
	slices.Sort(got)
	slices.Sort(names)
	if diff := cmp.Diff(names, got); diff != "" {
		t.Errorf("broken (-want +got):\n%s", diff)
	}
}

// TestStoreTruncatedFiles cuts a record's file at every byte, as a crash of a file system might.
func TestStoreTruncatedFiles(t *testing.T) {
	s := open(t, filepath.Join(t.TempDir(), "attachments"))
	rec, other := sample(1), sample(2)
	data, err := rec.encode()
	if err != nil {
		t.Fatal(err)
	}
	put(t, s, other)
	file := filepath.Join(s.path, fileName(rec.Key()))
	for n := range len(data) - 1 { // for an empty file of a former boot see TestPowerLoss
		if err := os.WriteFile(file, data[:n], 0o600); err != nil {
			t.Fatal(err)
		}
		s = reopen(t, s)
		wantList(t, s, other)
		if broken := s.Broken(); len(broken) != n+1 {
			t.Fatalf("%d bytes: %d files set aside, want %d", n, len(broken), n+1)
		}
	}
}

func TestStoreConflicts(t *testing.T) {
	s := open(t, filepath.Join(t.TempDir(), "attachments"))
	a := sample(1)
	put(t, s, a)
	for name, test := range map[string]struct {
		change   func(*Record)
		conflict bool
	}{
		"nothing shared":               {func(*Record) {}, false},
		"address":                      {func(r *Record) { r.Addresses = a.Addresses }, true},
		"address, another network":     {func(r *Record) { r.Addresses, r.Network = a.Addresses, "vpc-1" }, false},
		"ofport, another network":      {func(r *Record) { r.OFPort, r.Network = a.OFPort, "vpc-1" }, true},
		"no ofport":                    {func(r *Record) { r.OFPort = 0 }, false},
		"host interface":               {func(r *Record) { r.HostInterface = a.HostInterface }, true},
		"no host interface":            {func(r *Record) { r.HostInterface = "" }, false},
		"another interface of the pod": {func(r *Record) { r.ContainerID, r.IfName = a.ContainerID, "net1" }, false},
	} {
		t.Run(name, func(t *testing.T) {
			b := sample(2)
			test.change(&b)
			err := s.Put(t.Context(), b)
			var conflict *ConflictError
			if errors.As(err, &conflict) != test.conflict || (err != nil) != test.conflict {
				t.Fatalf("Put: %v", err)
			}
			if conflict != nil && conflict.Holder != a.Key() {
				t.Errorf("holder %s", conflict.Holder)
			}
			if err := s.Delete(t.Context(), b.Key()); err != nil {
				t.Fatal(err)
			}
		})
	}
	put(t, s, a) // Never in conflict with itself.
	wantList(t, s, a)
}

func TestStoreStale(t *testing.T) {
	s := open(t, filepath.Join(t.TempDir(), "attachments"))
	old, now := sample(1), sample(2)
	old.BootID = "before"
	put(t, s, old)
	put(t, s, now)
	stale := s.Stale(now.BootID)
	if len(stale) != 1 || stale[0].Key() != old.Key() {
		t.Errorf("stale: %v", stale)
	}
	if _, used := s.InUse().OFPorts[old.OFPort]; !used {
		t.Error("what a stale record claims is free before it is deleted")
	}
}

// TestStoreConcurrent has 64 concurrent sandboxes that are added, choose free resources, change and are deleted.
func TestStoreConcurrent(t *testing.T) {
	s := open(t, filepath.Join(t.TempDir(), "attachments"))
	var wg sync.WaitGroup
	kept := make([]Record, 64)
	for n := range kept {
		wg.Go(func() {
			rec := sample(n)
			for {
				rec.OFPort = 3
				for use := s.InUse(); use.OFPorts[rec.OFPort] != (Key{}); rec.OFPort++ { //nolint:revive // Counts.
				}
				err := s.Put(t.Context(), rec)
				if err == nil {
					break
				}
				if conflict := new(ConflictError); !errors.As(err, &conflict) {
					t.Error(err)
					return
				}
			}
			rec.State = Attached
			if err := s.Put(t.Context(), rec); err != nil {
				t.Error(err)
			}
			if n%2 == 0 {
				if err := s.Delete(t.Context(), rec.Key()); err != nil {
					t.Error(err)
				}
				return
			}
			kept[n] = rec
		})
	}
	wg.Wait()
	kept = slices.DeleteFunc(kept, func(r Record) bool { return r.Version == 0 })
	s = reopen(t, s)
	wantList(t, s, kept...)
	if use := s.InUse(); len(use.OFPorts) != len(kept) {
		t.Errorf("%d ofports in use by %d attachments", len(use.OFPorts), len(kept))
	}
}

// TestStoreModel compares the store with a map, under random operations and reopenings.
func TestStoreModel(t *testing.T) {
	base := t.TempDir()
	var run int
	rapid.Check(t, func(rt *rapid.T) {
		run++
		dir := filepath.Join(base, itoa(run))
		s, err := Open(dir)
		if err != nil {
			rt.Fatal(err)
		}
		defer func() { _ = s.Close() }()
		model := map[Key]Record{}
		rt.Repeat(map[string]func(*rapid.T){
			"put":    func(rt *rapid.T) { modelPut(rt, s, model) },
			"delete": func(rt *rapid.T) { modelDelete(rt, s, model) },
			"reopen": func(rt *rapid.T) {
				if err := s.Close(); err != nil {
					rt.Fatal(err)
				}
				if s, err = Open(dir); err != nil {
					rt.Fatal(err)
				}
			},
			"": func(rt *rapid.T) { modelCompare(rt, s, model) },
		})
	})
}

func modelPut(rt *rapid.T, s *Store, model map[Key]Record) {
	rec := sample(rapid.IntRange(0, 8).Draw(rt, "sandbox"))
	rec.IfName = rapid.SampledFrom([]string{"eth0", "net1"}).Draw(rt, "interface")
	rec.HostInterface = "weft" + fileName(rec.Key())[:11]
	rec.OFPort = rapid.Uint32Range(0, 12).Draw(rt, "ofport")
	rec.Addresses = sample(rapid.IntRange(0, 12).Draw(rt, "address")).Addresses
	rec.State = rapid.SampledFrom([]State{Planned, Attached, Closing}).Draw(rt, "state")
	rec.Created = rec.Created.Add(time.Duration(rapid.IntRange(0, 1000).Draw(rt, "age")))
	conflicts := false
	for key, other := range model {
		conflicts = conflicts || key != rec.Key() &&
			(rec.OFPort != 0 && rec.OFPort == other.OFPort || rec.Addresses[0].Addr() == other.Addresses[0].Addr())
	}
	err := s.Put(rt.Context(), rec)
	if conflict := new(ConflictError); errors.As(err, &conflict) != conflicts || (err != nil) != conflicts {
		rt.Fatalf("Put of %+v with a conflict %t: %v", rec, conflicts, err)
	}
	if err == nil {
		model[rec.Key()] = rec
	}
}

func modelDelete(rt *rapid.T, s *Store, model map[Key]Record) {
	key := sampleKey(rapid.IntRange(0, 8).Draw(rt, "sandbox"))
	if err := s.Delete(rt.Context(), key); err != nil {
		rt.Fatal(err)
	}
	delete(model, key)
}

func modelCompare(rt *rapid.T, s *Store, model map[Key]Record) {
	got := map[Key]Record{}
	for _, rec := range s.List() {
		got[rec.Key()] = rec
	}
	if diff := cmp.Diff(model, got, compareNetip, compareAddr); diff != "" {
		rt.Fatalf("records (-model +store):\n%s", diff)
	}
	for key := range maps.Keys(model) {
		if recorded, err := Recorded(s.path, key); err != nil || !recorded {
			rt.Fatalf("attachment %s is not recorded: %v", key, err)
		}
	}
}

func TestRecordedWithoutDirectory(t *testing.T) {
	recorded, err := Recorded(filepath.Join(t.TempDir(), "none"), Key{"a", "eth0"})
	if err != nil || recorded {
		t.Errorf("%v, %v", recorded, err)
	}
}

func BenchmarkPutDelete(b *testing.B) {
	s := open(b, filepath.Join(b.TempDir(), "attachments"))
	rec := sample(1)
	for b.Loop() {
		if err := s.Put(b.Context(), rec); err != nil {
			b.Fatal(err)
		}
		if err := s.Delete(b.Context(), rec.Key()); err != nil {
			b.Fatal(err)
		}
	}
}
