package link

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	"weft.dev/weft/internal/reconcile"
)

// setOrder is the order in which kinds are set; they are deleted in reverse order.
//
//nolint:gochecknoglobals // a constant table
var setOrder = []Kind{KindVeth, KindBridge, KindDevice, KindBridgePort, KindAddress, KindNeighbour, KindRoute, KindRule}

// step is one item to be set or deleted.
type step struct {
	item   Item
	name   string // the item's key as text
	remove bool
	before Item // the item when the commit began; nil if there was none
	// found is the former state of a device that was not managed before; its Owner is the whole alias.
	found *Device
}

func (s *step) String() string {
	verb := "setting "
	if s.remove {
		verb = "deleting "
	}
	return verb + s.item.Key().String()
}

// Commit implements reconcile.Engine. It works from the change and from the result of the last Read and Commit.
//
// A change that consists only of addresses, neighbours and routes fails by key: the others are in effect, and the error is a
// *reconcile.PartialError. A change with a device, a bridge or a rule is made as a whole: when a step fails, the steps before it are undone
// in reverse order. The error is then that of the step; if undoing failed too, it is a *RollbackError.
func (e *Engine) Commit(ctx context.Context, change reconcile.Change[Key, Item]) error {
	if change.Empty() {
		return nil
	}
	for key, item := range change.Set {
		if err := validate(item); err != nil {
			return fmt.Errorf("setting %s: %w", key, err)
		}
		e.care.enter(item)
	}
	// What is not managed yet is not read: it counts as another program's.
	if e.known == nil {
		if _, err := e.Read(ctx); err != nil {
			return err
		}
	}
	for key := range change.Set {
		e.care.take(key)
	}
	e.care.changePorts(change)
	before, whole := e.known, !onlyEntries(change)
	steps := plannedSteps(change, before)
	failed := map[Key]error{}
	for done := 0; done < len(steps); {
		count, errs := e.performSome(ctx, steps[done:])
		done += count
		for s, err := range errs {
			err = fmt.Errorf("%s: %w", s, err)
			if whole {
				// All this may be undone because the caller's context ended, so its end is ignored here.
				return e.undo(context.WithoutCancel(ctx), steps[:done], before, err)
			}
			failed[s.item.Key()] = err
		}
	}
	e.learn(change, failed)
	if len(failed) > 0 {
		return &reconcile.PartialError[Key]{Failed: failed}
	}
	return nil
}

// onlyEntries reports whether each step of a change is a single request.
func onlyEntries(change reconcile.Change[Key, Item]) bool {
	for _, items := range []map[Key]Item{change.Set, change.Delete} {
		for key := range items {
			if key.Kind != KindAddress && key.Kind != KindNeighbour && key.Kind != KindRoute {
				return false
			}
		}
	}
	return true
}

// learn records what a commit has done.
func (e *Engine) learn(change reconcile.Change[Key, Item], failed map[Key]error) {
	for key := range change.Delete {
		if failed[key] == nil {
			e.care.release(key)
			delete(e.known, key)
			e.care.noteNeighbour(key, false)
		}
	}
	for key, item := range change.Set {
		if failed[key] == nil {
			e.known[key] = item
			e.care.noteNeighbour(key, true)
		}
	}
}

// performSome runs steps of one namespace, which are either all entries or all others, and returns how many it has tried. With others it
// stops at the first failure.
func (e *Engine) performSome(ctx context.Context, steps []*step) (int, map[*step]error) {
	errs := map[*step]error{}
	if err := ctx.Err(); err != nil {
		for _, s := range steps {
			errs[s] = err
		}
		return len(steps), errs
	}
	first := steps[0]
	count := 1
	for count < len(steps) && steps[count].item.Key().Netns == first.item.Key().Netns && steps[count].pipelined() == first.pipelined() {
		count++
	}
	run, tried := steps[:count], 0
	err := e.in(first.item.Key().Netns, func(in *session) error {
		if first.pipelined() {
			tried = count
			return in.commitEntries(run, errs)
		}
		tried = in.performEach(run, errs)
		return nil
	})
	if err != nil { // of the namespace or the socket
		for _, s := range run {
			errs[s] = err
		}
		tried = count
	}
	for s, err := range errs {
		if err == nil || s.forgives(err) {
			delete(errs, s)
		}
	}
	return tried, errs
}

// forgives reports whether a failed step counts as done: what is to be deleted was removed with its device or namespace.
func (s *step) forgives(err error) bool {
	return s.remove && (errors.Is(err, ErrNoNamespace) || errors.Is(err, ErrNoDevice))
}

