package marked

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

	"weft.dev/weft/internal/link"
	"weft.dev/weft/internal/link/devconf"
	"weft.dev/weft/internal/link/netns"
	"weft.dev/weft/internal/link/rtnetlink"
	"weft.dev/weft/internal/reconcile"
)

// setOrder is the order in which kinds are set; they are deleted in reverse order.
//
//nolint:gochecknoglobals // a constant table
var setOrder = []link.Kind{link.KindVeth, link.KindBridge, link.KindDevice, link.KindBridgePort, link.KindAddress, link.KindNeighbour, link.KindRoute, link.KindRule}

// step is one item to be set or deleted.
type step struct {
	item   link.Item
	name   string // the item's key as text
	remove bool
	before link.Item // the item when the commit began; nil if there was none
	// found is the former state of a device that was not managed before; its Owner is the whole alias.
	found *link.Device
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
// in reverse order. The error is then that of the step; if undoing failed too, it is a *link.RollbackError.
func (e *Engine) Commit(ctx context.Context, change reconcile.Change[link.Key, link.Item]) error {
	if change.Empty() {
		return nil
	}
	for key, item := range change.Set {
		if err := link.Validate(item); err != nil {
			return fmt.Errorf("setting %s: %w", key, err)
		}
		e.care.Enter(item)
	}
	// What is not managed yet is not read: it counts as another program's.
	if e.known == nil {
		if _, err := e.Read(ctx); err != nil {
			return err
		}
	}
	for key := range change.Set {
		e.care.Take(key)
	}
	e.care.ChangePorts(change)
	before, whole := e.known, !onlyEntries(change)
	steps := plannedSteps(change, before)
	failed := map[link.Key]error{}
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
		return &reconcile.PartialError[link.Key]{Failed: failed}
	}
	return nil
}

// onlyEntries reports whether each step of a change is a single request.
func onlyEntries(change reconcile.Change[link.Key, link.Item]) bool {
	for _, items := range []map[link.Key]link.Item{change.Set, change.Delete} {
		for key := range items {
			if key.Kind != link.KindAddress && key.Kind != link.KindNeighbour && key.Kind != link.KindRoute {
				return false
			}
		}
	}
	return true
}

