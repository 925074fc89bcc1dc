package attach

import (
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

// errInjected is the error of a faulty disk.
var errInjected = errors.New("injected fault")

// faultyDisk is a disk on which step number at fails. A failing write has written the first half bytes. After a crash every later step
// fails as well, including the cleanup, as if the process had died.
type faultyDisk struct {
	disk
	at, half int
	crash    bool
	steps    int
	// last is the name of the latest step.
	last string
}

func (d *faultyDisk) step(name string) error {
	n := d.steps
	d.steps++
	d.last = name
	if n == d.at || d.crash && n > d.at {
		return errInjected
	}
	return nil
}

func (d *faultyDisk) create(name string) (io.WriteCloser, error) {
	if err := d.step("create"); err != nil {
		return nil, err
	}
	w, err := d.disk.create(name)
	return &faultyWriter{WriteCloser: w, disk: d}, err
}

func (d *faultyDisk) rename(from, to string) error {
	if err := d.step("rename"); err != nil {
		return err
	}
	return d.disk.rename(from, to)
}

func (d *faultyDisk) remove(name string) error {
	if err := d.step("remove"); err != nil {
		return err
	}
	return d.disk.remove(name)
}

type faultyWriter struct {
	io.WriteCloser
	disk *faultyDisk
}

func (w *faultyWriter) Write(data []byte) (int, error) {
	if err := w.disk.step("write"); err != nil {
		n, writeErr := w.WriteCloser.Write(data[:w.disk.half])
		return n, errors.Join(err, writeErr)
	}
	return w.WriteCloser.Write(data)
}

func (w *faultyWriter) Close() error {
	return errors.Join(w.disk.step("close"), w.WriteCloser.Close())
}

// scenario is a change of one record from before to after; nil means no record.
type scenario struct {
	name          string
	before, after *Record
}

func scenarios() []scenario {
	planned, attached := sample(1), sample(1)
	attached.State = Attached
	attached.OFPort = 77
	return []scenario{
		{"first put", nil, &planned},
		{"second put", &planned, &attached},
		{"delete", &attached, nil},
	}
}

// start returns a store with the scenario's first state, and another attachment's record.
func (c scenario) start(t *testing.T, neighbour Record) *Store {
	t.Helper()
	s := open(t, filepath.Join(t.TempDir(), "attachments"))
	put(t, s, neighbour)
	if c.before != nil {
		put(t, s, *c.before)
	}
	return s
}

func (c scenario) change(t *testing.T, s *Store) error {
	t.Helper()
	if c.after == nil {
		return s.Delete(t.Context(), c.before.Key())
	}
	return s.Put(t.Context(), *c.after)
}

// wantEither fails unless the store has the complete record from before or from after the change.
func (c scenario) wantEither(t *testing.T, s *Store) {
	t.Helper()
	key := sampleKey(1)
	rec, err := s.Get(key)
	for _, want := range []*Record{c.before, c.after} {
		if want == nil && errors.Is(err, ErrNotFound) {
			return
		}
		if want != nil && err == nil && cmp.Equal(*want, rec, compareNetip, compareAddr) {
			return
		}
	}
	t.Errorf("neither the record before nor the one after: %+v, %v", rec, err)
}

// faults runs test for every failing step of every scenario.
func faults(t *testing.T, crash bool, half int, test func(t *testing.T, c scenario, s *Store, d *faultyDisk)) {
	t.Helper()
	for _, c := range scenarios() {
		for at := 0; ; at++ {
			s := c.start(t, sample(2))
			d := &faultyDisk{disk: s.disk, at: at, half: half, crash: crash}
			s.disk = d
			err := c.change(t, s)
			if d.steps <= at {
				if err != nil {
					t.Fatalf("%s: no fault, and: %v", c.name, err)
				}
				break
			}
			t.Run(c.name+" "+d.last+" "+itoa(at), func(t *testing.T) {
				if !errors.Is(err, errInjected) {
					t.Errorf("the fault is not reported: %v", err)
				}
				test(t, c, s, d)
			})
		}
	}
}

// TestCrash stops the process at every step of a change: the next start finds the state from before or after the change.
func TestCrash(t *testing.T) {
	faults(t, true, 100, func(t *testing.T, c scenario, s *Store, _ *faultyDisk) {
		s = reopen(t, s)
		c.wantEither(t, s)
		if _, err := s.Get(sampleKey(2)); err != nil {
			t.Errorf("the neighbour: %v", err)
		}
		if broken := s.Broken(); len(broken) != 0 {
			t.Errorf("broken: %v", broken)
		}
	})
}

// TestCrashInWrite stops the process at every byte of the write.
func TestCrashInWrite(t *testing.T) {
	c := scenarios()[1]
	data, err := c.after.encode()
	if err != nil {
		t.Fatal(err)
	}
	s := c.start(t, sample(2))
	for half := range len(data) + 1 {
		s.disk = &faultyDisk{disk: s.disk, at: 1, half: half, crash: true}
		if err := c.change(t, s); !errors.Is(err, errInjected) {
			t.Fatal(err)
		}
		s = reopen(t, s)
		wantList(t, s, *c.before, sample(2))
		if broken := s.Broken(); len(broken) != 0 {
			t.Fatalf("%d bytes: broken: %v", half, broken)
		}
	}
}

// TestFault has one step fail while the process continues: the store agrees with the disk, no half-written file is left, and the same
// change succeeds when it is repeated.
func TestFault(t *testing.T) {
	faults(t, false, 10, func(t *testing.T, c scenario, s *Store, d *faultyDisk) {
		c.wantEither(t, s)
		live := s.List()
		if use := s.InUse(); len(use.OFPorts) != len(live) {
			t.Errorf("%d ofports in use by %d records", len(use.OFPorts), len(live))
		}
		entries, err := os.ReadDir(s.path)
		if err != nil {
			t.Fatal(err)
		}
		for _, entry := range entries {
			if strings.HasPrefix(entry.Name(), temporaryPrefix) {
				t.Errorf("files left: %s", entry.Name())
			}
		}
		s.disk = d.disk
		s = reopen(t, s)
		if diff := cmp.Diff(live, s.List(), compareNetip, compareAddr); diff != "" {
			t.Errorf("the store and the disk disagree (-store +disk):\n%s", diff)
		}
		if err := c.change(t, s); err != nil {
			t.Errorf("made again: %v", err)
		}
	})
}

// void are contents of a file in place of a record that was not yet on the device when the power was lost.
func void() map[string]string { return map[string]string{"empty": "", "zeros": "\x00\x00\x00"} }

// empty replaces a record's file, which was last written at a time.
func (c scenario) empty(t *testing.T, s *Store, content string, written time.Time) (path string) {
	t.Helper()
	path = filepath.Join(s.path, fileName(c.before.Key()))
	if err := errors.Join(os.WriteFile(path, []byte(content), 0o600), os.Chtimes(path, written, written)); err != nil {
		t.Fatal(err)
	}
	return path
}

// After a loss of power, a record's file may be empty or full of zeros. It is older than the boot. That is not a record, and is not
// reported.
func TestPowerLoss(t *testing.T) {
	c := scenarios()[1]
	for name, content := range void() {
		t.Run(name, func(t *testing.T) {
			s := c.start(t, sample(2))
			path := c.empty(t, s, content, s.Booted().Add(-time.Minute))
			s = reopen(t, s)
			wantList(t, s, sample(2))
			if broken := s.Broken(); len(broken) != 0 {
				t.Errorf("broken: %v", broken)
			}
			if _, err := os.Lstat(path); !errors.Is(err, os.ErrNotExist) {
				t.Errorf("the file: %v", err)
			}
		})
	}
}

// A file that was written in this boot is a broken record, although it is empty: its pod may still run. So it is if the clock was set
// forward since, as a record of this boot shows that appears to be older than the boot.
func TestVoidOfThisBoot(t *testing.T) {
	c := scenarios()[1]
	boot, err := ReadBootID()
	if err != nil {
		t.Fatal(err)
	}
	for name, content := range void() {
		for clock, step := range map[string]time.Duration{"clock right": 0, "clock set forward": time.Hour} {
			t.Run(name+" "+clock, func(t *testing.T) {
				neighbour := sample(2)
				s := c.start(t, neighbour)
				neighbour.BootID, neighbour.Created = boot, s.Booted().Add(time.Second-step).UTC().Round(0)
				put(t, s, neighbour)
				written := neighbour.Created.Add(time.Minute)
				path := c.empty(t, s, content, written)
				s = reopen(t, s)
				wantList(t, s, neighbour)
				broken := s.Broken()
				if len(broken) != 1 || !broken[0].Is(c.before.Key()) || broken[0].Modified.Before(s.Booted()) {
					t.Fatalf("broken: %v, booted %s", broken, s.Booted())
				}
				if !broken[0].Modified.Equal(written) || filepath.Base(broken[0].Path) != filepath.Base(path) {
					t.Errorf("broken: %v", broken)
				}
				if !strings.Contains(broken[0].Err.Error(), "empty") {
					t.Errorf("reason: %v", broken[0].Err)
				}
			})
		}
	}
}

// A store that is opened for reading lists such a file as broken too.
func TestLookAtVoid(t *testing.T) {
	c := scenarios()[1]
	s := c.start(t, sample(2))
	path := c.empty(t, s, "", time.Now())
	seen, err := Look(s.path)
	if err != nil {
		t.Fatal(err)
	}
	wantList(t, seen, sample(2))
	if broken := seen.Broken(); len(broken) != 1 || broken[0].Path != path {
		t.Errorf("broken: %v", broken)
	}
}
