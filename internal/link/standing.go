package link

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"
)

// Standing is a pair that is made ahead of its pod and outlives it: the host's end, which is a port of the switch, and the far
// end, of the same name, in a namespace of its own. A pod that is put upon it gets a macvlan of the far end as its interface.
// A switch that is told of a link goes over all its ports; of a pod that comes or goes this way it is told nothing.
//
// The macvlan is of mode passthru: the kernel admits one to a far end, so nothing that a former pod has kept can be on a
// pair together with the next pod's interface.
type Standing struct {
	// Name is that of both ends; it must pass ValidateName, with room for "-in" behind it.
	Name string
	// MTU of both ends in bytes; 0 is the kernel's default, 1500.
	MTU int
	// HostGroup is as in Pair.
	HostGroup uint32
	// TxOffloadOff is as in Pair, on the far end.
	TxOffloadOff bool
}

// Stands is what there is of a Standing.
type Stands struct {
	// MTU is the host end's, in bytes.
	MTU int
	// TxOffloadOff reports whether the far end finishes what it sends.
	TxOffloadOff bool
	// Idle reports whether the far end is there, no interface upon it is up, and it is not shaped.
	Idle bool
	// Gone says that the pair is gone, and something of its shape is left.
	Gone bool
}

// StandingLinks makes and lists standing pairs. *[Pods] does it in the kernel, *[FakePods] in memory. PodLinks.Delete removes
// them, and with them what is upon them.
type StandingLinks interface {
	// CreateStanding makes pairs with their far ends in the namespace at path. ErrNoNamespace and ErrNotNamespace are about
	// that. After an error none of them is there.
	CreateStanding(ctx context.Context, path string, pairs ...Standing) error
	// ListStanding returns the standing pairs that exist, by name. Without the namespace at path none is idle.
	ListStanding(ctx context.Context, path string) (map[string]Stands, error)
}

var _ StandingLinks = (*Pods)(nil)

var (
	// ErrOccupied says that an interface is upon a standing pair that should be free.
	ErrOccupied = errors.New("another interface is on the pre-plugged port")
	// ErrUnusable says that a pod cannot be put upon a standing pair, for a reason that is not the pod's.
	ErrUnusable = errors.New("the pre-plugged port is unusable")
)

// standingOwner begins the owners of standing pairs.
const standingOwner = "port/"

// StandingOwner returns the owner of a standing pair, as List has it.
func StandingOwner(name string) string { return standingOwner + name }

func standingAlias(name string) string { return PodAliasPrefix + StandingOwner(name) }

// standingBatch bounds the pairs that are made in one go, so that their answers fit the socket (batchMax).
const standingBatch = batchMax / 2

// CreateStanding implements StandingLinks.
func (p *Pods) CreateStanding(ctx context.Context, path string, pairs ...Standing) error {
	for _, pair := range pairs {
		if err := errors.Join(ValidateName(pair.Name), ValidateName(receiverName(pair.Name))); err != nil {
			return fmt.Errorf("standing pair: %w", err)
		}
	}
	if err := ctx.Err(); err != nil {
		return fmt.Errorf("standing pairs: %w", err)
	}
	far, err := openNamespace(path)
	if err != nil {
		return fmt.Errorf("standing pairs: %w", err)
	}
	defer far.close()
	for len(pairs) > 0 && err == nil {
		count := min(len(pairs), standingBatch)
		s := standing{Pods: p, far: far, pairs: pairs[:count]}
		err = onThread(p.home, s.run)
		pairs = pairs[count:]
	}
	if err != nil {
		return fmt.Errorf("standing pairs: %w", err)
	}
	return nil
}

// standing is one run of CreateStanding.
type standing struct {
	*Pods
	far   *namespace
	pairs []Standing
	hosts []netlink.Link
}

// run works on a locked thread that starts in the home namespace.
func (s *standing) run() (err error) {
	defer func() {
		if err != nil {
			err = errors.Join(err, s.undo())
		}
	}()
	if err := s.make(); err != nil {
		return err
	}
	if err := s.far.enter(); err != nil {
		return err
	}
	err = s.configureFar()
	if back := s.home.enter(); back != nil {
		return errors.Join(err, back)
	}
	if err != nil {
		return err
	}
	return s.configureHosts()
}

