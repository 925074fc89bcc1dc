package link

import (
	"context"
	"errors"
	"fmt"
	"net"
	"strings"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"
)

// Spare is a veth pair made ahead of the pod that it will be of. Both ends are in the process's own namespace: the host's
// end is configured and up, the other one is down.
type Spare struct {
	// HostName is the name of the host's end, at most 14 bytes; see OtherName.
	HostName string
	// MTU of both ends in bytes; 0 is the kernel's default, 1500.
	MTU int
	// HostGroup is the device group of both ends. It is set in the request that makes them, before one can be up.
	HostGroup uint32
	// TxOffloadOff turns transmit checksumming and segmentation off on both ends.
	TxOffloadOff bool
}

// spareOwner starts the owners of pairs that were made ahead.
const spareOwner = "spare/"

// SpareOwner is the owner of a pair that was made ahead. It keeps it when a pod takes it: a change of the host's end, be it
// but of its alias, makes Open vSwitch go over all its ports.
func SpareOwner(hostName string) string { return spareOwner + hostName }

// IsSpareOwner reports whether a pair with that owner was made ahead.
func IsSpareOwner(owner string) bool { return strings.HasPrefix(owner, spareOwner) }

// OtherName is the name of a spare's other end, until it is a pod's.
func (s Spare) OtherName() string { return s.HostName + "c" }

func (s Spare) validate() error {
	return errors.Join(ValidateName(s.HostName), ValidateName(s.OtherName()))
}

func (s Spare) mtu() int {
	if s.MTU == 0 {
		return defaultMTU
	}
	return s.MTU
}

func (s Spare) alias() string { return PodAliasPrefix + SpareOwner(s.HostName) }

// Prepare implements PodLinks. Two round trips of netlink for all that are new.
func (p *Pods) Prepare(ctx context.Context, spares ...Spare) []error {
	failed := make([]error, len(spares))
	err := ctx.Err()
	if err == nil {
		err = onThread(p.home, func() error { return p.prepare(spares, failed) })
	}
	for i, s := range spares {
		if failed[i] == nil {
			failed[i] = err
		}
		if failed[i] != nil {
			failed[i] = fmt.Errorf("spare link %s: %w", s.HostName, failed[i])
		}
	}
	return failed
}

// prepare works on a locked thread in the home namespace. What is about one spare goes into failed.
func (p *Pods) prepare(spares []Spare, failed []error) error {
	var requests []*nl.NetlinkRequest
	for _, s := range spares {
		near := linkEnd{name: s.HostName, mtu: s.mtu(), group: s.HostGroup, netns: -1}
		far := linkEnd{name: s.OtherName(), mtu: s.mtu(), group: s.HostGroup, netns: -1}
		requests = append(requests, newVeth(near, far), getLink(s.HostName), getLink(s.OtherName()))
	}
	const each = 3
	answers, err := p.conn.do(requests...)
	if err != nil {
		return err
	}
	list := plan{}
	var which []int
	for i, s := range spares {
		made, host, other := answers[each*i], answers[each*i+1].link, answers[each*i+2].link
		switch {
		case s.validate() != nil:
			failed[i] = s.validate()
		case made.err != nil && !errors.Is(made.err, unix.EEXIST):
			failed[i] = fmt.Errorf("making the pair: %w", made.err)
		case !s.intact(host, other):
			failed[i] = ErrForeign
		default:
			failed[i] = p.turn.do(s.configure)
		}
		if failed[i] == nil {
			which = append(which, i)
			list.add("setting the alias", setLink(host.Attrs().Index, aliasAttr(s.alias())))
			list.add("setting the host end up", setState(host.Attrs().Index, true))
		}
	}
	if answers, err = p.conn.do(list.requests...); err != nil {
		return err
	}
	const after = 2
	for at, i := range which {
		failed[i] = all(answers[after*at:after*at+after], list.what)
	}
	return nil
}

// configure sets what goes by the ends' names.
func (s Spare) configure() error {
	err := errors.Join(writeSysctls(s.HostName, hostSysctls()), writeSysctls(s.OtherName(), hostSysctls()))
	if s.TxOffloadOff {
		err = errors.Join(err, setTxOffload(s.HostName, Off), setTxOffload(s.OtherName(), Off))
	}
	return err
}

// intact reports whether two links are the ends of the spare: still the pair that Prepare made, and the other end nobody's.
// One that a crash has left before it had its alias, which is before it was up, counts; and so does one whose other end
// somebody has set up, as tools do that configure all there is: whatever it was given there does not move along.
func (s Spare) intact(host, other netlink.Link) bool {
	if host == nil || other == nil || host.Type() != "veth" || other.Type() != "veth" {
		return false
	}
	a, b := host.Attrs(), other.Attrs()
	named := a.Alias == s.alias() || a.Alias == "" && a.Flags&net.FlagUp == 0
	return named && a.ParentIndex == b.Index && b.ParentIndex == a.Index &&
		a.NetNsID < 0 && b.NetNsID < 0 &&
		a.MTU == s.mtu() && b.MTU == s.mtu() && a.Group == s.HostGroup
}

// Spares implements PodLinks.
func (p *Pods) Spares(ctx context.Context) ([]Spare, error) {
	if err := ctx.Err(); err != nil {
		return nil, fmt.Errorf("listing spare links: %w", err)
	}
	links, err := listLinks(p.handle)
	if err != nil {
		return nil, err
	}
	byName := make(map[string]netlink.Link, len(links))
	for _, link := range links {
		byName[link.Attrs().Name] = link
	}
	var found []Spare
	for name, host := range byName {
		s := Spare{HostName: name, MTU: host.Attrs().MTU, HostGroup: host.Attrs().Group}
		if s.HostGroup != 0 && s.intact(host, byName[s.OtherName()]) {
			found = append(found, s)
		}
	}
	return found, nil
}

// takeSpare makes the spare the pod's pair: its other end becomes the pod's end. Nothing of the host's end changes.
func (c *creation) takeSpare() error {
	s := Spare{HostName: c.pair.HostName, MTU: c.pair.MTU, HostGroup: c.pair.HostGroup}
	answers, err := c.conn.do(getLink(s.HostName), getLink(s.OtherName()))
	if err != nil {
		return err
	}
	host, other := answers[0].link, answers[1].link
	if c.pair.Owner != SpareOwner(s.HostName) || !s.intact(host, other) || host.Attrs().Flags&net.FlagUp == 0 {
		return ErrNoSpare
	}
	c.host = host
	index := other.Attrs().Index
	attrs := []*nl.RtAttr{
		groupAttr(0),
		nl.NewRtAttr(unix.IFLA_NET_NS_FD, nl.Uint32Attr(uint32(c.pod.file.Fd()))),
		nl.NewRtAttr(unix.IFLA_IFNAME, nl.ZeroTerminated(c.pair.PodName)),
	}
	if len(c.pair.PodMAC) != 0 {
		attrs = append(attrs, macAttr(c.pair.PodMAC))
	}
	if answers, err = c.conn.do(setLink(index, attrs...)); err != nil {
		return err
	}
	c.made = true // from here on a failure leaves no spare
	if errors.Is(answers[0].err, unix.EEXIST) {
		return fmt.Errorf("%s in the pod: %w", c.pair.PodName, ErrForeign)
	}
	return all(answers, []string{"moving the pod end"})
}
