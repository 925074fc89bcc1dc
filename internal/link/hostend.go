package link

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"strings"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"
)

// HostEnd is the part of a host veth's state that another program may change; Watch reports such changes.
type HostEnd struct {
	// MTU in bytes.
	MTU int
	// Group is the device group.
	Group uint32
	// Up is the administrative state.
	Up bool
}

// String returns the host veth in the words of ip(8).
func (h HostEnd) String() string {
	state := "down"
	if h.Up {
		state = "up"
	}
	return fmt.Sprintf("mtu %d group %d %s", h.MTU, h.Group, state)
}

// hostEnd returns a link's state as a host veth, if it is one.
func hostEnd(link netlink.Link) (HostEnd, bool) {
	attrs := link.Attrs()
	ours := link.Type() == "veth" && strings.HasPrefix(attrs.Alias, PodAliasPrefix) && attrs.Group != DeadGroup
	return HostEnd{MTU: attrs.MTU, Group: attrs.Group, Up: attrs.Flags&net.FlagUp != 0}, ours
}

// HostEnds returns the host veths that exist in the process's own namespace, by name, without those that are being deleted.
func (p *Pods) HostEnds(ctx context.Context) (map[string]HostEnd, error) {
	if err := ctx.Err(); err != nil {
		return nil, fmt.Errorf("listing host ends: %w", err)
	}
	links, err := listLinks(p.lister)
	if err != nil {
		return nil, err
	}
	found := map[string]HostEnd{}
	for _, link := range links {
		if end, ours := hostEnd(link); ours {
			found[link.Attrs().Name] = end
		}
	}
	return found, nil
}

// Restore corrects a host veth. One that does not exist, or is being deleted, or is not Weft's, is left alone. What is correct already is
// not set: a switch iterates over all its ports for each change.
func (p *Pods) Restore(ctx context.Context, name string, want HostEnd) error {
	if err := errors.Join(ValidateName(name), ctx.Err()); err != nil {
		return fmt.Errorf("host end %s: %w", name, err)
	}
	answers, err := p.conn.do(getLink(name))
	if err == nil {
		err = unlessGone(answers[0].err)
	}
	if err != nil {
		return fmt.Errorf("looking at host end %s: %w", name, err)
	}
	if answers[0].link == nil {
		return nil
	}
	have, ours := hostEnd(answers[0].link)
	if !ours {
		return nil
	}
	list := want.over(have, answers[0].link.Attrs().Index)
	if len(list.requests) == 0 {
		return nil
	}
	if err := list.run(p.conn); err != nil && !errors.Is(err, unix.ENODEV) {
		return fmt.Errorf("host end %s: %w", name, err)
	}
	if have.MTU >= minIPv6MTU || want.MTU < minIPv6MTU {
		return nil
	}
	// With the MTU the device gets IPv6 back, with the namespace's defaults.
	err = onThread(p.home, func() error { return p.turn.do(func() error { return writeSysctls(name, hostSysctls()) }) })
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("host end %s: %w", name, err)
	}
	return nil
}

// over returns the requests that change a link from have to h. The group comes first: packets that rules by group must drop must not arrive
// on a link that is up without its group.
func (h HostEnd) over(have HostEnd, index int) *plan {
	list := &plan{}
	set := func(differs bool, what string, request *nl.NetlinkRequest) {
		if differs {
			list.add(what, request)
		}
	}
	set(have.Group != h.Group, "setting its group", setLink(index, groupAttr(h.Group)))
	set(have.MTU != h.MTU, "setting its mtu", setLink(index, mtuAttr(h.MTU)))
	set(have.Up != h.Up, "setting its state", setState(index, h.Up))
	return list
}