// make makes the pairs. Where one that was interrupted has left a link of that name it fails; Delete removes such a link.
func (s *standing) make() error {
	var requests []*nl.NetlinkRequest
	for _, pair := range s.pairs {
		near := linkEnd{name: pair.Name, mtu: standingMTU(pair.MTU), group: pair.HostGroup, netns: -1}
		if pair.TxOffloadOff {
			near.flags = unix.IFF_PROMISC // as in makePair
		}
		requests = append(requests, newVeth(near, linkEnd{name: pair.Name, mtu: near.mtu, netns: int(s.far.file.Fd())}), getLink(pair.Name))
	}
	answers, err := s.conn.do(requests...)
	if err != nil {
		return err
	}
	for i, pair := range s.pairs {
		made, seen := answers[2*i], answers[2*i+1]
		if made.err != nil {
			err = errors.Join(err, fmt.Errorf("making %s: %w", pair.Name, made.err))
			continue
		}
		if seen.err != nil {
			err = errors.Join(err, fmt.Errorf("looking at %s: %w", pair.Name, seen.err))
			continue
		}
		s.hosts = append(s.hosts, seen.link)
	}
	return err
}

func standingMTU(mtu int) int {
	if mtu == 0 {
		return defaultMTU
	}
	return mtu
}

// configureFar works in the far ends' namespace. No protocol is at work there: it has no addresses, and IPv6 is off before a
// link is up.
func (s *standing) configureFar() error {
	conn, err := dial()
	if err != nil {
		return err
	}
	defer conn.close()
	var list plan
	for _, pair := range s.pairs {
		if err := writeSysctls(pair.Name, Sysctls{DisableIPv6: On, AcceptRA: Off}); err != nil {
			return fmt.Errorf("far end: %w", err)
		}
		if pair.TxOffloadOff {
			if err := setTxOffload(pair.Name, Off); err != nil {
				return fmt.Errorf("far end: %w", err)
			}
		}
		list.add("setting the far end of "+pair.Name+" up", setUpByName(pair.Name))
	}
	if err := list.run(conn); err != nil || s.probed.Load() {
		return err
	}
	// A kernel that makes no macvlan is to say so now, and not to each pod.
	answers, err := conn.do(getLink(s.pairs[0].Name))
	if err == nil {
		err = answers[0].err
	}
	if err == nil {
		err = s.probe(conn, answers[0].link.Attrs().Index)
	}
	s.probed.Store(err == nil)
	return err
}

// configureHosts names the owners of the host ends and sets them up.
func (s *standing) configureHosts() error {
	var list plan
	for i, pair := range s.pairs {
		if err := s.turn.do(func() error { return writeSysctls(pair.Name, hostSysctls()) }); err != nil {
			return fmt.Errorf("host end: %w", err)
		}
		index := s.hosts[i].Attrs().Index
		list.add("setting the alias of "+pair.Name, setLink(index, aliasAttr(standingAlias(pair.Name))))
		list.add("setting "+pair.Name+" up", setState(index, true))
	}
	return list.run(s.conn)
}

// undo removes what this run has made.
func (s *standing) undo() error {
	indexes := make([]int, 0, len(s.hosts))
	for _, host := range s.hosts {
		indexes = append(indexes, host.Attrs().Index)
	}
	if len(indexes) == 0 {
		return nil
	}
	return s.reap(indexes)
}

// ListStanding implements StandingLinks.
func (p *Pods) ListStanding(ctx context.Context, path string) (map[string]Stands, error) {
	if err := ctx.Err(); err != nil {
		return nil, fmt.Errorf("listing standing pairs: %w", err)
	}
	links, err := listLinks(p.handle)
	if err != nil {
		return nil, err
	}
	far, err := p.farEnds(path)
	if err != nil {
		return nil, fmt.Errorf("listing standing pairs: %w", err)
	}
	found := map[string]Stands{}
	for _, link := range links {
		attrs := link.Attrs()
		if link.Type() == "veth" && attrs.Alias == standingAlias(attrs.Name) && attrs.Group != DeadGroup {
			stands := far[attrs.Name]
			stands.MTU = attrs.MTU
			found[attrs.Name] = stands
			delete(far, attrs.Name)
		}
	}
	for name, stands := range far {
		if stands.Gone {
			found[name] = stands
		}
	}
	return found, nil
}

