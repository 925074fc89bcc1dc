package link

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"net"
	"strings"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"
)

// Shaper is a token bucket (tbf). It counts the bytes of IP packets, without Ethernet's header.
type Shaper struct {
	// Rate is in bytes per second. 0: there is no shaper.
	Rate uint64
	// Burst is how many bytes pass at once after idle time. A larger packet never passes, unless the kernel can segment it.
	Burst uint32
	// Queue is how many bytes wait; further packets are dropped.
	Queue uint32
}

// Shape is the shape of the traffic of a pod on a pre-plugged port. Both shapers are in the namespace of the veth peers, where no pod can
// change them, and not on the host veth, so that the switch does not see them:
//
//   - What the pod sends passes the veth peer, whose root qdisc is Send.
//   - What it receives arrives at the veth peer, is redirected to an ifb device there whose root qdisc is Receive, and goes on to the pod.
//     A queue on the host veth would hold packets of the socket by which Open vSwitch's userspace datapath sends to all its ports
//     (af_packet_sock in its lib/netdev-linux.c): once they fill that socket's buffer, no port receives anything.
type Shape struct {
	Receive, Send Shaper
}

// Shapers reads and repairs shapes. Shapes are created before the interface (PodLinks.Create) and removed with it (PodLinks.Unplug).
// *[Pods] does it in the kernel, *[FakePods] in memory.
type Shapers interface {
	// Shapes returns the shapes of ports with veth peers in the namespace at path, by name; ports without a shape are omitted.
	Shapes(ctx context.Context, path string) (map[string]Shape, error)
	// Reshape sets a port's shape. The zero Shape removes what is left of one, also of a port that does not exist; another Shape is then
	// ErrNoDevice.
	Reshape(ctx context.Context, path, name string, want Shape) error
}

var (
	_ Shapers = (*shapedPorts)(nil)
	_ Shapers = (*FakePods)(nil)
)

// String returns the shaper in the words of tc(8).
func (s Shaper) String() string {
	if s.Rate == 0 {
		return "no shaper"
	}
	return fmt.Sprintf("rate %dBps burst %d limit %d", s.Rate, s.Burst, s.Queue)
}

// String returns both shapers.
func (s Shape) String() string { return "receive " + s.Receive.String() + ", send " + s.Send.String() }

// Matches reports whether a shape that was read is the desired one.
func (s Shape) Matches(have Shape) bool {
	return s.Receive.matches(have.Receive) && s.Send.matches(have.Send)
}

// matches compares bursts with a tolerance: the kernel stores the time that a burst takes, in its ticks.
func (s Shaper) matches(have Shaper) bool {
	const parts = 100
	off := max(s.Burst, have.Burst) - min(s.Burst, have.Burst)
	return s.Rate == have.Rate && s.Queue == have.Queue && (off <= s.Burst/parts+1 || s.ticks() > math.MaxUint32)
}

// tick is the unit of times in the kernel's qdiscs, in nanoseconds (PSCHED_SHIFT of linux/net/pkt_sched.h).
const tick = 64

// ticks is the time that the burst takes.
func (s Shaper) ticks() float64 {
	if s.Rate == 0 {
		return 0
	}
	const second = 1e9
	return float64(s.Burst) * second / float64(s.Rate) / tick
}

const (
	// shaperHandle is the handle of the shapers' qdiscs: "WE" in ASCII.
	shaperHandle = 0x5745 << 16
	// ingressHandle is the kernel's handle of an ingress qdisc.
	ingressHandle = 0xffff << 16
	// tcaSizeBase is TCA_STAB_BASE of linux/pkt_sched.h, and sizeSpec the size of struct tc_sizespec, which has the overhead at offset
	// sizeOverhead.
	tcaSizeBase, sizeSpec, sizeOverhead = 1, 24, 4
	// linkEthernet is TC_LINKLAYER_ETHERNET: the kernel computes times itself, and needs no table of them.
	linkEthernet = 1
	// etherHeader is what a qdisc of an Ethernet device counts of a packet besides IP, in bytes.
	etherHeader = 14
	// receiverSuffix follows a pre-plugged port's name in the name of its ifb device.
	receiverSuffix = "-in"
)