// plannedSteps orders a change: additions by kind, then removals in reverse order of kinds; within a kind by key.
func plannedSteps(change reconcile.Change[Key, Item], before map[Key]Item) []*step {
	var steps []*step
	add := func(items map[Key]Item, kind Kind, remove bool) {
		from := len(steps)
		for key, item := range items {
			if key.Kind == kind {
				steps = append(steps, &step{item: item, name: key.String(), remove: remove, before: before[key]})
			}
		}
		slices.SortFunc(steps[from:], func(a, b *step) int {
			if c := cmp.Compare(rank(a.item), rank(b.item)); c != 0 {
				return c
			}
			return strings.Compare(a.name, b.name)
		})
		if remove {
			slices.Reverse(steps[from:])
		}
	}
	for _, kind := range setOrder {
		add(change.Set, kind, false)
	}
	for _, kind := range slices.Backward(setOrder) {
		add(change.Delete, kind, true)
	}
	return steps
}

// rank orders items of one kind: a route through a gateway needs the route that reaches the gateway.
func rank(item Item) int {
	if route, ok := item.(*Route); ok && route.Gateway.IsValid() && !route.OnLink {
		return 1
	}
	return 0
}

// undo reverts steps, the last first. The last one failed, perhaps partly done.
func (e *Engine) undo(ctx context.Context, steps []*step, before map[Key]Item, cause error) error {
	var failures []error
	defer func() { e.known = nil }() // the next commit reads the result
	for _, s := range slices.Backward(steps) {
		back := &step{item: s.before, before: s.item}
		switch {
		case s.before != nil:
		case s.remove:
			continue
		case s.found != nil:
			back.item = s.found
		default:
			back = &step{item: s.item, remove: true, before: s.item}
		}
		if err := e.perform(back); err != nil && !errors.Is(err, ErrNoDevice) && !errors.Is(err, ErrNoNamespace) {
			failures = append(failures, fmt.Errorf("undoing %s: %w", s, err))
		}
	}
	// Also restore what the kernel removed by itself, such as the routes of a device that was down for a moment.
	if now, err := e.Read(ctx); err != nil {
		failures = append(failures, err)
	} else {
		lost := reconcile.Change[Key, Item]{Set: reconcile.Diff(before, now).Set}
		for _, s := range plannedSteps(lost, now) {
			if err := e.perform(s); err != nil && !errors.Is(err, ErrNoDevice) && !errors.Is(err, ErrNoNamespace) {
				failures = append(failures, fmt.Errorf("restoring %s: %w", s.item.Key(), err))
			}
		}
	}
	if len(failures) > 0 {
		return &RollbackError{Cause: cause, Failures: failures}
	}
	return cause
}

// perform runs one step. Deleting what does not exist, or in a namespace that does not exist, succeeds.
func (e *Engine) perform(s *step) error {
	err := e.in(s.item.Key().Netns, func(in *session) error { return in.perform(s) })
	if s.forgives(err) {
		return nil
	}
	return err
}

// performEach runs steps one after the other until one fails, and returns how many it tried.
func (s *session) performEach(steps []*step, errs map[*step]error) int {
	for i, what := range steps {
		if errs[what] = s.perform(what); errs[what] != nil {
			return i + 1
		}
	}
	return len(steps)
}

// perform runs one step.
func (s *session) perform(what *step) error {
	switch item := what.item.(type) {
	case *Veth:
		return s.commitVeth(item, what)
	case *Bridge:
		return s.commitBridge(item, what)
	case *Device:
		return s.commitDevice(item, what)
	case *BridgePort:
		return s.commitBridgePort(item, what)
	case *Address:
		return s.commitAddress(item, what.remove)
	case *Neighbour, *Route:
		errs := map[*step]error{}
		return errors.Join(s.commitEntries([]*step{what}, errs), errs[what])
	case *Rule:
		return s.commitRule(item, what)
	default:
		return fmt.Errorf("unknown item %T", what.item)
	}
}

func validate(item Item) error {
	switch item := item.(type) {
	case *Veth:
		return errors.Join(ValidateName(item.Name), ValidateName(item.PeerName))
	case *Bridge:
		return ValidateName(item.Name)
	case *BridgePort:
		return errors.Join(ValidateName(item.Bridge), ValidateName(item.Device))
	case *Device:
		if len(item.Owner) > ownerMax {
			return fmt.Errorf("owner is longer than %d bytes", ownerMax)
		}
		return ValidateName(item.Name)
	case *Address:
		return item.validate()
	case *Neighbour:
		if !item.Address.IsValid() || len(item.MAC) == 0 {
			return fmt.Errorf("address %s or MAC %q is missing", item.Address, item.MAC)
		}
		return ValidateName(item.Device)
	case *Route:
		if !item.Blackhole {
			if err := ValidateName(item.Device); err != nil {
				return err
			}
		}
		return item.validate()
	case *Rule:
		if item.Priority <= 0 {
			return fmt.Errorf("priority %d is not above 0", item.Priority)
		}
	}
	return nil
}