// farEnds returns what the far ends in the namespace at path are like. A macvlan that is up makes its device promiscuous; who
// has hidden one is found out when the next is to be made.
func (p *Pods) farEnds(path string) (map[string]Stands, error) {
	far, err := openNamespace(path)
	if errors.Is(err, ErrNoNamespace) || errors.Is(err, ErrNotNamespace) {
		return nil, nil //nolint:nilnil // there are none
	}
	if err != nil {
		return nil, err
	}
	defer far.close()
	found := map[string]Stands{}
	err = onThread(p.home, func() error {
		if err := far.enter(); err != nil {
			return err
		}
		handle, err := netlink.NewHandle(unix.NETLINK_ROUTE)
		if err != nil {
			return fmt.Errorf("opening a netlink socket: %w", err)
		}
		defer handle.Close()
		links, err := listLinks(handle)
		for _, link := range links {
			if link.Type() != "veth" {
				continue
			}
			offload, err := txOffload(link.Attrs().Name)
			if err != nil {
				return err
			}
			found[link.Attrs().Name] = Stands{Idle: link.Attrs().Promisc == 0, TxOffloadOff: offload == Off}
		}
		if err != nil {
			return err
		}
		shapes, err := readShapes(handle, links)
		for name := range shapes {
			stands, there := found[name]
			stands.Idle, stands.Gone = false, !there
			found[name] = stands
		}
		return err
	})
	return found, err
}

// upon is one run of Create for a pod that is put upon a standing pair.
type upon struct {
	creation
	ports   *namespace
	farConn *conn
	far     netlink.Link
	// receiver is what shapes what the pod receives; nil if nothing does.
	receiver netlink.Link
	// noEntry is why Unplug cannot enter the pod's namespace although it may exist.
	noEntry error
}

// openUpon opens what Create, Check and Unplug need of a standing pair's namespace.
func openUpon(c creation) (*upon, error) {
	ports, err := openNamespace(c.pair.Standing)
	if err != nil {
		// In words alone: a missing namespace of standing pairs is not to be taken for the pod's.
		return nil, fmt.Errorf("%w: %s: far end in %s: %w: %s", ErrUnusable, c.pair.HostName, c.pair.Standing, ErrNoDevice, err.Error())
	}
	return &upon{creation: c, ports: ports}, nil
}

func (u *upon) close() {
	if u.farConn != nil {
		u.farConn.close()
	}
	u.ports.close()
}

// createUpon is Create for a pod that is put upon a standing pair. What it has made goes when it fails.
func (p *Pods) createUpon(ctx context.Context, c creation) (*creation, error) {
	u, err := openUpon(c)
	if err != nil {
		return nil, err
	}
	defer u.close()
	err = onThread(p.home, u.run)
	if err != nil && u.made {
		err = errors.Join(err, p.Unplug(context.WithoutCancel(ctx), c.pair, func() {}))
	}
	return &u.creation, err
}

// look enters the far ends' namespace and looks at both ends. It ends in the home namespace.
func (u *upon) look() error {
	err := u.lookAtHost()
	if err == nil {
		err = u.ports.enter()
	}
	if err != nil {
		return err
	}
	var answers []answer
	if u.farConn, err = dial(); err == nil {
		u.farConn.turn = &u.turn
		answers, err = u.farConn.do(getLink(u.pair.HostName), getLink(receiverName(u.pair.HostName)))
	}
	if err := errors.Join(err, u.home.enter()); err != nil {
		return err
	}
	if err := answers[0].err; err != nil && !errors.Is(err, unix.ENODEV) {
		return fmt.Errorf("looking at far end %s: %w", u.pair.HostName, err)
	}
	u.far, u.receiver = answers[0].link, answers[1].link
	return nil
}

// complete returns an error unless both ends are there and Weft's.
func (u *upon) complete() error {
	switch {
	case u.host == nil:
		return fmt.Errorf("%w: host end %s: %w", ErrUnusable, u.pair.HostName, ErrNoDevice)
	case u.far == nil:
		return fmt.Errorf("%w: far end of %s: %w", ErrUnusable, u.pair.HostName, ErrNoDevice)
	case u.host.Type() != "veth" || u.host.Attrs().Alias != standingAlias(u.pair.HostName):
		return fmt.Errorf("%w: %s (%s, alias %q) on the host: %w", ErrUnusable, u.pair.HostName, u.host.Type(), u.host.Attrs().Alias, ErrForeign)
	}
	return nil
}