// receiverName is the name of the ifb device of a pre-plugged port.
func receiverName(pair string) string { return pair + receiverSuffix }

func qdiscRequest(kind, flags, index int, handle, parent uint32) *nl.NetlinkRequest {
	request := nl.NewNetlinkRequest(kind, flags)
	request.AddData(&nl.TcMsg{Family: unix.AF_UNSPEC, Ifindex: int32(index), Handle: handle, Parent: parent}) //nolint:gosec // an interface's index
	return request
}

// setShaper replaces a device's root qdisc by a shaper.
func setShaper(index int, s Shaper) *nl.NetlinkRequest {
	request := qdiscRequest(unix.RTM_NEWQDISC, unix.NLM_F_CREATE|unix.NLM_F_REPLACE, index, shaperHandle, netlink.HANDLE_ROOT)
	request.AddData(nl.NewRtAttr(nl.TCA_KIND, nl.ZeroTerminated("tbf")))
	base := make([]byte, sizeSpec) // all else is 0: no table, only the overhead is added
	overhead := int32(-etherHeader)
	binary.NativeEndian.PutUint32(base[sizeOverhead:], uint32(overhead)) //nolint:gosec // two's complement is meant
	base[sizeOverhead+4] = linkEthernet
	request.AddData(nested(nl.TCA_STAB, nl.NewRtAttr(tcaSizeBase, base)))
	parms := nl.TcTbfQopt{Limit: s.Queue}
	parms.Rate.Rate, parms.Rate.Linklayer = uint32(min(s.Rate, math.MaxUint32)), linkEthernet //nolint:gosec // bounded
	request.AddData(nested(nl.TCA_OPTIONS,
		nl.NewRtAttr(nl.TCA_TBF_PARMS, parms.Serialize()),
		nl.NewRtAttr(nl.TCA_TBF_RATE64, nl.Uint64Attr(s.Rate)),
		nl.NewRtAttr(nl.TCA_TBF_BURST, nl.Uint32Attr(s.Burst))))
	return request
}

func nested(kind int, attrs ...*nl.RtAttr) *nl.RtAttr {
	outer := nl.NewRtAttr(kind, nil)
	for _, attr := range attrs {
		outer.AddChild(attr)
	}
	return outer
}

// readShapers returns the shapers of the calling thread's namespace, by the index of their device.
func readShapers() (map[int]Shaper, error) {
	messages, err := dump(func() ([][]byte, error) {
		return qdiscRequest(unix.RTM_GETQDISC, unix.NLM_F_DUMP, 0, 0, 0).Execute(unix.NETLINK_ROUTE, unix.RTM_NEWQDISC)
	})
	if err != nil {
		return nil, fmt.Errorf("listing qdiscs: %w", err)
	}
	found := map[int]Shaper{}
	for _, message := range messages {
		if len(message) < nl.SizeofTcMsg {
			return nil, fmt.Errorf("listing qdiscs: a message of %d bytes: %w", len(message), unix.EBADMSG)
		}
		header := nl.DeserializeTcMsg(message)
		if header.Parent != netlink.HANDLE_ROOT || header.Handle != shaperHandle {
			continue
		}
		shaper, err := parseShaper(message[nl.SizeofTcMsg:])
		if err != nil {
			return nil, fmt.Errorf("listing qdiscs: %w", err)
		}
		found[int(header.Ifindex)] = shaper
	}
	return found, nil
}

// parseShaper reads the attributes of a root qdisc. A qdisc that setShaper did not create is no shaper.
func parseShaper(attributes []byte) (Shaper, error) {
	attrs, err := attributesOf(attributes)
	if err != nil || string(attrs[nl.TCA_KIND]) != "tbf\x00" {
		return Shaper{}, err
	}
	options, err := attributesOf(attrs[nl.TCA_OPTIONS])
	if err != nil {
		return Shaper{}, err
	}
	size, err := attributesOf(attrs[nl.TCA_STAB])
	if err != nil {
		return Shaper{}, err
	}
	base, parms := size[tcaSizeBase], options[nl.TCA_TBF_PARMS]
	if len(parms) < nl.SizeofTcTbfQopt || len(base) < sizeSpec || int32(binary.NativeEndian.Uint32(base[sizeOverhead:])) != -etherHeader { //nolint:gosec // two's complement is meant
		return Shaper{}, nil
	}
	opt := nl.DeserializeTcTbfQopt(parms)
	s := Shaper{Rate: uint64(opt.Rate.Rate), Queue: opt.Limit}
	if rate := options[nl.TCA_TBF_RATE64]; len(rate) == 8 {
		s.Rate = binary.NativeEndian.Uint64(rate)
	}
	const second = 1e9
	s.Burst = uint32(min(math.Round(float64(opt.Buffer)*tick*float64(s.Rate)/second), math.MaxUint32))
	return s, nil
}

