package session_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"net"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"github.com/google/uuid"
	"github.com/ovn-kubernetes/libovsdb/model"
	"github.com/ovn-kubernetes/libovsdb/ovsdb"
	"go.uber.org/goleak"
	"pgregory.net/rapid"

	"weft.dev/weft/internal/ovsdb/session"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const (
	schemaFile = "testdata/shelf.ovsschema"
	database   = "Shelf"
	table      = "Box"
	patience   = 30 * time.Second
)

// box is a row without the column weight: the copy must work without it.
type box struct {
	UUID    string            `ovsdb:"_uuid"`
	Name    string            `ovsdb:"name"`
	Labels  map[string]string `ovsdb:"labels"`
	Tags    []string          `ovsdb:"tags"`
	Level   *int              `ovsdb:"level"`
	Fragile bool              `ovsdb:"fragile"`
}

func tables() map[string]model.Model { return map[string]model.Model{table: &box{}} }

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func within(t testing.TB) context.Context {
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	t.Cleanup(cancel)
	return ctx
}

func insert(name string) ovsdb.Operation {
	return ovsdb.Operation{Op: ovsdb.OperationInsert, Table: table, UUID: uuid.NewString(), Row: ovsdb.Row{"name": name}}
}

func write(t testing.TB, k *session.Keeper, ops ...ovsdb.Operation) {
	t.Helper()
	must(t, k.Do(within(t), func(s *session.Session) error {
		results, err := s.Transact(within(t), ops...)
		if err != nil {
			return err
		}
		return session.Check(ops, results)
	}))
}

func keep(t testing.TB, config session.Config) *session.Keeper {
	t.Helper()
	config.Database, config.Tables, config.ProbeInterval = database, tables(), time.Second
	k, err := session.Keep(t.Context(), config)
	must(t, err)
	t.Cleanup(k.Close)
	return k
}

// names returns the names in the copy of the current session.
func names(t testing.TB, k *session.Keeper) map[string]bool {
	t.Helper()
	have := map[string]bool{}
	must(t, k.Do(within(t), func(s *session.Session) error {
		clear(have)
		for _, row := range session.Rows[box](s, table) {
			have[row.Name] = true
		}
		return nil
	}))
	return have
}

// wire forwards connections to a server, and forwards none while it is cut.
type wire struct {
	path     string
	listener net.Listener
	group    sync.WaitGroup
	mu       sync.Mutex
	isCut    bool
	conns    []net.Conn
}

func newWire(t testing.TB, server string) *wire {
	t.Helper()
	w := &wire{path: filepath.Join(t.TempDir(), "w.sock")}
	var err error
	w.listener, err = net.Listen("unix", w.path)
	must(t, err)
	w.group.Go(func() {
		for {
			near, err := w.listener.Accept()
			if err != nil {
				return
			}
			far, err := net.Dial("unix", server)
			if err != nil {
				_ = near.Close()
				continue
			}
			if !w.add(near, far) {
				_ = near.Close()
				_ = far.Close()
				continue
			}
			for _, pair := range [][2]net.Conn{{near, far}, {far, near}} {
				w.group.Go(func() {
					_, _ = io.Copy(pair[0], pair[1])
					_ = pair[0].Close()
					_ = pair[1].Close()
				})
			}
		}
	})
	t.Cleanup(func() {
		_ = w.listener.Close()
		w.cut()
		w.group.Wait()
	})
	return w
}

// add notes two ends to forward between. It returns false while the wire is cut.
func (w *wire) add(near, far net.Conn) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.isCut {
		return false
	}
	w.conns = append(w.conns, near, far)
	return true
}

// cut ends all connections. Later ones end at once, until join.
func (w *wire) cut() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.isCut = true
	for _, conn := range w.conns {
		_ = conn.Close()
	}
	w.conns = nil
}

func (w *wire) join() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.isCut = false
}

