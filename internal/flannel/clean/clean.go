// Package clean is the flannel network's part of removing Weft from a node: its tables, bridge, tunnel devices and files. It can also
// return a node with its pods to flannel.
package clean

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strings"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"weft.dev/weft/internal/cleanup"
	"weft.dev/weft/internal/flannel/fabric"
	"weft.dev/weft/internal/flannel/handover"
	"weft.dev/weft/internal/flannel/host"
	"weft.dev/weft/internal/flannel/node"
	"weft.dev/weft/internal/flannel/subnetenv"
	"weft.dev/weft/internal/link"
	"weft.dev/weft/internal/link/rtnetlink"
	"weft.dev/weft/internal/link/whole"
	"weft.dev/weft/internal/nft"
	"weft.dev/weft/internal/nft/ruleset"
	"weft.dev/weft/internal/reconcile"
)

// Part returns the flannel network's part.
func Part() cleanup.Part {
	return cleanup.Part{Name: node.Name, Run: remove, GiveBack: giveBack}
}

// remove removes what the agent and `weft flanneld` have created. It changes nothing on a node without their tables and bridge: flanneld's
// own device and files look the same.
func remove(ctx context.Context, o cleanup.Options) error {
	had, err := tables(ctx, o)
	bridges, failed := bridges()
	if err = errors.Join(err, failed); err != nil || !had && len(bridges) == 0 {
		return err
	}
	var errs []error
	devices, err := devices()
	errs = append(errs, err)
	for _, device := range append(bridges, devices...) {
		if err := netlink.LinkDel(device); err != nil && !errors.As(err, &netlink.LinkNotFoundError{}) {
			errs = append(errs, fmt.Errorf("link %s: %w", device.Attrs().Name, err))
			continue
		}
		o.Report("link " + device.Attrs().Name)
	}
	errs = append(errs, routes(o))
	return errors.Join(append(errs, o.Remove(filepath.Join(o.CNIConfDir, node.ConflistName)), o.Remove(subnetenv.DefaultPath))...)
}

// giveBack removes what only Weft has: its tables, and its marks on links. Pods, bridge, tunnel device, routes and the files of flannel's
// plugins stay, and the pods keep running.
func giveBack(ctx context.Context, o cleanup.Options) error {
	if _, err := tables(ctx, o); err != nil {
		return err
	}
	bridges, err := bridges()
	if err != nil {
		return err
	}
	all, err := links(func(netlink.Link) bool { return true })
	if err != nil {
		return err
	}
	errs := []error{inlineNexthops(ctx)}
	for _, l := range all {
		attrs := l.Attrs()
		is := func(index int) bool {
			return slices.ContainsFunc(bridges, func(b netlink.Link) bool { return b.Attrs().Index == index })
		}
		switch port := is(attrs.MasterIndex); {
		case is(attrs.Index), port && strings.HasPrefix(attrs.Alias, link.PodAliasPrefix):
			errs = append(errs, handover.Mark(attrs.Name, "", 0))
			o.Report("mark on link " + attrs.Name)
		case port && attrs.Group == host.PodGroup: // a pod's that was not taken over
			errs = append(errs, handover.Mark(attrs.Name, attrs.Alias, 0))
		}
	}
	return errors.Join(errs...)
}

// inlineNexthops makes routes name their gateways themselves, as flanneld's do, and removes the nexthop objects: flanneld could not delete
// a route that refers to one.
func inlineNexthops(ctx context.Context) error {
	engine, err := whole.NewEngine(whole.Options{Owns: fabric.Owns})
	if err != nil {
		return err
	}
	defer engine.Close()
	have, err := engine.Read(ctx)
	if err != nil {
		return err
	}
	change := reconcile.Change[whole.Key, whole.Item]{Set: map[whole.Key]whole.Item{}, Delete: map[whole.Key]whole.Item{}}
	for key, item := range have {
		switch item := item.(type) {
		case *whole.Nexthop:
			change.Delete[key] = item
		case *whole.Route:
			if item.Nexthop {
				inline := *item
				inline.Nexthop = false
				change.Set[key] = &inline
			}
		}
	}
	if change.Empty() {
		return nil
	}
	return engine.Commit(ctx, change)
}

// tables removes Weft's tables and its rules in other programs' chains, and reports whether there were any.
func tables(ctx context.Context, o cleanup.Options) (bool, error) {
	own := node.AllTables()
	for _, table := range host.Tables() {
		if !host.Flanneld(table.Name) {
			own = append(own, table)
		}
	}
	engine, err := ruleset.NewEngine(ruleset.Options{Tables: own, Foreign: true})
	if err != nil {
		return false, err
	}
	defer engine.Close()
	have, err := engine.Read(ctx)
	if err != nil || len(have) == 0 {
		return false, err
	}
	if err := engine.Commit(ctx, reconcile.Change[nft.Key, nft.Item]{Delete: have}); err != nil {
		return true, err
	}
	for key := range have {
		if key.Kind == nft.KindTable {
			o.Report(key.String())
		}
	}
	return true, nil
}

// bridges returns the bridges that the agent has created or adopted, by their marks.
func bridges() ([]netlink.Link, error) {
	return links(func(l netlink.Link) bool {
		return l.Type() == "bridge" && l.Attrs().Alias == link.AliasPrefix+node.Name
	})
}

// devices returns the tunnel devices, by flannel's names for them.
func devices() ([]netlink.Link, error) {
	prefixes := map[string]string{"vxlan": "flannel", "ipip": "flannel.ipip", "wireguard": "flannel-wg"}
	return links(func(l netlink.Link) bool {
		prefix, tunnel := prefixes[l.Type()]
		return tunnel && strings.HasPrefix(l.Attrs().Name, prefix)
	})
}

// routes removes the routes to other nodes' pods that are on no tunnel device, by the number of their protocol.
func routes(o cleanup.Options) error {
	var errs []error
	for _, family := range []int{netlink.FAMILY_V4, netlink.FAMILY_V6} {
		list, err := rtnetlink.Dump(func() ([]netlink.Route, error) {
			return netlink.RouteListFiltered(family, &netlink.Route{Protocol: whole.Protocol}, netlink.RT_FILTER_PROTOCOL)
		})
		if err != nil {
			errs = append(errs, fmt.Errorf("list routes: %w", err))
			continue
		}
		for i := range list {
			if err := netlink.RouteDel(&list[i]); err != nil && !errors.Is(err, unix.ESRCH) {
				errs = append(errs, fmt.Errorf("route to %s: %w", list[i].Dst, err))
				continue
			}
			o.Report(fmt.Sprintf("route to %s", list[i].Dst))
		}
	}
	return errors.Join(errs...)
}

func links(want func(netlink.Link) bool) ([]netlink.Link, error) {
	all, err := rtnetlink.Dump(netlink.LinkList)
	if err != nil {
		return nil, fmt.Errorf("list links: %w", err)
	}
	return slices.DeleteFunc(all, func(l netlink.Link) bool { return !want(l) }), nil
}
