package podveth

import (
	"context"
	"errors"
	"fmt"
	"sync"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	"weft.dev/weft/internal/link"
	"weft.dev/weft/internal/link/netns"
	"weft.dev/weft/internal/link/podlink"
	"weft.dev/weft/internal/link/rtnetlink"
	"weft.dev/weft/internal/link/shaping"
)

// onPort is one run of Create for a pod on a pre-plugged port.
type onPort struct {
	creation
	ports   *netns.Namespace
	farConn *rtnetlink.Conn
	far     netlink.Link
	// receiver is the ifb device that shapes what the pod receives; nil if there is none.
	receiver netlink.Link
	// noEntry is why Unplug cannot enter the pod's namespace although it may exist.
	noEntry error
}

// openOnPort opens what Create, Check and Unplug need of a pre-plugged port's namespace.
func openOnPort(c creation) (*onPort, error) {
	ports, err := netns.Open(c.pair.Preplugged)
	if err != nil {
		// Without wrapping err: a missing namespace of pre-plugged ports must not look like a missing namespace of the pod.
		return nil, fmt.Errorf("%w: %s: far end in %s: %w: %s", podlink.ErrUnusable, c.pair.HostName, c.pair.Preplugged, link.ErrNoDevice, err.Error())
	}
	return &onPort{creation: c, ports: ports}, nil
}

func (u *onPort) close() {
	if u.farConn != nil {
		u.farConn.Close()
	}
	u.ports.Close()
}

// createPreplugged is Create for a pod on a pre-plugged port. If it fails, it removes what it has created.
func (p *Pods) createPreplugged(ctx context.Context, c creation) (*creation, error) {
	u, err := openOnPort(c)
	if err != nil {
		return nil, err
	}
	defer u.close()
	err = netns.OnThread(p.home, u.run)
	if err != nil && u.made {
		err = errors.Join(err, p.Unplug(context.WithoutCancel(ctx), c.pair, func() {}))
	}
	return &u.creation, err
}

// look enters the veth peers' namespace and reads both ends. It ends in the home namespace.
func (u *onPort) look() error {
	err := u.lookAtHost()
	if err == nil {
		err = u.ports.Enter()
	}
	if err != nil {
		return err
	}
	var answers []rtnetlink.Answer
	if u.farConn, err = rtnetlink.Dial(); err == nil {
		u.farConn.Turn = &u.turn
		answers, err = u.farConn.Do(rtnetlink.GetLink(u.pair.HostName), rtnetlink.GetLink(podlink.ReceiverName(u.pair.HostName)))
	}
	if err := errors.Join(err, u.home.Enter()); err != nil {
		return err
	}
	if err := answers[0].Err; err != nil && !errors.Is(err, unix.ENODEV) {
		return fmt.Errorf("looking at far end %s: %w", u.pair.HostName, err)
	}
	u.far, u.receiver = answers[0].Link, answers[1].Link
	return nil
}