// suite holds a session to its contract with a server behind a unix socket.
func suite(t *testing.T, start func(t *testing.T) (socket string)) {
	t.Run("copy", func(t *testing.T) {
		socket := start(t)
		k := keep(t, session.Config{Endpoints: []string{"unix:" + socket}})
		for i := range 50 {
			write(t, k, insert(fmt.Sprintf("early%d", i)))
		}
		changed := make(chan string, 100)
		other := keep(t, session.Config{
			Endpoints: []string{"unix:" + filepath.Join(t.TempDir(), "none"), "unix:" + socket},
			Changed:   func(table string) { changed <- table },
		})
		if have := names(t, other); len(have) != 50 {
			t.Fatalf("the first copy has %d rows, want 50", len(have))
		}
		must(t, other.Do(within(t), func(s *session.Session) error {
			if s.Endpoint() != "unix:"+socket {
				t.Errorf("endpoint %s", s.Endpoint())
			}
			write(t, k, insert("late"))
			return s.Await(within(t), func() bool { return len(session.Rows[box](s, table)) == 51 })
		}))
		if got := <-changed; got != table {
			t.Errorf("change of table %q", got)
		}
	})
	t.Run("changes", func(t *testing.T) { followsChanges(t, start(t)) })
	t.Run("refused", func(t *testing.T) {
		k := keep(t, session.Config{Endpoints: []string{"unix:" + start(t)}})
		write(t, k, insert("a"))
		must(t, k.Do(within(t), func(s *session.Session) error {
			timeout := 0
			ops := []ovsdb.Operation{
				insert("b"),
				{
					Op: ovsdb.OperationWait, Table: table, Timeout: &timeout, Until: string(ovsdb.WaitConditionEqual),
					Where:   []ovsdb.Condition{ovsdb.NewCondition("name", ovsdb.ConditionEqual, "a")},
					Columns: []string{"name"}, Rows: []ovsdb.Row{{"name": "never"}},
				},
			}
			results, err := s.Transact(within(t), ops...)
			if err != nil {
				return err
			}
			var refused *session.OperationError
			if err := session.Check(ops, results); !errors.As(err, &refused) || refused.Reason != "timed out" || refused.Index != 1 {
				t.Errorf("a wait that does not hold: %v", err)
			}
			return s.Sync(within(t))
		}))
		if have := names(t, k); have["b"] || !have["a"] {
			t.Errorf("after a refused transaction: %v", have)
		}
	})
	t.Run("loss", func(t *testing.T) {
		socket := start(t)
		w := newWire(t, socket)
		connected, lost := make(chan bool, 10), make(chan bool, 10)
		k := keep(t, session.Config{
			Endpoints: []string{"unix:" + w.path},
			Connected: func(again bool) { connected <- again }, Lost: func() { lost <- true },
		})
		steady := keep(t, session.Config{Endpoints: []string{"unix:" + socket}})
		names(t, steady) // libovsdb's server is not safe with a copy and a transaction at the same time: one after the other
		write(t, k, insert("before"))
		if <-connected {
			t.Error("the first connection is not another one")
		}
		calls := 0
		must(t, k.Do(within(t), func(s *session.Session) error {
			if calls++; calls == 1 {
				w.cut()
				write(t, steady, insert("meanwhile"))
				w.join()
				err := s.Await(within(t), func() bool { return false })
				if !errors.Is(err, session.ErrLost) || !s.IsLost() {
					t.Errorf("on a lost session: %v", err)
				}
				if _, err := s.Transact(within(t)); !errors.Is(err, session.ErrLost) {
					t.Errorf("transaction on a lost session: %v", err)
				}
				return err
			}
			if rows := session.Rows[box](s, table); len(rows) != 2 {
				t.Errorf("the new copy has %d rows, want 2", len(rows))
			}
			return nil
		}))
		if calls != 2 || !<-connected || !<-lost {
			t.Errorf("%d calls", calls)
		}
	})
	t.Run("ends", func(t *testing.T) {
		k := keep(t, session.Config{Endpoints: []string{"unix:" + filepath.Join(t.TempDir(), "none")}})
		short, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
		defer cancel()
		nothing := func(*session.Session) error { return nil }
		if err := k.Do(short, nothing); !errors.Is(err, session.ErrNotConnected) {
			t.Errorf("without a server: %v", err)
		}
		if k.Current() != nil {
			t.Error("a session without a server")
		}
		k.Close()
		k.Close()
		if err := k.Do(within(t), nothing); !errors.Is(err, session.ErrClosed) {
			t.Errorf("after Close: %v", err)
		}
	})
}

