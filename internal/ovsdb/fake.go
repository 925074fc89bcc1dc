package ovsdb

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"

	"weft.dev/weft/internal/ovsdb/confdb"
	"weft.dev/weft/internal/reconcile"
)

// Fake is an engine with a switch in memory. It behaves like [Engine], and passes the same tests: ownership, validation, port numbers,
// rows that fail alone, events. The zero value is not usable; use [NewFake].
type Fake struct {
	mu           sync.Mutex
	ownBridges   []string
	rows         map[Key]*fakeRow
	refused      map[string]string
	datapath     Datapath
	transactions int
	events       chan Event
	closed       bool
}

var _ reconcile.Engine[Key, Row] = (*Fake)(nil)

// fakeEvents is the number of events that wait for a receiver. Further events are dropped, as a test that receives none needs none.
const fakeEvents = 256

type fakeRow struct {
	row    Row
	ofport int // 0: none
}

// NewFake returns a switch without bridges. Its userspace datapath works; its kernel has no datapath.
func NewFake(ownBridges ...string) *Fake {
	return &Fake{
		ownBridges: ownBridges,
		rows:       map[Key]*fakeRow{},
		refused:    map[string]string{},
		datapath:   Datapath{Types: []string{DatapathNetdev, DatapathSystem}},
		events:     make(chan Event, fakeEvents),
	}
}

// Refuse makes the switch fail to add the port or bridge of that name, with the error words. An existing one fails now, like a port whose
// link was removed. Empty words end the failure.
func (f *Fake) Refuse(name, words string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.refused[name] = words
	if words == "" {
		delete(f.refused, name)
	}
	key := PortKey(name)
	if r, ok := f.rows[key]; ok {
		f.number(key, r)
		f.drift(key)
	}
}

// Hand changes rows as another client of the database does. It does not add the owner's mark. It sends only an EventDrift, for rows that
// are Weft's.
func (f *Fake) Hand(change Change) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, key := range sortedKeys(change.Delete) {
		mine := f.owns(key)
		f.remove(key)
		if mine {
			f.drift(key)
		}
	}
	for _, key := range sortedKeys(change.Set) {
		r := &fakeRow{row: cloneRow(change.Set[key])}
		if old, ok := f.rows[key]; ok {
			r.ofport = old.ofport
		}
		f.rows[key] = r
		f.number(key, r)
		if f.owns(key) {
			f.drift(key)
		}
	}
}

// Restart reports a restart of the switch. Its rows stay.
func (f *Fake) Restart() { f.post(Event{Kind: EventSwitchRestarted}) }

// Transactions returns the number of transactions so far.
func (f *Fake) Transactions() int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.transactions
}

// Close closes the channel of events. It may be called more than once.
func (f *Fake) Close() {
	f.mu.Lock()
	defer f.mu.Unlock()
	if !f.closed {
		f.closed = true
		close(f.events)
	}
}

// Events works like Engine.Events.
func (f *Fake) Events() <-chan Event { return f.events }

// Datapath works like Engine.Datapath.
func (f *Fake) Datapath(ctx context.Context) (Datapath, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.datapath, f.ready(ctx)
}

// OFPort works like Engine.OFPort.
func (f *Fake) OFPort(ctx context.Context, name string) (uint32, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if err := f.ready(ctx); err != nil {
		return 0, err
	}
	if _, ok := f.rows[BridgeKey(name)]; ok {
		return confdb.LocalPort, nil
	}
	r, ok := f.rows[PortKey(name)]
	switch {
	case !ok:
		return 0, fmt.Errorf("port number of %.32q: %w", name, ErrNotFound)
	case r.ofport == 0:
		return 0, fmt.Errorf("port number of %.32q: %w", name,
			&PortError{Key: PortKey(name), Reason: f.failure(PortKey(name))})
	}
	return uint32(r.ofport), nil
}

