package link

import (
	"context"
	"errors"
	"fmt"
	"sync"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"
)

// onPort is one run of Create for a pod on a pre-plugged port.
type onPort struct {
	creation
	ports   *namespace
	farConn *conn
	far     netlink.Link
	// receiver is the ifb device that shapes what the pod receives; nil if there is none.
	receiver netlink.Link
	// noEntry is why Unplug cannot enter the pod's namespace although it may exist.
	noEntry error
}

// openOnPort opens what Create, Check and Unplug need of a pre-plugged port's namespace.
func openOnPort(c creation) (*onPort, error) {
	ports, err := openNamespace(c.pair.Preplugged)
	if err != nil {
		// Without wrapping err: a missing namespace of pre-plugged ports must not look like a missing namespace of the pod.
		return nil, fmt.Errorf("%w: %s: far end in %s: %w: %s", ErrUnusable, c.pair.HostName, c.pair.Preplugged, ErrNoDevice, err.Error())
	}
	return &onPort{creation: c, ports: ports}, nil
}

func (u *onPort) close() {
	if u.farConn != nil {
		u.farConn.close()
	}
	u.ports.close()
}

// createPreplugged is Create for a pod on a pre-plugged port. If it fails, it removes what it has created.
func (p *Pods) createPreplugged(ctx context.Context, c creation) (*creation, error) {
	u, err := openOnPort(c)
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

// look enters the veth peers' namespace and reads both ends. It ends in the home namespace.
func (u *onPort) look() error {
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

// complete returns an error unless both ends exist and are Weft's.
func (u *onPort) complete() error {
	switch {
	case u.host == nil:
		return fmt.Errorf("%w: host end %s: %w", ErrUnusable, u.pair.HostName, ErrNoDevice)
	case u.far == nil:
		return fmt.Errorf("%w: far end of %s: %w", ErrUnusable, u.pair.HostName, ErrNoDevice)
	case u.host.Type() != "veth" || u.host.Attrs().Alias != prepluggedAlias(u.pair.HostName):
		return fmt.Errorf("%w: %s (%s, alias %q) on the host: %w", ErrUnusable, u.pair.HostName, u.host.Type(), u.host.Attrs().Alias, ErrForeign)
	}
	return nil
}

// run works on a locked thread that starts in the home namespace.
func (u *onPort) run() error {
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

// put creates the pod's interface, or finds the one that an earlier run has created.
func (u *onPort) put() error {
	index := u.far.Attrs().Index
	answers, err := u.farConn.do(newPassthru(index, linkEnd{name: u.pair.PodName, mtu: u.pair.mtu(), netns: int(u.pod.file.Fd())}))
	if err != nil {
		return err
	}
	if made := answers[0].err; made != nil {
		return u.adoptOnPort(made)
	}
	u.made = true
	var list plan
	if u.pair.Shape == (Shape{}) {
		u.farEnd().unshape(&list) // usually nothing to remove, unless an earlier agent left something
	}
	if len(u.pair.PodMAC) != 0 { // a macvlan of this mode has its device's MAC
		list.add("setting the far end's MAC", setLink(index, macAttr(u.pair.PodMAC)))
	}
	return list.run(u.farConn)
}

// adoptOnPort finds the pod's interface after its creation failed with the error why.
func (u *onPort) adoptOnPort(why error) error {
	answers, err := u.podConn.do(getLink(u.pair.PodName))
	if err != nil {
		return err
	}
	switch there := answers[0].link; {
	case isOn(there, u.far):
		return nil
	case there != nil:
		return fmt.Errorf("%s (%s) in the pod: %w", u.pair.PodName, there.Type(), ErrForeign)
	case errors.Is(why, unix.EINVAL) || errors.Is(why, unix.EBUSY):
		return fmt.Errorf("%w: %s: %w (%w)", ErrUnusable, u.pair.HostName, ErrOccupied, why)
	default:
		return fmt.Errorf("%w: %s: creating a macvlan on it: %w", ErrUnusable, u.pair.HostName, why)
	}
}

// isOn reports whether a link is a macvlan whose device, in another namespace, has far's index.
func isOn(link, far netlink.Link) bool {
	return link != nil && far != nil && link.Type() == "macvlan" && link.Attrs().ParentIndex == far.Attrs().Index
}

// newPassthru creates a macvlan of a device of the socket's namespace.
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

// errNoEntry reports that an open namespace cannot be entered.
var errNoEntry = errors.New("no entry")

// unplugAtOnce is how many interfaces are removed concurrently, each by its own thread.
const unplugAtOnce = 16

// Unplug implements PodLinks. It waits about 20 ms for the kernel, concurrently with other calls.
func (p *Pods) Unplug(ctx context.Context, pair Pair, began func()) error {
	began = sync.OnceFunc(began)
	defer began()
	if err := errors.Join(pair.validate(), ctx.Err()); err != nil {
		return fmt.Errorf("pod link %s: %w", pair.HostName, err)
	}
	u, err := openOnPort(creation{Pods: p, pair: pair})
	if err != nil {
		return err
	}
	defer u.close()
	// Without the pod's namespace its interface does not exist either. In a namespace that cannot be entered it may still exist: the veth peer
	// shows it.
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

// remove works on a locked thread that starts in the home namespace. Without the pod's namespace its interface does not exist either.
func (u *onPort) remove() error {
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
	if !removed { // It was gone before, or cannot be reached: another name, another namespace, no entry.
		if err := u.probe(u.farConn, u.far.Attrs().Index); err != nil {
			return errors.Join(err, u.noEntry)
		}
	}
	var rest plan
	u.farEnd().unshape(&rest)
	return rest.run(u.farConn)
}

// probeName is the name of the macvlan that probe creates.
const probeName = "weft-probe"

// probe returns ErrOccupied unless a veth peer is free: the kernel allows one interface on it. The socket is in the veth peer's namespace.
func (p *Pods) probe(conn *conn, index int) error {
	p.probing.Lock() // only one probe at a time can have the name
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
	if errors.Is(answers[0].err, unix.EEXIST) { // left by an interrupted probe
		return fmt.Errorf("%w: by a probe that was interrupted", ErrOccupied)
	}
	return unlessGone(removed[0].err)
}

// removeInPod removes the interface and stays in the pod's namespace.
func (u *onPort) removeInPod() (removed bool, err error) {
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
	if !isOn(answers[0].link, u.far) {
		return false, unlessGone(answers[0].err)
	}
	answers, err = conn.do(deleteLink(answers[0].link.Attrs().Index))
	if err != nil {
		return false, err
	}
	return answers[0].err == nil, unlessGone(answers[0].err)
}

// check is creation.check for a pod on a pre-plugged port.
func (u *onPort) check() error {
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
	return errors.Join(u.compare(func() bool { return isOn(u.peer, u.far) }, "is not on "), shape)
}