// attributesOf returns attributes by type.
func attributesOf(data []byte) (map[int][]byte, error) {
	if !wellFormed(data) {
		return nil, fmt.Errorf("attributes: %w", unix.EBADMSG)
	}
	list, err := nl.ParseRouteAttr(data)
	if err != nil {
		return nil, fmt.Errorf("attributes: %w", err)
	}
	found := make(map[int][]byte, len(list))
	for _, attr := range list {
		found[int(attr.Attr.Type&nl.NLA_TYPE_MASK)] = attr.Value
	}
	return found, nil
}

// farEnd is the veth peer of a pre-plugged port, with its shape.
type farEnd struct {
	far netlink.Link
	// receiver is the ifb device; nil if there is none.
	receiver netlink.Link
	conn     *conn
}

// unshape adds to a plan the removal of everything that exists of a shape.
func (f *farEnd) unshape(list *plan) {
	f.unshapeSent(list)
	f.unshapeReceived(list)
}

func (f *farEnd) unshapeSent(list *plan) {
	request := qdiscRequest(unix.RTM_DELQDISC, 0, f.far.Attrs().Index, 0, netlink.HANDLE_ROOT)
	list.addUnless(unix.ENOENT, "removing the shaper of what is sent", request) // ENOENT: only the kernel's default is there
}

// unshapeReceived removes the redirection of received packets before the device that they are redirected to.
func (f *farEnd) unshapeReceived(list *plan) {
	list.addUnless(unix.ENOENT, "removing the redirection of what is received", qdiscRequest(unix.RTM_DELQDISC, 0, f.far.Attrs().Index, 0, netlink.HANDLE_INGRESS))
	if f.receiver != nil {
		list.addUnless(unix.ENODEV, "removing "+f.receiver.Attrs().Name, deleteLink(f.receiver.Attrs().Index))
	}
}

// shape shapes the veth peer, on a thread in its namespace. It may be repeated.
func (f *farEnd) shape(want Shape) error {
	var list plan
	if want.Send.Rate != 0 {
		list.add("shaping what is sent", setShaper(f.far.Attrs().Index, want.Send))
	} else {
		f.unshapeSent(&list)
	}
	if want.Receive.Rate == 0 {
		f.unshapeReceived(&list)
	}
	if err := list.run(f.conn); err != nil || want.Receive.Rate == 0 {
		return err
	}
	return f.shapeReceived(want.Receive)
}

func (f *farEnd) shapeReceived(want Shaper) error {
	name, far := receiverName(f.far.Attrs().Name), f.far.Attrs()
	if f.receiver == nil {
		answers, err := f.conn.do(newIfb(name, far.MTU), getLink(name))
		if err := errors.Join(err, all(answers, []string{"making " + name, "looking at " + name})); err != nil {
			return err
		}
		f.receiver = answers[1].link
	}
	if f.receiver.Type() != "ifb" {
		return fmt.Errorf("%s (%s) beside the far end: %w", name, f.receiver.Type(), ErrForeign)
	}
	if err := f.conn.turn.do(func() error { return writeSysctls(name, hostSysctls()) }); err != nil {
		return err
	}
	index := f.receiver.Attrs().Index
	var list plan
	list.add("shaping what is received", setShaper(index, want))
	list.add("setting "+name+" up", setState(index, true))
	list.addUnless(unix.ENOENT, "removing the redirection of before", qdiscRequest(unix.RTM_DELQDISC, 0, far.Index, 0, netlink.HANDLE_INGRESS))
	ingress := qdiscRequest(unix.RTM_NEWQDISC, unix.NLM_F_CREATE|unix.NLM_F_EXCL, far.Index, ingressHandle, netlink.HANDLE_INGRESS)
	ingress.AddData(nl.NewRtAttr(nl.TCA_KIND, nl.ZeroTerminated("ingress")))
	list.add("taking hold of what is received", ingress)
	if err := list.run(f.conn); err != nil {
		return err
	}
	return f.redirect(index)
}

