package shaping

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

	"weft.dev/weft/internal/link"
	"weft.dev/weft/internal/link/devconf"
	"weft.dev/weft/internal/link/netns"
	"weft.dev/weft/internal/link/podlink"
	"weft.dev/weft/internal/link/rtnetlink"
)

var (
	_ podlink.Shapers = (*Ports)(nil)
	_ podlink.Shapers = (*podlink.Fake)(nil)
)

const (
	// ShaperHandle is the handle of the shapers' qdiscs: "WE" in ASCII.
	ShaperHandle = 0x5745 << 16
	// IngressHandle is the kernel's handle of an ingress qdisc.
	IngressHandle = 0xffff << 16
	// tcaSizeBase is TCA_STAB_BASE of linux/pkt_sched.h, and sizeSpec the size of struct tc_sizespec, which has the overhead at offset
	// sizeOverhead.
	tcaSizeBase, sizeSpec, sizeOverhead = 1, 24, 4
	// linkEthernet is TC_LINKLAYER_ETHERNET: the kernel computes times itself, and needs no table of them.
	linkEthernet = 1
	// etherHeader is what a qdisc of an Ethernet device counts of a packet besides IP, in bytes.
	etherHeader = 14
)

func qdiscRequest(kind, flags, index int, handle, parent uint32) *nl.NetlinkRequest {
	request := nl.NewNetlinkRequest(kind, flags)
	request.AddData(&nl.TcMsg{Family: unix.AF_UNSPEC, Ifindex: int32(index), Handle: handle, Parent: parent}) //nolint:gosec // an interface's index
	return request
}

