package link

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// Check implements PodLinks.
func (p *Pods) Check(ctx context.Context, pair Pair) error {
	if err := errors.Join(pair.validate(), ctx.Err()); err != nil {
		return fmt.Errorf("pod link %s: %w", pair.HostName, err)
	}
	pod, err := openNamespace(pair.Netns)
	if err != nil {
		return fmt.Errorf("pod link %s: %w", pair.HostName, err)
	}
	defer pod.close()
	c := creation{Pods: p, pair: pair, pod: pod}
	if pair.Preplugged != "" {
		u, err := openOnPort(c)
		if err != nil {
			return fmt.Errorf("pod link %s: %w", pair.HostName, err)
		}
		defer u.close()
		return onThread(p.home, u.check)
	}
	return onThread(p.home, c.check)
}

// check works on a locked thread that starts in the home namespace.
func (c *creation) check() error {
	err := c.lookAtHost()
	if err == nil {
		c.peer, err = c.lookInPod()
	}
	if err != nil {
		return err
	}
	return c.compare(func() bool { return c.host == nil || c.paired(c.host, c.peer) }, "is not the other end of ")
}

// lookAtHost sets host: nil if it does not exist.
func (c *creation) lookAtHost() error {
	answers, err := c.conn.do(getLink(c.pair.HostName))
	if err != nil {
		return err
	}
	c.host = answers[0].link
	if c.host == nil && !errors.Is(answers[0].err, unix.ENODEV) {
		return fmt.Errorf("looking at host end %s: %w", c.pair.HostName, answers[0].err)
	}
	return nil
}

// compare compares host and peer, which were read before, with what Create makes. connected reports whether the two belong together; apart
// is the message about the peer if not.
func (c *creation) compare(connected func() bool, apart string) error {
	var found []error
	if c.host == nil {
		found = append(found, &Difference{c.hostObject(), "does not exist"})
	} else {
		have, err := readDevice(c.handle, c.host)
		if err != nil {
			return err
		}
		have.Owner = c.host.Attrs().Alias
		found = append(found, differences(c.hostObject(), c.pair.hostDevice(), have)...)
	}
	if c.peer == nil {
		return errors.Join(append(found, &Difference{c.podObject(), "does not exist"})...)
	}
	if !connected() {
		found = append(found, &Difference{c.podObject(), apart + c.pair.HostName})
	}
	inPod, err := c.checkPod()
	return errors.Join(append(append(found, inPod...), err)...)
}

func (c *creation) hostObject() string { return "host end " + c.pair.HostName }

func (c *creation) podObject() string { return "pod end " + c.pair.PodName }

// checkPod enters the pod's namespace and stays in it.
func (c *creation) checkPod() ([]error, error) {
	if err := c.pod.enter(); err != nil {
		return nil, err
	}
	handle, err := netlink.NewHandle(unix.NETLINK_ROUTE)
	if err != nil {
		return nil, fmt.Errorf("opening a netlink socket: %w", err)
	}
	defer handle.Close()
	have, err := readDevice(handle, c.peer)
	if err != nil {
		return nil, err
	}
	found := differences(c.podObject(), c.pair.podDevice(), have)
	routes, err := readRoutes(handle, map[int]string{c.peer.Attrs().Index: c.pair.PodName})
	if err != nil {
		return nil, err
	}
	return append(found, c.pair.compareRoutes(routes)...), nil
}

// compareRoutes compares the pod's routes with those read; it empties the map.
func (p *Pair) compareRoutes(have map[Key]*Route) []error {
	var found []error
	for _, want := range p.PodRoutes {
		route := p.podRoute(want)
		actual, ok := have[route.Key()]
		delete(have, route.Key())
		switch {
		case !ok:
			found = append(found, &Difference{route.String(), "does not exist"})
		case !route.Equal(actual):
			found = append(found, &Difference{route.String(), "is " + actual.String()})
		}
	}
	for _, stray := range have {
		if stray.Device != p.PodName {
			continue // the route of another interface of the pod, or of another program
		}
		found = append(found, &Difference{stray.String(), "should not exist"})
	}
	return found
}

func differences(object string, want, have *Device) []error {
	var found []error
	for _, line := range want.differences(have) {
		found = append(found, &Difference{object, line})
	}
	return found
}

// hostDevice is the host veth as Create makes it. Owner is the whole alias.
func (p *Pair) hostDevice() *Device {
	return &Device{
		Name: p.HostName, Owner: p.alias(), MTU: p.mtu(), Up: true, Group: p.HostGroup,
		Sysctls: hostSysctls(),
	}
}

// podDevice is the pod's end as Create makes it.
func (p *Pair) podDevice() *Device {
	return &Device{
		Name: p.PodName, MTU: p.mtu(), MAC: p.PodMAC, Up: true, TxOffload: p.offload(), Sysctls: p.podSysctls(),
		Addresses:     slices.Clone[[]netip.Prefix](p.PodAddresses),
		NoPrefixRoute: p.NoPrefixRoute,
	}
}

func (p *Pair) offload() Toggle {
	if p.TxOffloadOff && p.Preplugged == "" {
		return Off
	}
	return Leave
}