// find returns a link of the session's namespace by its name, or ErrNoDevice.
func (s *session) find(name string) (netlink.Link, error) {
	answers, err := s.conn.do(getLink(name))
	if err != nil {
		return nil, err
	}
	return answers[0].device(name)
}

// device returns the requested link, or ErrNoDevice.
func (a *answer) device(name string) (netlink.Link, error) {
	if errors.Is(a.err, unix.ENODEV) {
		return nil, fmt.Errorf("%s: %w", name, ErrNoDevice)
	}
	if a.err != nil {
		return nil, fmt.Errorf("looking at %s: %w", name, a.err)
	}
	return a.link, nil
}

// one makes one request and ignores the given errors.
func (s *session) one(request *nl.NetlinkRequest, forgiven ...error) error {
	answers, err := s.conn.do(request)
	if err != nil {
		return err
	}
	for _, f := range forgiven {
		if errors.Is(answers[0].err, f) {
			return nil
		}
	}
	return answers[0].err
}

func (s *session) commitVeth(pair *Veth, what *step) error {
	link, err := s.find(pair.Name)
	if err != nil && !errors.Is(err, ErrNoDevice) {
		return err
	}
	if link != nil {
		ours := strings.HasPrefix(link.Attrs().Alias, AliasPrefix) || what.before != nil
		if link.Type() != "veth" || !ours {
			return fmt.Errorf("%s (%s, alias %q): %w", pair.Name, link.Type(), link.Attrs().Alias, ErrForeign)
		}
		if !what.remove && pair.Equal(s.veth(link)) {
			return nil // created before a restart
		}
		if err := s.one(deleteLink(link.Attrs().Index), unix.ENODEV); err != nil {
			return err
		}
	}
	if what.remove {
		return nil
	}
	where := s.engine.home
	if pair.PeerNetns != "" {
		if where, err = openNamespace(pair.PeerNetns); err != nil {
			return err
		}
		defer where.close()
	}
	near := linkEnd{name: pair.Name, netns: -1}
	far := linkEnd{name: pair.PeerName, netns: int(where.file.Fd())}
	if err := s.one(newVeth(near, far)); err != nil {
		return err
	}
	if link, err = s.find(pair.Name); err != nil {
		return err
	}
	return s.one(setLink(link.Attrs().Index, aliasAttr(AliasPrefix+pair.Owner)))
}

// commitDevice configures a device in an order in which it does not work before all of it is correct. Removal removes its addresses and its
// alias.
func (s *session) commitDevice(want *Device, what *step) error {
	link, err := s.find(want.Name)
	if err != nil {
		return err
	}
	have, err := readDevice(s.handle, link)
	if err != nil {
		return err
	}
	index := link.Attrs().Index
	if what.remove {
		return s.abandon(index, have)
	}
	if what.before == nil {
		what.found = have.restriction(want, link.Attrs().Alias)
	}
	if have.Up && !want.Up {
		if err := s.one(setState(index, false)); err != nil {
			return fmt.Errorf("setting it down: %w", err)
		}
		have.Up = false
	}
	if err := s.attributes(index, want, have); err != nil {
		return err
	}
	if err := writeSysctls(want.Name, want.Sysctls); err != nil {
		return err
	}
	if !want.TxOffload.matches(have.TxOffload) {
		if err := setTxOffload(want.Name, want.TxOffload); err != nil {
			return err
		}
	}
	if err := s.addresses(index, want, have); err != nil {
		return err
	}
	if want.Up && !have.Up {
		if err := s.one(setState(index, true)); err != nil {
			return fmt.Errorf("setting it up: %w", err)
		}
	}
	return nil
}

func (d *Device) alias() string {
	if d.wholeAlias {
		return d.Owner
	}
	return AliasPrefix + d.Owner
}

// restriction returns what restores d after other was programmed over it: the fields that other sets, with d's values.
func (d *Device) restriction(other *Device, alias string) *Device {
	back := *d
	back.Netns, back.Owner, back.wholeAlias = other.Netns, alias, true
	if other.TxOffload == Leave {
		back.TxOffload = Leave
	}
	for _, entry := range sysctlTable {
		if *entry.get(&other.Sysctls) == Leave {
			*entry.get(&back.Sysctls) = Leave
		}
	}
	return &back
}

