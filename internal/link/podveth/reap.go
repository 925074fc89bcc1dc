package podveth

import (
	"context"
	"errors"
	"fmt"
	"net"
	"strings"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	"weft.dev/weft/internal/link"
	"weft.dev/weft/internal/link/podlink"
	"weft.dev/weft/internal/link/rtnetlink"
)

// Delete implements podlink.Links. A removal of a device waits for all processors to pass a quiescent state (RCU), some milliseconds; a removal
// of hundreds at once takes as long. So the links are set down, moved to DeadGroup, and the group is deleted in one request. They are down
// before they leave their group, so that rules by group match every frame of theirs.
func (p *Pods) Delete(ctx context.Context, hostNames ...string) error {
	if err := ctx.Err(); err != nil {
		return fmt.Errorf("deleting pod links: %w", err)
	}
	indexes, refused, err := p.lookUp(hostNames)
	if err != nil {
		return fmt.Errorf("deleting pod links: %w", err)
	}
	if len(indexes) > 0 {
		refused = append(refused, p.reap(indexes))
	}
	return errors.Join(refused...)
}

// deletable reports whether a link is a pod's: a veth with the alias, or one that a crash left before it got one.
func deletable(dev netlink.Link) bool {
	attrs := dev.Attrs()
	fresh := attrs.Alias == "" && attrs.Flags&net.FlagUp == 0
	return dev.Type() == "veth" && (fresh || strings.HasPrefix(attrs.Alias, link.PodAliasPrefix))
}

// lookUp looks up the names. Names that do not exist, or are invalid, are ignored.
func (p *Pods) lookUp(hostNames []string) (indexes []int, refused []error, err error) {
	var requests []*nl.NetlinkRequest
	var names []string
	for _, name := range hostNames {
		if link.ValidateName(name) == nil {
			names = append(names, name)
			requests = append(requests, rtnetlink.GetLink(name))
		}
	}
	answers, err := p.conn.Do(requests...)
	if err != nil {
		return nil, nil, err
	}
	for i, a := range answers {
		switch {
		case errors.Is(a.Err, unix.ENODEV):
		case a.Err != nil:
			refused = append(refused, fmt.Errorf("looking at link %s: %w", names[i], a.Err))
		case !deletable(a.Link):
			refused = append(refused, fmt.Errorf("link %s (%s, alias %q): %w", names[i], a.Link.Type(), a.Link.Attrs().Alias, link.ErrForeign))
		default:
			indexes = append(indexes, a.Link.Attrs().Index)
		}
	}
	return indexes, refused, nil
}

func (p *Pods) reap(indexes []int) error {
	if len(indexes) == 1 {
		answers, err := p.reaper.Do(rtnetlink.DeleteLink(indexes[0]))
		if err == nil {
			err = rtnetlink.UnlessGone(answers[0].Err)
		}
		if err != nil {
			return fmt.Errorf("deleting a pod link: %w", err)
		}
		return nil
	}
	var requests []*nl.NetlinkRequest
	for _, index := range indexes {
		requests = append(requests, rtnetlink.SetState(index, false), rtnetlink.SetLink(index, rtnetlink.GroupAttr(podlink.DeadGroup)))
	}
	answers, err := p.reaper.Do(append(requests, rtnetlink.DeleteGroup(podlink.DeadGroup))...)
	if err != nil {
		return fmt.Errorf("deleting %d pod links: %w", len(indexes), err)
	}
	for _, a := range answers {
		if err := rtnetlink.UnlessGone(a.Err); err != nil {
			return fmt.Errorf("deleting %d pod links: %w", len(indexes), err)
		}
	}
	return nil
}

// List implements podlink.Links.
func (p *Pods) List(ctx context.Context) (map[string]string, error) {
	if err := ctx.Err(); err != nil {
		return nil, fmt.Errorf("listing pod links: %w", err)
	}
	links, err := rtnetlink.ListLinks(p.lister)
	if err != nil {
		return nil, err
	}
	return podOwners(links), nil
}

// podOwners returns the owners of those links that are of pods, by name.
func podOwners(links []netlink.Link) map[string]string {
	found := map[string]string{}
	for _, dev := range links {
		if owner, ok := strings.CutPrefix(dev.Attrs().Alias, link.PodAliasPrefix); ok && dev.Type() == "veth" {
			found[dev.Attrs().Name] = owner
		}
	}
	return found
}