// newIfb creates an ifb device in the socket's namespace.
func newIfb(name string, mtu int) *nl.NetlinkRequest {
	request := nl.NewNetlinkRequest(unix.RTM_NEWLINK, unix.NLM_F_CREATE|unix.NLM_F_EXCL)
	request.AddData(nl.NewIfInfomsg(unix.AF_UNSPEC))
	linkEnd{name: name, mtu: mtu, netns: -1}.attributes(func(attr *nl.RtAttr) { request.AddData(attr) })
	info := nl.NewRtAttr(unix.IFLA_LINKINFO, nil)
	info.AddRtAttr(nl.IFLA_INFO_KIND, nl.NonZeroTerminated("ifb"))
	request.AddData(info)
	return request
}

// redirect sends everything that arrives at the veth peer to a device. The classifier is u32, which matches every packet without a
// selector, and which more kernels have than matchall.
func (f *farEnd) redirect(device int) error {
	handle, err := netlink.NewHandle(unix.NETLINK_ROUTE)
	if err != nil {
		return fmt.Errorf("opening a netlink socket: %w", err)
	}
	defer handle.Close()
	err = f.conn.turn.do(func() error {
		return handle.FilterAdd(&netlink.U32{
			FilterAttrs: netlink.FilterAttrs{LinkIndex: f.far.Attrs().Index, Parent: ingressHandle, Priority: 1, Protocol: unix.ETH_P_ALL},
			Actions:     []netlink.Action{netlink.NewMirredAction(device)},
		})
	})
	if err != nil {
		return fmt.Errorf("redirecting what is received: %w", err)
	}
	return nil
}

// isRedirected reports whether everything that arrives at a veth peer is redirected to a device.
func isRedirected(handle *netlink.Handle, far netlink.Link, device int) (bool, error) {
	filters, err := dump(func() ([]netlink.Filter, error) { return handle.FilterList(far, ingressHandle) })
	if err != nil {
		return false, fmt.Errorf("listing filters of %s: %w", far.Attrs().Name, err)
	}
	for _, filter := range filters {
		u32, ok := filter.(*netlink.U32)
		if !ok || u32.Protocol != unix.ETH_P_ALL || len(u32.Actions) != 1 || u32.Sel == nil || !takesAll(u32.Sel) {
			continue
		}
		to, ok := u32.Actions[0].(*netlink.MirredAction)
		return ok && to.MirredAction == netlink.TCA_EGRESS_REDIR && to.Ifindex == device, nil // the first filter that matches counts
	}
	return false, nil
}

func takesAll(selector *netlink.TcU32Sel) bool {
	for _, key := range selector.Keys {
		if key.Mask != 0 {
			return false
		}
	}
	return true
}

// readShapes returns the shapes of pre-plugged ports whose veth peers are in the calling thread's namespace, by name. Ports without any
// part of a shape are omitted; if the shaping of received packets is incomplete, Receive is zero.
func readShapes(handle *netlink.Handle, links []netlink.Link) (map[string]Shape, error) {
	shapers, err := readShapers()
	if err != nil {
		return nil, err
	}
	far, receivers := map[string]netlink.Link{}, map[string]netlink.Link{}
	for _, link := range links {
		name := link.Attrs().Name
		if pair, ok := strings.CutSuffix(name, receiverSuffix); ok && link.Type() == "ifb" {
			receivers[pair] = link
		} else if link.Type() == "veth" {
			far[name] = link
		}
	}
	found := map[string]Shape{}
	for name, link := range far {
		if shaper, ok := shapers[link.Attrs().Index]; ok {
			found[name] = Shape{Send: shaper}
		}
	}
	for name, receiver := range receivers {
		shape, index := found[name], receiver.Attrs().Index
		if there := far[name]; there != nil && receiver.Attrs().Flags&net.FlagUp != 0 {
			redirected, err := isRedirected(handle, there, index)
			if err != nil {
				return nil, err
			}
			if redirected {
				shape.Receive = shapers[index]
			}
		}
		found[name] = shape
	}
	return found, nil
}

