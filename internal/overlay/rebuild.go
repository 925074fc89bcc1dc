package overlay

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"time"

	types100 "github.com/containernetworking/cni/pkg/types/100"

	"weft.dev/weft/internal/attach"
	"weft.dev/weft/internal/attach/plan"
	"weft.dev/weft/internal/cni"
)

// rebuildRecords rebuilds unreadable records of this network from what the runtime has cached of their ADD, if the pod's interface agrees
// with it in every detail. It runs before anything without a record is removed.
func (n *Network) rebuildRecords(ctx context.Context, s *settings) error {
	if len(n.store.Broken()) == 0 || n.opts.RuntimeCache == "" {
		return nil
	}
	cached, err := cni.ReadCache(n.opts.RuntimeCache)
	if err != nil {
		n.opts.Log.Error("the runtime's results cannot be read: no attachment record is rebuilt", "error", err)
		return nil
	}
	standing, err := n.engines.Standing.ListStanding(ctx, n.opts.Ports)
	if err != nil {
		return fmt.Errorf("pre-plugged ports: %w", err)
	}
	for _, broken := range n.store.Broken() {
		i := slices.IndexFunc(cached, func(c cni.Cached) bool { return broken.Is(attach.Key{ContainerID: c.ContainerID, IfName: c.IfName}) })
		if i < 0 {
			continue
		}
		rec, err := n.recordOf(&cached[i], s, broken.Modified)
		if err == nil {
			_, prePlugged := standing[rec.HostInterface]
			err = n.rebuild(ctx, s, rec, prePlugged)
		}
		if err != nil {
			n.opts.Log.Error("attachment record cannot be rebuilt", "path", broken.Path, "pod", cached[i].Args.PodNamespace+"/"+cached[i].Args.PodName, "error", err)
			continue
		}
		n.opts.Log.Warn("unreadable attachment record rebuilt", "attachment", rec.Key().String(), "pod", rec.PodNamespace+"/"+rec.PodName)
	}
	return nil
}

// errDetaching says that a request for the attachment is under way: a DEL removes what the record would describe.
var errDetaching = errors.New("a request for the attachment is under way")

// rebuild rebuilds one record, unless a request for its attachment is under way.
func (n *Network) rebuild(ctx context.Context, s *settings, rec attach.Record, prePlugged bool) error {
	unlock, free := n.opts.Records.TryLock(rec.Key())
	if !free {
		return errDetaching
	}
	defer unlock()
	return n.store.Rebuild(ctx, rec, func(rec attach.Record) error { return n.agrees(ctx, s, &rec, prePlugged) })
}

// recordOf returns the record of an attachment as the runtime's cache of its ADD describes it.
func (n *Network) recordOf(c *cni.Cached, s *settings, created time.Time) (attach.Record, error) {
	rec := attach.Record{
		Network: NetworkName, ContainerID: c.ContainerID, IfName: c.IfName, Netns: c.Netns,
		PodNamespace: c.Args.PodNamespace, PodName: c.Args.PodName, PodUID: c.Args.PodUID,
		Gateway: []netip.Addr{s.pipeline.Gateway}, BootID: n.opts.BootID, State: attach.Attached, Created: created,
	}
	own := slices.IndexFunc(c.Result.Interfaces, func(i *types100.Interface) bool { return i.Sandbox != "" && i.Name == c.IfName })
	if own < 0 {
		return rec, fmt.Errorf("the runtime's result has no interface %s in a sandbox", c.IfName)
	}
	at := c.Result.Interfaces[own]
	rec.MAC, rec.MTU = at.Mac, at.Mtu
	if rec.Netns == "" {
		rec.Netns = at.Sandbox
	}
	for _, i := range c.Result.Interfaces {
		if ofport, ok := attach.PortNumber(i.Name); ok && i.Sandbox == "" {
			rec.OFPort, rec.HostInterface = ofport, i.Name
		}
	}
	if rec.OFPort == 0 {
		return rec, errors.New("the runtime's result names no port of the switch")
	}
	for _, ip := range c.Result.IPs {
		if ip.Interface == nil || *ip.Interface != own {
			continue
		}
		addr, ok := netip.AddrFromSlice(ip.Address.IP)
		bits, _ := ip.Address.Mask.Size()
		if !ok {
			return rec, fmt.Errorf("the runtime's result has an invalid address: %s", ip.Address.String())
		}
		rec.Addresses = append(rec.Addresses, netip.PrefixFrom(addr.Unmap(), bits))
	}
	if len(rec.Addresses) == 0 || rec.MAC != plan.MAC(rec.Addresses).String() {
		return rec, fmt.Errorf("the runtime's result has addresses %v and MAC %s, which do not belong together", rec.Addresses, rec.MAC)
	}
	return rec, nil
}

// agrees returns an error unless the pod's interface and its port are those of the record.
func (n *Network) agrees(ctx context.Context, s *settings, rec *attach.Record, prePlugged bool) error {
	pair, err := plan.Pair(rec, &s.attachments)
	if err != nil {
		return err
	}
	if prePlugged {
		pair.Standing = n.opts.Ports
	}
	return errors.Join(s.pipeline.CheckPod(pod(rec)), checkPair(ctx, n.engines.Pods, rec, pair))
}