// followsChanges changes rows at random, and compares a copy that follows with what was written and with a new copy.
func followsChanges(t *testing.T, socket string) {
	k := keep(t, session.Config{Endpoints: []string{"unix:" + socket}})
	rapid.Check(t, func(r *rapid.T) {
		words := rapid.SampledFrom([]string{"a", "b", "c", "d"})
		want := map[string]box{}
		var ops []ovsdb.Operation
		for uuid := range boxes(t, k) {
			ops = append(ops, ovsdb.Operation{Op: ovsdb.OperationDelete, Table: table, Where: is(uuid)})
		}
		for step := range rapid.IntRange(1, 8).Draw(r, "steps") {
			b := box{
				Name: fmt.Sprint("box", rapid.IntRange(0, 2).Draw(r, "box")), Labels: rapid.MapOf(words, words).Draw(r, "labels"),
				Tags: rapid.SliceOfDistinct(words, rapid.ID).Draw(r, "tags"), Fragile: rapid.Bool().Draw(r, "fragile"),
			}
			if rapid.Bool().Draw(r, "placed") {
				b.Level = new(rapid.IntRange(-9, 9).Draw(r, "level"))
			}
			have, exists := want[b.Name]
			columns := ovsdb.Row{"labels": dict(b.Labels), "tags": set(b.Tags), "level": optional(b.Level), "fragile": b.Fragile}
			switch {
			case !exists:
				b.UUID, columns["name"] = uuid.NewString(), b.Name
				ops = append(ops, ovsdb.Operation{Op: ovsdb.OperationInsert, Table: table, UUID: b.UUID, Row: columns})
				want[b.Name] = b
			case step > 1 && rapid.IntRange(0, 3).Draw(r, "deleted") == 0:
				ops = append(ops, ovsdb.Operation{Op: ovsdb.OperationDelete, Table: table, Where: is(have.UUID)})
				delete(want, b.Name)
			default:
				b.UUID = have.UUID
				ops = append(ops, ovsdb.Operation{Op: ovsdb.OperationUpdate, Table: table, Where: is(b.UUID), Row: columns})
				want[b.Name] = b
			}
			write(t, k, ops...)
			ops = nil
			if diff := cmp.Diff(slices.Collect(maps.Values(want)), slices.Collect(maps.Values(boxes(t, k))), unordered()...); diff != "" {
				r.Fatalf("after step %d the copy differs (-want +got):\n%s", step, diff)
			}
		}
	})
	other := keep(t, session.Config{Endpoints: []string{"unix:" + socket}})
	if diff := cmp.Diff(boxes(t, k), boxes(t, other), unordered()...); diff != "" {
		t.Errorf("a new copy differs (-followed +new):\n%s", diff)
	}
}

// unordered compares sets and empty maps by what they contain.
func unordered() []cmp.Option {
	return []cmp.Option{
		cmpopts.EquateEmpty(), cmpopts.SortSlices(strings.Compare), cmpopts.SortSlices(func(a, b box) bool { return a.Name < b.Name }),
	}
}

// boxes returns the rows of the copy, after all that was written before.
func boxes(t testing.TB, k *session.Keeper) map[string]box {
	t.Helper()
	all := map[string]box{}
	must(t, k.Do(within(t), func(s *session.Session) error {
		if err := s.Sync(within(t)); err != nil {
			return err
		}
		clear(all)
		for uuid, row := range session.Rows[box](s, table) {
			all[uuid] = *row
		}
		return nil
	}))
	return all
}

func is(uuid string) []ovsdb.Condition {
	return []ovsdb.Condition{ovsdb.NewCondition("_uuid", ovsdb.ConditionEqual, ovsdb.UUID{GoUUID: uuid})}
}

func dict(of map[string]string) ovsdb.OvsMap {
	m := ovsdb.OvsMap{GoMap: map[any]any{}}
	for key, value := range of {
		m.GoMap[key] = value
	}
	return m
}

func set(of []string) ovsdb.OvsSet {
	s := ovsdb.OvsSet{GoSet: []any{}}
	for _, element := range of {
		s.GoSet = append(s.GoSet, element)
	}
	return s
}

func optional(of *int) ovsdb.OvsSet {
	if of == nil {
		return ovsdb.OvsSet{GoSet: []any{}}
	}
	return ovsdb.OvsSet{GoSet: []any{*of}}
}

func TestConfig(t *testing.T) {
	for name, config := range map[string]session.Config{
		"no database":    {Tables: tables(), Endpoints: []string{"unix:/s"}},
		"no table":       {Database: database, Endpoints: []string{"unix:/s"}},
		"no endpoint":    {Database: database, Tables: tables()},
		"no path":        {Database: database, Tables: tables(), Endpoints: []string{"unix:"}},
		"no port":        {Database: database, Tables: tables(), Endpoints: []string{"tcp:192.0.2.1"}},
		"no certificate": {Database: database, Tables: tables(), Endpoints: []string{"ssl:192.0.2.1:6641"}},
		"other method":   {Database: database, Tables: tables(), Endpoints: []string{"punix:/s"}},
	} {
		k, err := session.Keep(t.Context(), config)
		if !errors.Is(err, session.ErrInvalid) {
			t.Errorf("%s: %v", name, err)
		}
		if k != nil {
			k.Close()
		}
	}
}

func TestCheck(t *testing.T) {
	ops := []ovsdb.Operation{insert("a")}
	var refused *session.OperationError
	err := session.Check(ops, []ovsdb.OperationResult{{}, {Error: "referential integrity violation"}})
	if !errors.As(err, &refused) || refused.Index != 1 || refused.Operation.Op != "" {
		t.Errorf("a refused commit: %v", err)
	}
	if session.Check(ops, nil) == nil || session.Check(ops, []ovsdb.OperationResult{{}}) != nil {
		t.Error("the number of results is not looked at")
	}
}