// run works on a locked thread that starts in the home namespace.
func (u *upon) run() error {
	err := u.look()
	if err == nil {
		err = u.complete()
	}
	if err == nil {
		err = u.shape()
	}
	if err != nil {
		return err
	}
	if err := u.pod.enter(); err != nil {
		return err
	}
	if u.podConn, err = dial(); err != nil {
		return err
	}
	defer u.podConn.close()
	u.podConn.turn = &u.turn
	if err := u.podDefaults(u.put); err != nil {
		return err
	}
	if err := u.configurePod(); err != nil {
		return fmt.Errorf("pod end %s: %w", u.pair.PodName, err)
	}
	return nil
}

// put makes the pod's interface, or finds the one that an earlier run has made.
func (u *upon) put() error {
	index := u.far.Attrs().Index
	answers, err := u.farConn.do(newPassthru(index, linkEnd{name: u.pair.PodName, mtu: u.pair.mtu(), netns: int(u.pod.file.Fd())}))
	if err != nil {
		return err
	}
	if made := answers[0].err; made != nil {
		return u.adoptUpon(made)
	}
	u.made = true
	var list plan
	if u.pair.Shape == (Shape{}) {
		u.farEnd().unshape(&list) // nothing, unless an agent that ended left something
	}
	if len(u.pair.PodMAC) != 0 { // a macvlan of this mode has its device's address
		list.add("setting the far end's MAC", setLink(index, macAttr(u.pair.PodMAC)))
	}
	return list.run(u.farConn)
}

// adoptUpon finds the pod's interface when it cannot be made, which is why.
func (u *upon) adoptUpon(why error) error {
	answers, err := u.podConn.do(getLink(u.pair.PodName))
	if err != nil {
		return err
	}
	switch there := answers[0].link; {
	case isUpon(there, u.far):
		return nil
	case there != nil:
		return fmt.Errorf("%s (%s) in the pod: %w", u.pair.PodName, there.Type(), ErrForeign)
	case errors.Is(why, unix.EINVAL) || errors.Is(why, unix.EBUSY):
		return fmt.Errorf("%w: %s: %w (%w)", ErrUnusable, u.pair.HostName, ErrOccupied, why)
	default:
		return fmt.Errorf("%w: %s: creating a macvlan on it: %w", ErrUnusable, u.pair.HostName, why)
	}
}

// isUpon reports whether a link is a macvlan of a device of another namespace with that index.
func isUpon(link, far netlink.Link) bool {
	return link != nil && far != nil && link.Type() == "macvlan" && link.Attrs().ParentIndex == far.Attrs().Index
}

// newPassthru makes a macvlan of a device of the socket's namespace.
func newPassthru(device int, end linkEnd) *nl.NetlinkRequest {
	request := nl.NewNetlinkRequest(unix.RTM_NEWLINK, unix.NLM_F_CREATE|unix.NLM_F_EXCL)
	request.AddData(nl.NewIfInfomsg(unix.AF_UNSPEC))
	end.attributes(func(attr *nl.RtAttr) { request.AddData(attr) })
	request.AddData(nl.NewRtAttr(unix.IFLA_LINK, nl.Uint32Attr(uint32(device)))) //nolint:gosec // an interface's index
	info := nl.NewRtAttr(unix.IFLA_LINKINFO, nil)
	info.AddRtAttr(nl.IFLA_INFO_KIND, nl.NonZeroTerminated("macvlan"))
	info.AddRtAttr(nl.IFLA_INFO_DATA, nil).AddRtAttr(nl.IFLA_MACVLAN_MODE, nl.Uint32Attr(nl.MACVLAN_MODE_PASSTHRU))
	request.AddData(info)
	return request
}

// errNoEntry says that an open namespace cannot be entered.
var errNoEntry = errors.New("no entry")

// unplugAtOnce is how many interfaces are removed side by side, each by a thread of its own.
const unplugAtOnce = 16