// complete returns an error unless both ends exist and are Weft's.
func (u *onPort) complete() error {
	switch {
	case u.host == nil:
		return fmt.Errorf("%w: host end %s: %w", podlink.ErrUnusable, u.pair.HostName, link.ErrNoDevice)
	case u.far == nil:
		return fmt.Errorf("%w: far end of %s: %w", podlink.ErrUnusable, u.pair.HostName, link.ErrNoDevice)
	case u.host.Type() != "veth" || u.host.Attrs().Alias != podlink.PrepluggedAlias(u.pair.HostName):
		return fmt.Errorf("%w: %s (%s, alias %q) on the host: %w", podlink.ErrUnusable, u.pair.HostName, u.host.Type(), u.host.Attrs().Alias, link.ErrForeign)
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
	if err := u.pod.Enter(); err != nil {
		return err
	}
	if u.podConn, err = rtnetlink.Dial(); err != nil {
		return err
	}
	defer u.podConn.Close()
	u.podConn.Turn = &u.turn
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
	answers, err := u.farConn.Do(newPassthru(index, rtnetlink.LinkEnd{Name: u.pair.PodName, MTU: u.pair.LinkMTU(), Netns: u.pod.FD()}))
	if err != nil {
		return err
	}
	if made := answers[0].Err; made != nil {
		return u.adoptOnPort(made)
	}
	u.made = true
	var list rtnetlink.Plan
	if u.pair.Shape == (podlink.Shape{}) {
		u.farEnd().Unshape(&list) // usually nothing to remove, unless an earlier agent left something
	}
	if len(u.pair.PodMAC) != 0 { // a macvlan of this mode has its device's MAC
		list.Add("setting the far end's MAC", rtnetlink.SetLink(index, rtnetlink.MACAttr(u.pair.PodMAC)))
	}
	return list.Run(u.farConn)
}

// adoptOnPort finds the pod's interface after its creation failed with the error why.
func (u *onPort) adoptOnPort(why error) error {
	answers, err := u.podConn.Do(rtnetlink.GetLink(u.pair.PodName))
	if err != nil {
		return err
	}
	switch there := answers[0].Link; {
	case isOn(there, u.far):
		return nil
	case there != nil:
		return fmt.Errorf("%s (%s) in the pod: %w", u.pair.PodName, there.Type(), link.ErrForeign)
	case errors.Is(why, unix.EINVAL) || errors.Is(why, unix.EBUSY):
		return fmt.Errorf("%w: %s: %w (%w)", podlink.ErrUnusable, u.pair.HostName, podlink.ErrOccupied, why)
	default:
		return fmt.Errorf("%w: %s: creating a macvlan on it: %w", podlink.ErrUnusable, u.pair.HostName, why)
	}
}

// isOn reports whether a link is a macvlan whose device, in another namespace, has far's index.
func isOn(dev, far netlink.Link) bool {
	return dev != nil && far != nil && dev.Type() == "macvlan" && dev.Attrs().ParentIndex == far.Attrs().Index
}

// newPassthru creates a macvlan of a device of the socket's namespace.
func newPassthru(device int, end rtnetlink.LinkEnd) *nl.NetlinkRequest {
	request := nl.NewNetlinkRequest(unix.RTM_NEWLINK, unix.NLM_F_CREATE|unix.NLM_F_EXCL)
	request.AddData(nl.NewIfInfomsg(unix.AF_UNSPEC))
	end.Attributes(func(attr *nl.RtAttr) { request.AddData(attr) })
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

// Unplug implements podlink.Links. It waits about 20 ms for the kernel, concurrently with other calls.
func (p *Pods) Unplug(ctx context.Context, pair podlink.Pair, began func()) error {
	began = sync.OnceFunc(began)
	defer began()
	if err := errors.Join(pair.Validate(), ctx.Err()); err != nil {
		return fmt.Errorf("pod link %s: %w", pair.HostName, err)
	}
	u, err := openOnPort(creation{Pods: p, pair: pair})
	if err != nil {
		return err
	}
	defer u.close()
	// Without the pod's namespace its interface does not exist either. In a namespace that cannot be entered it may still exist: the veth peer
	// shows it.
	if u.pod, u.noEntry = netns.Open(pair.Netns); u.noEntry == nil {
		defer u.pod.Close()
	} else if errors.Is(u.noEntry, link.ErrNoNamespace) || errors.Is(u.noEntry, link.ErrNotNamespace) {
		u.noEntry = nil
	}
	began()
	select {
	case p.unplugging <- struct{}{}:
		defer func() { <-p.unplugging }()
	case <-ctx.Done():
		return fmt.Errorf("pod link %s: %w", pair.HostName, ctx.Err())
	}
	if err := netns.OnThread(p.home, u.remove); err != nil {
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
	var rest rtnetlink.Plan
	u.farEnd().Unshape(&rest)
	return rest.Run(u.farConn)
}

// probeName is the name of the macvlan that probe creates.
const probeName = "weft-probe"

// probe returns ErrOccupied unless a veth peer is free: the kernel allows one interface on it. The socket is in the veth peer's namespace.
func (p *Pods) probe(conn *rtnetlink.Conn, index int) error {
	p.probing.Lock() // only one probe at a time can have the name
	defer p.probing.Unlock()
	answers, err := conn.Do(newPassthru(index, rtnetlink.LinkEnd{Name: probeName, Netns: -1}), rtnetlink.GetLink(probeName))
	if err != nil {
		return err
	}
	if made := answers[0].Err; errors.Is(made, unix.EINVAL) || errors.Is(made, unix.EBUSY) {
		return fmt.Errorf("%w: %w", podlink.ErrOccupied, made)
	} else if made != nil && !errors.Is(made, unix.EEXIST) {
		return fmt.Errorf("making a macvlan: %w", made)
	}
	if answers[1].Err != nil {
		return rtnetlink.UnlessGone(answers[1].Err)
	}
	removed, err := conn.Do(rtnetlink.DeleteLink(answers[1].Link.Attrs().Index))
	if err != nil {
		return err
	}
	if errors.Is(answers[0].Err, unix.EEXIST) { // left by an interrupted probe
		return fmt.Errorf("%w: by a probe that was interrupted", podlink.ErrOccupied)
	}
	return rtnetlink.UnlessGone(removed[0].Err)
}

// removeInPod removes the interface and stays in the pod's namespace.
func (u *onPort) removeInPod() (removed bool, err error) {
	if err := u.pod.Enter(); err != nil {
		return false, fmt.Errorf("%w: %w", errNoEntry, err)
	}
	conn, err := rtnetlink.Dial()
	if err != nil {
		return false, err
	}
	defer conn.Close()
	answers, err := conn.Do(rtnetlink.GetLink(u.pair.PodName))
	if err != nil {
		return false, err
	}
	if !isOn(answers[0].Link, u.far) {
		return false, rtnetlink.UnlessGone(answers[0].Err)
	}
	answers, err = conn.Do(rtnetlink.DeleteLink(answers[0].Link.Attrs().Index))
	if err != nil {
		return false, err
	}
	return answers[0].Err == nil, rtnetlink.UnlessGone(answers[0].Err)
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

func (u *onPort) farEnd() *shaping.FarEnd {
	return &shaping.FarEnd{Far: u.far, Receiver: u.receiver, Conn: u.farConn}
}

// shape shapes the veth peer before the pod's interface is on it. For a pod without a shape, put removes what is left of one.
func (u *onPort) shape() error {
	if u.pair.Shape == (podlink.Shape{}) {
		return nil
	}
	if err := u.ports.Enter(); err != nil {
		return err
	}
	return errors.Join(u.farEnd().Shape(u.pair.Shape), u.home.Enter())
}

// compareShape returns a *Difference, or nil.
func (u *onPort) compareShape() (difference, err error) {
	if u.far == nil || u.pair.Shape == (podlink.Shape{}) && u.receiver == nil {
		return nil, nil
	}
	all, err := u.Shapes(context.Background(), u.pair.Preplugged)
	if have := all[u.pair.HostName]; err == nil && !u.pair.Shape.Matches(have) {
		difference = &podlink.Difference{Object: u.pair.PodObject(), Problem: "is shaped otherwise: " + have.String() + ", not " + u.pair.Shape.String()}
	}
	return difference, err
}