// Read implements reconcile.Engine.
func (f *Fake) Read(ctx context.Context) (map[Key]Row, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if err := f.ready(ctx); err != nil {
		return nil, err
	}
	rows := map[Key]Row{}
	for key, r := range f.rows {
		if f.owns(key) {
			rows[key] = present(r.row, f.failure(key))
		}
	}
	return rows, nil
}

// present returns a copy of the row as Read returns it.
func present(r Row, failure string) Row {
	row := cloneRow(r)
	switch v := row.(type) {
	case *Bridge:
		v.Protocols, v.Failure = sortedSet(v.Protocols), failure
	case *Port:
		v.Failure = failure
	}
	return row
}

// Commit implements reconcile.Engine; see Engine.Commit.
func (f *Fake) Commit(ctx context.Context, change Change) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if err := f.ready(ctx); err != nil {
		return err
	}
	wrote := false
	for _, key := range sortedKeys(change.Delete) {
		if f.owns(key) {
			f.remove(key)
			wrote = true
		}
	}
	var created []Key
	failed := map[Key]*PortError{}
	for _, key := range sortedKeys(change.Set) {
		made, changed, err := f.set(key, change.Set[key], change)
		wrote = wrote || changed
		switch {
		case err != nil:
			failed[key] = err
		case made:
			created = append(created, key)
		}
	}
	f.judge(change, failed)
	for _, key := range created {
		if failed[key] != nil {
			f.remove(key)
		}
	}
	if wrote {
		f.transactions++
	}
	var errs []error
	for _, key := range slices.SortedFunc(maps.Keys(failed), compareKeys) {
		errs = append(errs, failed[key])
	}
	return partial(errors.Join(errs...))
}

// judge records the rows of the change that the switch cannot bring into effect.
func (f *Fake) judge(change Change, failed map[Key]*PortError) {
	for key := range change.Set {
		if failed[key] != nil {
			continue
		}
		if words := f.failure(key); words != "" {
			failed[key] = &PortError{Key: key, Reason: words}
		}
	}
}

// set writes one row. made reports whether the row is new, changed whether it was not as desired.
func (f *Fake) set(key Key, row Row, change Change) (made, changed bool, failed *PortError) {
	if err := checkRow(key, row); err != nil {
		return false, false, &PortError{Key: key, Err: err}
	}
	old, there := f.rows[key]
	if err := f.obstacle(key, row, change); err != nil {
		return false, false, err
	}
	if there && present(old.row, "").Equal(row) {
		return false, false, nil
	}
	r := &fakeRow{row: marked(row)}
	if there && sameBridge(old.row, row) {
		r.ofport = old.ofport
	}
	f.rows[key] = r
	f.number(key, r)
	return !there, true, nil
}

// obstacle returns why the row cannot be written now.
func (f *Fake) obstacle(key Key, row Row, change Change) *PortError {
	if _, there := f.rows[key]; there && !f.owns(key) {
		return &PortError{Key: key, Err: ErrNotOwned}
	}
	port, ok := row.(*Port)
	if !ok {
		if _, taken := f.rows[PortKey(key.Name)]; taken {
			return &PortError{Key: key, Err: ErrNotOwned, Reason: "its name is that of port " + key.Name}
		}
		return nil
	}
	if _, taken := f.rows[BridgeKey(key.Name)]; taken {
		return &PortError{Key: key, Err: ErrNotOwned}
	}
	_, there := f.rows[BridgeKey(port.Bridge)]
	_, going := change.Delete[BridgeKey(port.Bridge)]
	if !there || going {
		return &PortError{Key: key, Err: ErrNotFound, Reason: "bridge " + port.Bridge}
	}
	return nil
}