// shapedPorts shapes the traffic of pods on the pre-plugged ports of one network namespace.
type shapedPorts struct {
	home *namespace
	turn *turn
}

// Shapes implements Shapers.
func (p *shapedPorts) Shapes(ctx context.Context, path string) (map[string]Shape, error) {
	var found map[string]Shape
	err := p.inPorts(ctx, path, func() error {
		handle, err := netlink.NewHandle(unix.NETLINK_ROUTE)
		if err != nil {
			return fmt.Errorf("opening a netlink socket: %w", err)
		}
		defer handle.Close()
		links, err := listLinks(nil)
		if err == nil {
			found, err = readShapes(handle, links)
		}
		return err
	})
	if err != nil && !errors.Is(err, ErrNoNamespace) {
		return nil, fmt.Errorf("reading shapes: %w", err)
	}
	return found, nil
}

// Reshape implements Shapers.
func (p *shapedPorts) Reshape(ctx context.Context, path, name string, want Shape) error {
	if err := ValidateName(receiverName(name)); err != nil {
		return fmt.Errorf("shaping %s: %w", name, err)
	}
	err := p.inPorts(ctx, path, func() error {
		conn, err := dial()
		if err != nil {
			return err
		}
		defer conn.close()
		conn.turn = p.turn
		answers, err := conn.do(getLink(name), getLink(receiverName(name)))
		if err != nil {
			return err
		}
		far, receiver := answers[0].link, answers[1].link
		switch {
		case far != nil:
			return (&farEnd{far: far, receiver: receiver, conn: conn}).shape(want)
		case want != Shape{}:
			return fmt.Errorf("its far end: %w", ErrNoDevice)
		case receiver == nil || receiver.Type() != "ifb":
			return nil
		}
		gone, err := conn.do(deleteLink(receiver.Attrs().Index))
		if err != nil {
			return err
		}
		return unlessGone(gone[0].err)
	})
	switch {
	case err == nil, errors.Is(err, ErrNoNamespace) && want == Shape{}:
		return nil
	case errors.Is(err, ErrNoNamespace):
		return fmt.Errorf("shaping %s: its far end: %w: %w", name, ErrNoDevice, err)
	default:
		return fmt.Errorf("shaping %s: %w", name, err)
	}
}

// inPorts runs work on a thread in the namespace of veth peers.
func (p *shapedPorts) inPorts(ctx context.Context, path string, work func() error) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	ports, err := openNamespace(path)
	if errors.Is(err, ErrNotNamespace) {
		err = errors.Join(ErrNoNamespace, err)
	}
	if err != nil {
		return err
	}
	defer ports.close()
	return onThread(p.home, func() error {
		if err := ports.enter(); err != nil {
			return err
		}
		return work()
	})
}

// errUnshaped reports that a pod's traffic cannot be shaped.
var errUnshaped = errors.New("bandwidth can be limited on pre-plugged ports only")

func (u *onPort) farEnd() *farEnd { return &farEnd{far: u.far, receiver: u.receiver, conn: u.farConn} }

// shape shapes the veth peer before the pod's interface is on it. For a pod without a shape, put removes what is left of one.
func (u *onPort) shape() error {
	if u.pair.Shape == (Shape{}) {
		return nil
	}
	if err := u.ports.enter(); err != nil {
		return err
	}
	return errors.Join(u.farEnd().shape(u.pair.Shape), u.home.enter())
}

// compareShape returns a *Difference, or nil.
func (u *onPort) compareShape() (difference, err error) {
	if u.far == nil || u.pair.Shape == (Shape{}) && u.receiver == nil {
		return nil, nil
	}
	all, err := u.Shapes(context.Background(), u.pair.Preplugged)
	if have := all[u.pair.HostName]; err == nil && !u.pair.Shape.Matches(have) {
		difference = &Difference{u.podObject(), "is shaped otherwise: " + have.String() + ", not " + u.pair.Shape.String()}
	}
	return difference, err
}