// Unplug implements PodLinks. It waits some 20 ms for the kernel, and beside others.
func (p *Pods) Unplug(ctx context.Context, pair Pair, began func()) error {
	began = sync.OnceFunc(began)
	defer began()
	if err := errors.Join(pair.validate(), ctx.Err()); err != nil {
		return fmt.Errorf("pod link %s: %w", pair.HostName, err)
	}
	u, err := openUpon(creation{Pods: p, pair: pair})
	if err != nil {
		return err
	}
	defer u.close()
	// Without the pod's namespace the interface is gone as well. In one that cannot be entered it may be left: the far end shows it.
	if u.pod, u.noEntry = openNamespace(pair.Netns); u.noEntry == nil {
		defer u.pod.close()
	} else if errors.Is(u.noEntry, ErrNoNamespace) || errors.Is(u.noEntry, ErrNotNamespace) {
		u.noEntry = nil
	}
	began()
	select {
	case p.unplugging <- struct{}{}:
		defer func() { <-p.unplugging }()
	case <-ctx.Done():
		return fmt.Errorf("pod link %s: %w", pair.HostName, ctx.Err())
	}
	if err := onThread(p.home, u.remove); err != nil {
		return fmt.Errorf("pod link %s, %s in %s: %w", pair.HostName, pair.PodName, pair.Netns, err)
	}
	return nil
}

// remove works on a locked thread that starts in the home namespace. Without the pod's namespace its interface is gone as
// well.
func (u *upon) remove() error {
	err := u.look()
	if err == nil {
		err = u.complete()
	}
	if err != nil {
		return err
	}
	removed := false
	if u.pod != nil {
		if removed, err = u.removeInPod(); errors.Is(err, errNoEntry) {
			u.noEntry = err
		} else if err != nil {
			return err
		}
	}
	if !removed { // It was gone before, or is out of reach: under another name, in another namespace, in one that cannot be entered.
		if err := u.probe(u.farConn, u.far.Attrs().Index); err != nil {
			return errors.Join(err, u.noEntry)
		}
	}
	var rest plan
	u.farEnd().unshape(&rest)
	return rest.run(u.farConn)
}

// probeName is that of the macvlan by which is found out whether a far end is free.
const probeName = "weft-probe"

// probe returns ErrOccupied unless a far end is free: the kernel admits one interface to it. The socket is of its namespace.
func (p *Pods) probe(conn *conn, index int) error {
	p.probing.Lock() // one has the name at a time
	defer p.probing.Unlock()
	answers, err := conn.do(newPassthru(index, linkEnd{name: probeName, netns: -1}), getLink(probeName))
	if err != nil {
		return err
	}
	if made := answers[0].err; errors.Is(made, unix.EINVAL) || errors.Is(made, unix.EBUSY) {
		return fmt.Errorf("%w: %w", ErrOccupied, made)
	} else if made != nil && !errors.Is(made, unix.EEXIST) {
		return fmt.Errorf("making a macvlan: %w", made)
	}
	if answers[1].err != nil {
		return unlessGone(answers[1].err)
	}
	removed, err := conn.do(deleteLink(answers[1].link.Attrs().Index))
	if err != nil {
		return err
	}
	if errors.Is(answers[0].err, unix.EEXIST) { // of a probe that was interrupted
		return fmt.Errorf("%w: by a probe that was interrupted", ErrOccupied)
	}
	return unlessGone(removed[0].err)
}

// removeInPod removes the interface and stays in the pod's namespace.
func (u *upon) removeInPod() (removed bool, err error) {
	if err := u.pod.enter(); err != nil {
		return false, fmt.Errorf("%w: %w", errNoEntry, err)
	}
	conn, err := dial()
	if err != nil {
		return false, err
	}
	defer conn.close()
	answers, err := conn.do(getLink(u.pair.PodName))
	if err != nil {
		return false, err
	}
	if !isUpon(answers[0].link, u.far) {
		return false, unlessGone(answers[0].err)
	}
	answers, err = conn.do(deleteLink(answers[0].link.Attrs().Index))
	if err != nil {
		return false, err
	}
	return answers[0].err == nil, unlessGone(answers[0].err)
}

// check is creation.check of a pod upon a standing pair.
func (u *upon) check() error {
	if err := u.look(); err != nil {
		return err
	}
	var err error
	if u.peer, err = u.lookInPod(); err != nil {
		return err
	}
	shape, err := u.compareShape()
	if err != nil {
		return err
	}
	return errors.Join(u.compare(func() bool { return isUpon(u.peer, u.far) }, "is not upon "), shape)
}

// IsStanding reports whether an owner is a standing pair's.
func IsStanding(owner string) bool { return strings.HasPrefix(owner, standingOwner) }