func (s *session) attributes(index int, want, have *Device) error {
	var list plan
	if want.Group != have.Group {
		list.add("setting its group", setLink(index, groupAttr(want.Group)))
	}
	list.add("setting its alias", setLink(index, aliasAttr(want.alias())))
	if want.MTU != 0 && want.MTU != have.MTU {
		list.add("setting its mtu", setLink(index, mtuAttr(want.MTU)))
	}
	if len(want.MAC) != 0 && !bytes.Equal(want.MAC, have.MAC) {
		list.add("setting its MAC", setLink(index, macAttr(want.MAC)))
	}
	if want.TxQLen != 0 && want.TxQLen != have.TxQLen {
		list.add("setting its txqueuelen", setLink(index, nl.NewRtAttr(unix.IFLA_TXQLEN, nl.Uint32Attr(uint32(want.TxQLen)))))
	}
	return list.run(s.conn)
}

// addresses adds missing addresses before it removes extra ones. An address that has to get or lose its prefix route is removed and added
// again: nothing else changes that.
func (s *session) addresses(index int, want, have *Device) error {
	var list plan
	remade := want.NoPrefixRoute != have.NoPrefixRoute
	for _, address := range want.Addresses {
		present := slices.Contains(have.Addresses, address)
		if present && remade {
			list.add("removing address "+address.String(), deleteAddress(index, address))
		}
		if !present || remade {
			list.add("adding address "+address.String(), setAddress(index, address, want.NoPrefixRoute))
		}
	}
	for _, address := range have.Addresses {
		if !slices.Contains(want.Addresses, address) {
			list.addUnless(unix.EADDRNOTAVAIL, "removing address "+address.String(), deleteAddress(index, address))
		}
	}
	return list.run(s.conn)
}

// abandon removes the device from the managed ones.
func (s *session) abandon(index int, have *Device) error {
	var list plan
	for _, address := range have.Addresses {
		list.addUnless(unix.EADDRNOTAVAIL, "removing address "+address.String(), deleteAddress(index, address))
	}
	list.add("removing its alias", setLink(index, aliasAttr("")))
	return list.run(s.conn)
}

// takeRoute handles a route that exists and is not managed. It replaces the kernel's own route for an address's prefix, and a route that an
// interrupted commit has left; any other route is ErrForeign.
func (s *session) takeRoute(route *Route, index int) error {
	filter := &netlink.Route{Table: route.normalised().Table}
	routes, err := dump(func() ([]netlink.Route, error) {
		return s.handle.RouteListFiltered(family(route.Dst.Addr()), filter, netlink.RT_FILTER_TABLE)
	})
	if err != nil {
		return fmt.Errorf("listing routes: %w", err)
	}
	for i := range routes {
		have := fromKernelRoute(&routes[i], nil)
		if have == nil || have.Key().Name != route.Key().Name {
			continue
		}
		if protocol := routes[i].Protocol; protocol != unix.RTPROT_KERNEL && protocol != Protocol {
			return fmt.Errorf("a route of protocol %s: %w", protocol, ErrForeign)
		}
	}
	return s.one(setRoute(*route, index))
}

func (s *session) commitRule(item *Rule, what *step) error {
	if !what.remove {
		err := s.handle.RuleAdd(item.kernel())
		if err != nil && !errors.Is(err, unix.EEXIST) {
			return err
		}
	}
	old, ok := what.before.(*Rule)
	if what.remove {
		old, ok = item, true
	}
	if !ok || !what.remove && old.Equal(item) {
		return nil
	}
	if err := s.handle.RuleDel(old.kernel()); err != nil && !errors.Is(err, unix.ENOENT) {
		return err
	}
	return nil
}

// kernel returns the rule as a value of the netlink library.
func (r *Rule) kernel() *netlink.Rule {
	rule := netlink.NewRule()
	rule.Priority, rule.Table, rule.Protocol, rule.IifName = r.Priority, r.table(), Protocol, r.InDevice
	rule.Family = netlink.FAMILY_V4
	if r.family6() {
		rule.Family = netlink.FAMILY_V6
	}
	if r.Source.IsValid() {
		rule.Src = toIPNet(r.Source)
	}
	if r.Destination.IsValid() {
		rule.Dst = toIPNet(r.Destination)
	}
	if r.Mask != 0 {
		mask := r.Mask
		rule.Mark, rule.Mask = r.Mark, &mask
	}
	return rule
}
