package ground

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"time"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"
)

// Keep is the address of a link that a restarting switch may make again at any time.
type Keep struct {
	Link    string
	Addr    netip.Prefix
	Addr6   netip.Prefix // invalid: none
	Gateway netip.Addr
	// Gateway6 is the IPv6 gateway; invalid: none.
	Gateway6 netip.Addr
	MTU      int
}

// KeepAddress acts as the node's network configuration daemon until the context ends: whenever the link appears or changes, it restores
// the link's address and the default route. It also checks every 2 s, in case an event was lost.
func (s Space) KeepAddress(ctx context.Context, k Keep, log *slog.Logger) error {
	ns, err := netns.GetFromPath(s.NetPath())
	if err != nil {
		return fmt.Errorf("open namespace %s: %w", s.Name, err)
	}
	h, err := netlink.NewHandleAt(ns, unix.NETLINK_ROUTE)
	if err != nil {
		_ = ns.Close()
		return fmt.Errorf("open netlink in %s: %w", s.Name, err)
	}
	go func() {
		defer func() { _ = ns.Close() }()
		defer h.Close()
		for ctx.Err() == nil {
			if err := k.watch(ctx, ns, h, log); err != nil {
				log.Warn("watching links stopped; starting again", "namespace", s.Name, "err", err)
			}
			select {
			case <-ctx.Done():
			case <-time.After(200 * time.Millisecond):
			}
		}
	}()
	return nil
}

var errWatchEnded = errors.New("the kernel ended the subscription")

func (k Keep) watch(ctx context.Context, ns netns.NsHandle, h *netlink.Handle, log *slog.Logger) error {
	done := make(chan struct{})
	defer close(done)
	updates := make(chan netlink.LinkUpdate, 64)
	if err := netlink.LinkSubscribeWithOptions(updates, done, netlink.LinkSubscribeOptions{Namespace: &ns}); err != nil {
		return fmt.Errorf("subscribe to links: %w", err)
	}
	for {
		if err := k.put(h); err != nil {
			log.Debug("the node's address is not in place yet", "link", k.Link, "err", err)
		}
		select {
		case <-ctx.Done():
			return nil
		case u, ok := <-updates:
			if !ok {
				return errWatchEnded
			}
			if u.Attrs() == nil || u.Attrs().Name != k.Link {
				continue
			}
		case <-time.After(2 * time.Second):
		}
	}
}

// put sets the link up with its address and route. If everything is correct, it changes nothing.
func (k Keep) put(h *netlink.Handle) error {
	link, err := h.LinkByName(k.Link)
	if err != nil {
		return fmt.Errorf("find %s: %w", k.Link, err)
	}
	if err := k.putAddress(h, link, netlink.FAMILY_V4, netlink.Addr{IPNet: ipNet(k.Addr)}); err != nil {
		return err
	}
	if link.Attrs().Flags&unix.IFF_UP == 0 {
		if err := h.LinkSetUp(link); err != nil {
			return fmt.Errorf("set %s up: %w", k.Link, err)
		}
	}
	if k.Addr6.IsValid() { // once the link is up: the kernel drops IPv6 addresses of a link that goes down
		if err := k.putAddress(h, link, netlink.FAMILY_V6, netlink.Addr{IPNet: ipNet(k.Addr6), Flags: unix.IFA_F_NODAD}); err != nil {
			return err
		}
	}
	if k.Gateway6.IsValid() {
		if err := putRoute(h, link, netlink.FAMILY_V6, k.Gateway6); err != nil {
			return err
		}
	}
	return putRoute(h, link, netlink.FAMILY_V4, k.Gateway)
}

// putAddress adds an address that the link lacks.
func (k Keep) putAddress(h *netlink.Handle, link netlink.Link, family int, want netlink.Addr) error {
	have, err := h.AddrList(link, family)
	if err != nil {
		return fmt.Errorf("list the addresses of %s: %w", k.Link, err)
	}
	for _, a := range have {
		if a.IPNet.String() == want.IPNet.String() {
			return nil
		}
	}
	if err := h.AddrReplace(link, &want); err != nil {
		return fmt.Errorf("give %s the address %s: %w", k.Link, want.IPNet, err)
	}
	return nil
}

// putRoute adds a default route that the link lacks.
func putRoute(h *netlink.Handle, link netlink.Link, family int, gateway netip.Addr) error {
	routes, err := h.RouteList(link, family)
	if err != nil {
		return fmt.Errorf("list the routes of %s: %w", link.Attrs().Name, err)
	}
	gw := gateway.AsSlice()
	for _, r := range routes {
		if isDefault(r) && r.Gw.Equal(gw) {
			return nil
		}
	}
	if err := h.RouteReplace(&netlink.Route{LinkIndex: link.Attrs().Index, Gw: gw}); err != nil {
		return fmt.Errorf("route by %s: %w", gateway, err)
	}
	return nil
}

func isDefault(r netlink.Route) bool {
	if r.Dst == nil {
		return true
	}
	ones, _ := r.Dst.Mask.Size()
	return ones == 0
}

// Await waits until the link has its address.
func (s Space) Await(ctx context.Context, k Keep) error {
	h, err := s.Handle()
	if err != nil {
		return err
	}
	defer h.Close()
	for {
		link, err := h.LinkByName(k.Link)
		if err == nil {
			addrs, _ := h.AddrList(link, netlink.FAMILY_V4)
			for _, a := range addrs {
				if a.IPNet.String() == ipNet(k.Addr).String() {
					return nil
				}
			}
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("%s in %s has no address %s: %w", k.Link, s.Name, k.Addr, ctx.Err())
		case <-time.After(20 * time.Millisecond):
		}
	}
}