// number gives the port a number as the switch does: the requested number if it is free, else the lowest free one.
func (f *Fake) number(key Key, r *fakeRow) {
	port, ok := r.row.(*Port)
	if !ok {
		return
	}
	if f.refused[key.Name] != "" {
		r.ofport = 0
		return
	}
	used := map[int]bool{}
	for other, o := range f.rows {
		if p, ok := o.row.(*Port); ok && other != key && p.Bridge == port.Bridge {
			used[o.ofport] = true
		}
	}
	switch want := int(port.OFPort); {
	case want != 0 && !used[want]:
		r.ofport = want
	case r.ofport != 0 && !used[r.ofport]:
	default:
		for r.ofport = 1; used[r.ofport]; r.ofport++ {
		}
	}
}

// failure returns why the row is not in effect.
func (f *Fake) failure(key Key) string {
	r, ok := f.rows[key]
	if !ok {
		return "its bridge is not in effect"
	}
	if words := f.refused[key.Name]; words != "" {
		return words
	}
	switch row := r.row.(type) {
	case *Bridge:
		if want := row.DatapathType; want != "" && !f.datapath.Supports(want) {
			return fmt.Sprintf("the switch did not make the bridge with datapath_type=%q", want)
		}
	case *Port:
		if on := f.failure(BridgeKey(row.Bridge)); on != "" {
			return fmt.Sprintf("bridge %s: %s", row.Bridge, on)
		}
		if row.OFPort != 0 && r.ofport != int(row.OFPort) {
			return fmt.Sprintf("the switch gave it port number %d instead of %d", r.ofport, row.OFPort)
		}
	}
	return ""
}

// owns reports whether the row exists and is Weft's.
func (f *Fake) owns(key Key) bool {
	r, ok := f.rows[key]
	if !ok {
		return false
	}
	switch row := r.row.(type) {
	case *Bridge:
		return confdb.Claim{}.Marked(row.ExternalIDs) || slices.Contains(f.ownBridges, row.Name)
	case *Port:
		return confdb.Claim{}.Marked(row.ExternalIDs) || f.owns(BridgeKey(row.Bridge))
	}
	return false
}

// remove deletes the row, and for a bridge also its ports.
func (f *Fake) remove(key Key) {
	delete(f.rows, key)
	if key.Kind != KindBridge {
		return
	}
	maps.DeleteFunc(f.rows, func(_ Key, r *fakeRow) bool {
		port, ok := r.row.(*Port)
		return ok && port.Bridge == key.Name
	})
}

// ready returns the error that every call fails with, if there is one.
func (f *Fake) ready(ctx context.Context) error {
	if f.closed {
		return ErrClosed
	}
	if err := ctx.Err(); err != nil {
		return fmt.Errorf("%w (%w)", ErrNotConnected, err)
	}
	return nil
}

func (f *Fake) drift(key Key) { f.send(Event{Kind: EventDrift, Keys: []Key{key}}) }

func (f *Fake) post(event Event) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.send(event)
}

func (f *Fake) send(event Event) {
	if f.closed {
		return
	}
	select {
	case f.events <- event:
	default:
	}
}

// marked returns a copy of the row with the owner's mark.
func marked(row Row) Row {
	c := cloneRow(row)
	switch v := c.(type) {
	case *Bridge:
		v.ExternalIDs, v.Failure = maps.Clone(withOwner(v.ExternalIDs)), ""
	case *Port:
		v.ExternalIDs, v.Failure = maps.Clone(withOwner(v.ExternalIDs)), ""
	}
	return c
}

// sameBridge reports whether two ports are on one bridge, so that the new one keeps the number.
func sameBridge(a, b Row) bool {
	p, ok := a.(*Port)
	q, ok2 := b.(*Port)
	return ok && ok2 && p.Bridge == q.Bridge
}

// Ports returns the numbers of all ports of a bridge by name, including foreign ports; 0 for a port that is not in effect.
func (f *Fake) Ports(bridge string) map[string]int {
	f.mu.Lock()
	defer f.mu.Unlock()
	ports := map[string]int{}
	for key, r := range f.rows {
		if p, ok := r.row.(*Port); ok && p.Bridge == bridge {
			ports[key.Name] = r.ofport
		}
	}
	return ports
}
