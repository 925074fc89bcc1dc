package podveth

import (
	"context"
	"errors"
	"fmt"
	"io/fs"

	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	"weft.dev/weft/internal/link"
	"weft.dev/weft/internal/link/devconf"
	"weft.dev/weft/internal/link/netns"
	"weft.dev/weft/internal/link/podlink"
	"weft.dev/weft/internal/link/rtnetlink"
)

// HostEnds returns the host veths that exist in the process's own namespace, by name, without those that are being deleted.
func (p *Pods) HostEnds(ctx context.Context) (map[string]podlink.HostEnd, error) {
	if err := ctx.Err(); err != nil {
		return nil, fmt.Errorf("listing host ends: %w", err)
	}
	links, err := rtnetlink.ListLinks(p.lister)
	if err != nil {
		return nil, err
	}
	found := map[string]podlink.HostEnd{}
	for _, dev := range links {
		if end, ours := podlink.HostEndOf(dev); ours {
			found[dev.Attrs().Name] = end
		}
	}
	return found, nil
}

// Restore corrects a host veth. One that does not exist, or is being deleted, or is not Weft's, is left alone. What is correct already is
// not set: a switch iterates over all its ports for each change.
func (p *Pods) Restore(ctx context.Context, name string, want podlink.HostEnd) error {
	if err := errors.Join(link.ValidateName(name), ctx.Err()); err != nil {
		return fmt.Errorf("host end %s: %w", name, err)
	}
	answers, err := p.conn.Do(rtnetlink.GetLink(name))
	if err == nil {
		err = rtnetlink.UnlessGone(answers[0].Err)
	}
	if err != nil {
		return fmt.Errorf("looking at host end %s: %w", name, err)
	}
	if answers[0].Link == nil {
		return nil
	}
	have, ours := podlink.HostEndOf(answers[0].Link)
	if !ours {
		return nil
	}
	list := restoring(want, have, answers[0].Link.Attrs().Index)
	if list.Empty() {
		return nil
	}
	if err := list.Run(p.conn); err != nil && !errors.Is(err, unix.ENODEV) {
		return fmt.Errorf("host end %s: %w", name, err)
	}
	if have.MTU >= devconf.MinIPv6MTU || want.MTU < devconf.MinIPv6MTU {
		return nil
	}
	// With the MTU the device gets IPv6 back, with the namespace's defaults.
	err = netns.OnThread(p.home, func() error {
		return p.turn.Do(func() error { return devconf.WriteSysctls(name, podlink.HostSysctls()) })
	})
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("host end %s: %w", name, err)
	}
	return nil
}

// restoring returns the requests that change a host veth from have to want. The group comes first: packets that rules by group must drop must not arrive
// on a link that is up without its group.
func restoring(want, have podlink.HostEnd, index int) *rtnetlink.Plan {
	list := &rtnetlink.Plan{}
	set := func(differs bool, what string, request *nl.NetlinkRequest) {
		if differs {
			list.Add(what, request)
		}
	}
	set(have.Group != want.Group, "setting its group", rtnetlink.SetLink(index, rtnetlink.GroupAttr(want.Group)))
	set(have.MTU != want.MTU, "setting its mtu", rtnetlink.SetLink(index, rtnetlink.MTUAttr(want.MTU)))
	set(have.Up != want.Up, "setting its state", rtnetlink.SetState(index, want.Up))
	return list
}