// learn records what a commit has done.
func (e *Engine) learn(change reconcile.Change[link.Key, link.Item], failed map[link.Key]error) {
	for key := range change.Delete {
		if failed[key] == nil {
			e.care.Release(key)
			delete(e.known, key)
			e.care.NoteNeighbour(key, false)
		}
	}
	for key, item := range change.Set {
		if failed[key] == nil {
			e.known[key] = item
			e.care.NoteNeighbour(key, true)
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
	return s.remove && (errors.Is(err, link.ErrNoNamespace) || errors.Is(err, link.ErrNoDevice))
}

// plannedSteps orders a change: additions by kind, then removals in reverse order of kinds; within a kind by key.
func plannedSteps(change reconcile.Change[link.Key, link.Item], before map[link.Key]link.Item) []*step {
	var steps []*step
	add := func(items map[link.Key]link.Item, kind link.Kind, remove bool) {
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
func rank(item link.Item) int {
	if route, ok := item.(*link.Route); ok && route.Gateway.IsValid() && !route.OnLink {
		return 1
	}
	return 0
}

// undo reverts steps, the last first. The last one failed, perhaps partly done.
func (e *Engine) undo(ctx context.Context, steps []*step, before map[link.Key]link.Item, cause error) error {
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
		if err := e.perform(back); err != nil && !errors.Is(err, link.ErrNoDevice) && !errors.Is(err, link.ErrNoNamespace) {
			failures = append(failures, fmt.Errorf("undoing %s: %w", s, err))
		}
	}
	// Also restore what the kernel removed by itself, such as the routes of a device that was down for a moment.
	if now, err := e.Read(ctx); err != nil {
		failures = append(failures, err)
	} else {
		lost := reconcile.Change[link.Key, link.Item]{Set: reconcile.Diff(before, now).Set}
		for _, s := range plannedSteps(lost, now) {
			if err := e.perform(s); err != nil && !errors.Is(err, link.ErrNoDevice) && !errors.Is(err, link.ErrNoNamespace) {
				failures = append(failures, fmt.Errorf("restoring %s: %w", s.item.Key(), err))
			}
		}
	}
	if len(failures) > 0 {
		return &link.RollbackError{Cause: cause, Failures: failures}
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
	case *link.Veth:
		return s.commitVeth(item, what)
	case *link.Bridge:
		return s.commitBridge(item, what)
	case *link.Device:
		return s.commitDevice(item, what)
	case *link.BridgePort:
		return s.commitBridgePort(item, what)
	case *link.Address:
		return s.commitAddress(item, what.remove)
	case *link.Neighbour, *link.Route:
		errs := map[*step]error{}
		return errors.Join(s.commitEntries([]*step{what}, errs), errs[what])
	case *link.Rule:
		return s.commitRule(item, what)
	default:
		return fmt.Errorf("unknown item %T", what.item)
	}
}

// find returns a link of the session's namespace by its name, or ErrNoDevice.
func (s *session) find(name string) (netlink.Link, error) {
	answers, err := s.conn.Do(rtnetlink.GetLink(name))
	if err != nil {
		return nil, err
	}
	return answers[0].Device(name)
}

// one makes one request and ignores the given errors.
func (s *session) one(request *nl.NetlinkRequest, forgiven ...error) error {
	answers, err := s.conn.Do(request)
	if err != nil {
		return err
	}
	for _, f := range forgiven {
		if errors.Is(answers[0].Err, f) {
			return nil
		}
	}
	return answers[0].Err
}

func (s *session) commitVeth(pair *link.Veth, what *step) error {
	dev, err := s.find(pair.Name)
	if err != nil && !errors.Is(err, link.ErrNoDevice) {
		return err
	}
	if dev != nil {
		ours := strings.HasPrefix(dev.Attrs().Alias, link.AliasPrefix) || what.before != nil
		if dev.Type() != "veth" || !ours {
			return fmt.Errorf("%s (%s, alias %q): %w", pair.Name, dev.Type(), dev.Attrs().Alias, link.ErrForeign)
		}
		if !what.remove && pair.Equal(s.veth(dev)) {
			return nil // created before a restart
		}
		if err := s.one(rtnetlink.DeleteLink(dev.Attrs().Index), unix.ENODEV); err != nil {
			return err
		}
	}
	if what.remove {
		return nil
	}
	where := s.engine.home
	if pair.PeerNetns != "" {
		if where, err = netns.Open(pair.PeerNetns); err != nil {
			return err
		}
		defer where.Close()
	}
	near := rtnetlink.LinkEnd{Name: pair.Name, Netns: -1}
	far := rtnetlink.LinkEnd{Name: pair.PeerName, Netns: where.FD()}
	if err := s.one(rtnetlink.NewVeth(near, far)); err != nil {
		return err
	}
	if dev, err = s.find(pair.Name); err != nil {
		return err
	}
	return s.one(rtnetlink.SetLink(dev.Attrs().Index, rtnetlink.AliasAttr(link.AliasPrefix+pair.Owner)))
}

// commitDevice configures a device in an order in which it does not work before all of it is correct. Removal removes its addresses and its
// alias.
func (s *session) commitDevice(want *link.Device, what *step) error {
	dev, err := s.find(want.Name)
	if err != nil {
		return err
	}
	have, err := devconf.ReadDevice(s.handle, dev)
	if err != nil {
		return err
	}
	index := dev.Attrs().Index
	if what.remove {
		return s.abandon(index, have)
	}
	if what.before == nil {
		what.found = have.Restriction(want, dev.Attrs().Alias)
	}
	if have.Up && !want.Up {
		if err := s.one(rtnetlink.SetState(index, false)); err != nil {
			return fmt.Errorf("setting it down: %w", err)
		}
		have.Up = false
	}
	if err := s.attributes(index, want, have); err != nil {
		return err
	}
	if err := devconf.WriteSysctls(want.Name, want.Sysctls); err != nil {
		return err
	}
	if !want.TxOffload.Matches(have.TxOffload) {
		if err := devconf.SetTxOffload(want.Name, want.TxOffload); err != nil {
			return err
		}
	}
	if err := s.addresses(index, want, have); err != nil {
		return err
	}
	if want.Up && !have.Up {
		if err := s.one(rtnetlink.SetState(index, true)); err != nil {
			return fmt.Errorf("setting it up: %w", err)
		}
	}
	return nil
}

func (s *session) attributes(index int, want, have *link.Device) error {
	var list rtnetlink.Plan
	if want.Group != have.Group {
		list.Add("setting its group", rtnetlink.SetLink(index, rtnetlink.GroupAttr(want.Group)))
	}
	list.Add("setting its alias", rtnetlink.SetLink(index, rtnetlink.AliasAttr(want.Alias())))
	if want.MTU != 0 && want.MTU != have.MTU {
		list.Add("setting its mtu", rtnetlink.SetLink(index, rtnetlink.MTUAttr(want.MTU)))
	}
	if len(want.MAC) != 0 && !bytes.Equal(want.MAC, have.MAC) {
		list.Add("setting its MAC", rtnetlink.SetLink(index, rtnetlink.MACAttr(want.MAC)))
	}
	if want.TxQLen != 0 && want.TxQLen != have.TxQLen {
		list.Add("setting its txqueuelen", rtnetlink.SetLink(index, nl.NewRtAttr(unix.IFLA_TXQLEN, nl.Uint32Attr(uint32(want.TxQLen)))))
	}
	return list.Run(s.conn)
}

// addresses adds missing addresses before it removes extra ones. An address that has to get or lose its prefix route is removed and added
// again: nothing else changes that.
func (s *session) addresses(index int, want, have *link.Device) error {
	var list rtnetlink.Plan
	remade := want.NoPrefixRoute != have.NoPrefixRoute
	for _, address := range want.Addresses {
		present := slices.Contains(have.Addresses, address)
		if present && remade {
			list.Add("removing address "+address.String(), rtnetlink.DeleteAddress(index, address))
		}
		if !present || remade {
			list.Add("adding address "+address.String(), rtnetlink.SetAddress(index, address, want.NoPrefixRoute))
		}
	}
	for _, address := range have.Addresses {
		if !slices.Contains(want.Addresses, address) {
			list.AddUnless(unix.EADDRNOTAVAIL, "removing address "+address.String(), rtnetlink.DeleteAddress(index, address))
		}
	}
	return list.Run(s.conn)
}

// abandon removes the device from the managed ones.
func (s *session) abandon(index int, have *link.Device) error {
	var list rtnetlink.Plan
	for _, address := range have.Addresses {
		list.AddUnless(unix.EADDRNOTAVAIL, "removing address "+address.String(), rtnetlink.DeleteAddress(index, address))
	}
	list.Add("removing its alias", rtnetlink.SetLink(index, rtnetlink.AliasAttr("")))
	return list.Run(s.conn)
}

// takeRoute handles a route that exists and is not managed. It replaces the kernel's own route for an address's prefix, and a route that an
// interrupted commit has left; any other route is ErrForeign.
func (s *session) takeRoute(route *link.Route, index int) error {
	filter := &netlink.Route{Table: route.Normalised().Table}
	routes, err := rtnetlink.Dump(func() ([]netlink.Route, error) {
		return s.handle.RouteListFiltered(rtnetlink.Family(route.Dst.Addr()), filter, netlink.RT_FILTER_TABLE)
	})
	if err != nil {
		return fmt.Errorf("listing routes: %w", err)
	}
	for i := range routes {
		have := rtnetlink.FromKernelRoute(&routes[i], nil)
		if have == nil || have.Key().Name != route.Key().Name {
			continue
		}
		if protocol := routes[i].Protocol; protocol != unix.RTPROT_KERNEL && protocol != link.Protocol {
			return fmt.Errorf("a route of protocol %s: %w", protocol, link.ErrForeign)
		}
	}
	return s.one(rtnetlink.SetRoute(*route, index))
}

func (s *session) commitRule(item *link.Rule, what *step) error {
	if !what.remove {
		err := s.handle.RuleAdd(kernelRule(item))
		if err != nil && !errors.Is(err, unix.EEXIST) {
			return err
		}
	}
	old, ok := what.before.(*link.Rule)
	if what.remove {
		old, ok = item, true
	}
	if !ok || !what.remove && old.Equal(item) {
		return nil
	}
	if err := s.handle.RuleDel(kernelRule(old)); err != nil && !errors.Is(err, unix.ENOENT) {
		return err
	}
	return nil
}

// kernelRule returns a rule as a value of the netlink library.
func kernelRule(r *link.Rule) *netlink.Rule {
	rule := netlink.NewRule()
	rule.Priority, rule.Table, rule.Protocol, rule.IifName = r.Priority, r.LookupTable(), link.Protocol, r.InDevice
	rule.Family = netlink.FAMILY_V4
	if r.Family6() {
		rule.Family = netlink.FAMILY_V6
	}
	if r.Source.IsValid() {
		rule.Src = rtnetlink.ToIPNet(r.Source)
	}
	if r.Destination.IsValid() {
		rule.Dst = rtnetlink.ToIPNet(r.Destination)
	}
	if r.Mask != 0 {
		mask := r.Mask
		rule.Mark, rule.Mask = r.Mark, &mask
	}
	return rule
}