// setShaper replaces a device's root qdisc by a shaper.
func setShaper(index int, s podlink.Shaper) *nl.NetlinkRequest {
	request := qdiscRequest(unix.RTM_NEWQDISC, unix.NLM_F_CREATE|unix.NLM_F_REPLACE, index, ShaperHandle, netlink.HANDLE_ROOT)
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
func readShapers() (map[int]podlink.Shaper, error) {
	messages, err := rtnetlink.Dump(func() ([][]byte, error) {
		return qdiscRequest(unix.RTM_GETQDISC, unix.NLM_F_DUMP, 0, 0, 0).Execute(unix.NETLINK_ROUTE, unix.RTM_NEWQDISC)
	})
	if err != nil {
		return nil, fmt.Errorf("listing qdiscs: %w", err)
	}
	found := map[int]podlink.Shaper{}
	for _, message := range messages {
		if len(message) < nl.SizeofTcMsg {
			return nil, fmt.Errorf("listing qdiscs: a message of %d bytes: %w", len(message), unix.EBADMSG)
		}
		header := nl.DeserializeTcMsg(message)
		if header.Parent != netlink.HANDLE_ROOT || header.Handle != ShaperHandle {
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
func parseShaper(attributes []byte) (podlink.Shaper, error) {
	attrs, err := attributesOf(attributes)
	if err != nil || string(attrs[nl.TCA_KIND]) != "tbf\x00" {
		return podlink.Shaper{}, err
	}
	options, err := attributesOf(attrs[nl.TCA_OPTIONS])
	if err != nil {
		return podlink.Shaper{}, err
	}
	size, err := attributesOf(attrs[nl.TCA_STAB])
	if err != nil {
		return podlink.Shaper{}, err
	}
	base, parms := size[tcaSizeBase], options[nl.TCA_TBF_PARMS]
	if len(parms) < nl.SizeofTcTbfQopt || len(base) < sizeSpec || int32(binary.NativeEndian.Uint32(base[sizeOverhead:])) != -etherHeader { //nolint:gosec // two's complement is meant
		return podlink.Shaper{}, nil
	}
	opt := nl.DeserializeTcTbfQopt(parms)
	s := podlink.Shaper{Rate: uint64(opt.Rate.Rate), Queue: opt.Limit}
	if rate := options[nl.TCA_TBF_RATE64]; len(rate) == 8 {
		s.Rate = binary.NativeEndian.Uint64(rate)
	}
	const second = 1e9
	s.Burst = uint32(min(math.Round(float64(opt.Buffer)*podlink.ShaperTick*float64(s.Rate)/second), math.MaxUint32))
	return s, nil
}

// attributesOf returns attributes by type.
func attributesOf(data []byte) (map[int][]byte, error) {
	if !rtnetlink.WellFormed(data) {
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

// FarEnd is the veth peer of a pre-plugged port, with its shape.
type FarEnd struct {
	Far netlink.Link
	// Receiver is the ifb device; nil if there is none.
	Receiver netlink.Link
	Conn     *rtnetlink.Conn
}

// Unshape adds to a plan the removal of everything that exists of a shape.
func (f *FarEnd) Unshape(list *rtnetlink.Plan) {
	f.unshapeSent(list)
	f.unshapeReceived(list)
}

func (f *FarEnd) unshapeSent(list *rtnetlink.Plan) {
	request := qdiscRequest(unix.RTM_DELQDISC, 0, f.Far.Attrs().Index, 0, netlink.HANDLE_ROOT)
	list.AddUnless(unix.ENOENT, "removing the shaper of what is sent", request) // ENOENT: only the kernel's default is there
}

// unshapeReceived removes the redirection of received packets before the device that they are redirected to.
func (f *FarEnd) unshapeReceived(list *rtnetlink.Plan) {
	list.AddUnless(unix.ENOENT, "removing the redirection of what is received", qdiscRequest(unix.RTM_DELQDISC, 0, f.Far.Attrs().Index, 0, netlink.HANDLE_INGRESS))
	if f.Receiver != nil {
		list.AddUnless(unix.ENODEV, "removing "+f.Receiver.Attrs().Name, rtnetlink.DeleteLink(f.Receiver.Attrs().Index))
	}
}

// Shape shapes the veth peer, on a thread in its namespace. It may be repeated.
func (f *FarEnd) Shape(want podlink.Shape) error {
	var list rtnetlink.Plan
	if want.Send.Rate != 0 {
		list.Add("shaping what is sent", setShaper(f.Far.Attrs().Index, want.Send))
	} else {
		f.unshapeSent(&list)
	}
	if want.Receive.Rate == 0 {
		f.unshapeReceived(&list)
	}
	if err := list.Run(f.Conn); err != nil || want.Receive.Rate == 0 {
		return err
	}
	return f.shapeReceived(want.Receive)
}

func (f *FarEnd) shapeReceived(want podlink.Shaper) error {
	name, far := podlink.ReceiverName(f.Far.Attrs().Name), f.Far.Attrs()
	if f.Receiver == nil {
		answers, err := f.Conn.Do(newIfb(name, far.MTU), rtnetlink.GetLink(name))
		if err := errors.Join(err, rtnetlink.All(answers, []string{"making " + name, "looking at " + name})); err != nil {
			return err
		}
		f.Receiver = answers[1].Link
	}
	if f.Receiver.Type() != "ifb" {
		return fmt.Errorf("%s (%s) beside the far end: %w", name, f.Receiver.Type(), link.ErrForeign)
	}
	if err := f.Conn.Turn.Do(func() error { return devconf.WriteSysctls(name, podlink.HostSysctls()) }); err != nil {
		return err
	}
	index := f.Receiver.Attrs().Index
	var list rtnetlink.Plan
	list.Add("shaping what is received", setShaper(index, want))
	list.Add("setting "+name+" up", rtnetlink.SetState(index, true))
	list.AddUnless(unix.ENOENT, "removing the redirection of before", qdiscRequest(unix.RTM_DELQDISC, 0, far.Index, 0, netlink.HANDLE_INGRESS))
	ingress := qdiscRequest(unix.RTM_NEWQDISC, unix.NLM_F_CREATE|unix.NLM_F_EXCL, far.Index, IngressHandle, netlink.HANDLE_INGRESS)
	ingress.AddData(nl.NewRtAttr(nl.TCA_KIND, nl.ZeroTerminated("ingress")))
	list.Add("taking hold of what is received", ingress)
	if err := list.Run(f.Conn); err != nil {
		return err
	}
	return f.redirect(index)
}

// newIfb creates an ifb device in the socket's namespace.
func newIfb(name string, mtu int) *nl.NetlinkRequest {
	request := nl.NewNetlinkRequest(unix.RTM_NEWLINK, unix.NLM_F_CREATE|unix.NLM_F_EXCL)
	request.AddData(nl.NewIfInfomsg(unix.AF_UNSPEC))
	rtnetlink.LinkEnd{Name: name, MTU: mtu, Netns: -1}.Attributes(func(attr *nl.RtAttr) { request.AddData(attr) })
	info := nl.NewRtAttr(unix.IFLA_LINKINFO, nil)
	info.AddRtAttr(nl.IFLA_INFO_KIND, nl.NonZeroTerminated("ifb"))
	request.AddData(info)
	return request
}

// redirect sends everything that arrives at the veth peer to a device. The classifier is u32, which matches every packet without a
// selector, and which more kernels have than matchall.
func (f *FarEnd) redirect(device int) error {
	handle, err := netlink.NewHandle(unix.NETLINK_ROUTE)
	if err != nil {
		return fmt.Errorf("opening a netlink socket: %w", err)
	}
	defer handle.Close()
	err = f.Conn.Turn.Do(func() error {
		return handle.FilterAdd(&netlink.U32{
			FilterAttrs: netlink.FilterAttrs{LinkIndex: f.Far.Attrs().Index, Parent: IngressHandle, Priority: 1, Protocol: unix.ETH_P_ALL},
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
	filters, err := rtnetlink.Dump(func() ([]netlink.Filter, error) { return handle.FilterList(far, IngressHandle) })
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

// ReadShapes returns the shapes of pre-plugged ports whose veth peers are in the calling thread's namespace, by name. Ports without any
// part of a shape are omitted; if the shaping of received packets is incomplete, Receive is zero.
func ReadShapes(handle *netlink.Handle, links []netlink.Link) (map[string]podlink.Shape, error) {
	shapers, err := readShapers()
	if err != nil {
		return nil, err
	}
	far, receivers := map[string]netlink.Link{}, map[string]netlink.Link{}
	for _, dev := range links {
		name := dev.Attrs().Name
		if pair, ok := strings.CutSuffix(name, podlink.ReceiverSuffix); ok && dev.Type() == "ifb" {
			receivers[pair] = dev
		} else if dev.Type() == "veth" {
			far[name] = dev
		}
	}
	found := map[string]podlink.Shape{}
	for name, dev := range far {
		if shaper, ok := shapers[dev.Attrs().Index]; ok {
			found[name] = podlink.Shape{Send: shaper}
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

// Ports shapes the traffic of pods on the pre-plugged ports of one network namespace.
type Ports struct {
	home *netns.Namespace
	turn *rtnetlink.Turn
}

// New returns the shapes of ports whose veth peers are in namespaces that are reached from home. turn serializes changes of links.
func New(home *netns.Namespace, turn *rtnetlink.Turn) *Ports { return &Ports{home, turn} }

// Shapes implements Shapers.
func (p *Ports) Shapes(ctx context.Context, path string) (map[string]podlink.Shape, error) {
	var found map[string]podlink.Shape
	err := p.inPorts(ctx, path, func() error {
		handle, err := netlink.NewHandle(unix.NETLINK_ROUTE)
		if err != nil {
			return fmt.Errorf("opening a netlink socket: %w", err)
		}
		defer handle.Close()
		links, err := rtnetlink.ListLinks(nil)
		if err == nil {
			found, err = ReadShapes(handle, links)
		}
		return err
	})
	if err != nil && !errors.Is(err, link.ErrNoNamespace) {
		return nil, fmt.Errorf("reading shapes: %w", err)
	}
	return found, nil
}

// Reshape implements Shapers.
func (p *Ports) Reshape(ctx context.Context, path, name string, want podlink.Shape) error {
	if err := link.ValidateName(podlink.ReceiverName(name)); err != nil {
		return fmt.Errorf("shaping %s: %w", name, err)
	}
	err := p.inPorts(ctx, path, func() error {
		conn, err := rtnetlink.Dial()
		if err != nil {
			return err
		}
		defer conn.Close()
		conn.Turn = p.turn
		answers, err := conn.Do(rtnetlink.GetLink(name), rtnetlink.GetLink(podlink.ReceiverName(name)))
		if err != nil {
			return err
		}
		far, receiver := answers[0].Link, answers[1].Link
		switch {
		case far != nil:
			return (&FarEnd{Far: far, Receiver: receiver, Conn: conn}).Shape(want)
		case want != podlink.Shape{}:
			return fmt.Errorf("its far end: %w", link.ErrNoDevice)
		case receiver == nil || receiver.Type() != "ifb":
			return nil
		}
		gone, err := conn.Do(rtnetlink.DeleteLink(receiver.Attrs().Index))
		if err != nil {
			return err
		}
		return rtnetlink.UnlessGone(gone[0].Err)
	})
	switch {
	case err == nil, errors.Is(err, link.ErrNoNamespace) && want == podlink.Shape{}:
		return nil
	case errors.Is(err, link.ErrNoNamespace):
		return fmt.Errorf("shaping %s: its far end: %w: %w", name, link.ErrNoDevice, err)
	default:
		return fmt.Errorf("shaping %s: %w", name, err)
	}
}

// inPorts runs work on a thread in the namespace of veth peers.
func (p *Ports) inPorts(ctx context.Context, path string, work func() error) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	ports, err := netns.Open(path)
	if errors.Is(err, link.ErrNotNamespace) {
		err = errors.Join(link.ErrNoNamespace, err)
	}
	if err != nil {
		return err
	}
	defer ports.Close()
	return netns.OnThread(p.home, func() error {
		if err := ports.Enter(); err != nil {
			return err
		}
		return work()
	})
}
