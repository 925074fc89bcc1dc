package podveth

import (
	"context"
	"errors"
	"fmt"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"weft.dev/weft/internal/link/devconf"
	"weft.dev/weft/internal/link/netns"
	"weft.dev/weft/internal/link/podlink"
	"weft.dev/weft/internal/link/rtnetlink"
)

// Check implements podlink.Links.
func (p *Pods) Check(ctx context.Context, pair podlink.Pair) error {
	if err := errors.Join(pair.Validate(), ctx.Err()); err != nil {
		return fmt.Errorf("pod link %s: %w", pair.HostName, err)
	}
	pod, err := netns.Open(pair.Netns)
	if err != nil {
		return fmt.Errorf("pod link %s: %w", pair.HostName, err)
	}
	defer pod.Close()
	c := creation{Pods: p, pair: pair, pod: pod}
	if pair.Preplugged != "" {
		u, err := openOnPort(c)
		if err != nil {
			return fmt.Errorf("pod link %s: %w", pair.HostName, err)
		}
		defer u.close()
		return netns.OnThread(p.home, u.check)
	}
	return netns.OnThread(p.home, c.check)
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
	answers, err := c.conn.Do(rtnetlink.GetLink(c.pair.HostName))
	if err != nil {
		return err
	}
	c.host = answers[0].Link
	if c.host == nil && !errors.Is(answers[0].Err, unix.ENODEV) {
		return fmt.Errorf("looking at host end %s: %w", c.pair.HostName, answers[0].Err)
	}
	return nil
}

// compare compares host and peer, which were read before, with what Create makes. connected reports whether the two belong together; apart
// is the message about the peer if not.
func (c *creation) compare(connected func() bool, apart string) error {
	var found []error
	if c.host == nil {
		found = append(found, &podlink.Difference{Object: c.pair.HostObject(), Problem: "does not exist"})
	} else {
		have, err := devconf.ReadDevice(c.handle, c.host)
		if err != nil {
			return err
		}
		have.Owner = c.host.Attrs().Alias
		found = append(found, podlink.Differences(c.pair.HostObject(), c.pair.HostDevice(), have)...)
	}
	if c.peer == nil {
		return errors.Join(append(found, &podlink.Difference{Object: c.pair.PodObject(), Problem: "does not exist"})...)
	}
	if !connected() {
		found = append(found, &podlink.Difference{Object: c.pair.PodObject(), Problem: apart + c.pair.HostName})
	}
	inPod, err := c.checkPod()
	return errors.Join(append(append(found, inPod...), err)...)
}

// checkPod enters the pod's namespace and stays in it.
func (c *creation) checkPod() ([]error, error) {
	if err := c.pod.Enter(); err != nil {
		return nil, err
	}
	handle, err := netlink.NewHandle(unix.NETLINK_ROUTE)
	if err != nil {
		return nil, fmt.Errorf("opening a netlink socket: %w", err)
	}
	defer handle.Close()
	have, err := devconf.ReadDevice(handle, c.peer)
	if err != nil {
		return nil, err
	}
	found := podlink.Differences(c.pair.PodObject(), c.pair.PodDevice(), have)
	routes, err := rtnetlink.ReadRoutes(handle, map[int]string{c.peer.Attrs().Index: c.pair.PodName})
	if err != nil {
		return nil, err
	}
	return append(found, c.pair.CompareRoutes(routes)...), nil
}
