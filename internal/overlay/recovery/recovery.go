// Package recovery rebuilds unreadable attachment records from what the container runtime has cached of their ADD. It keeps no state.
package recovery

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"slices"
	"time"

	types100 "github.com/containernetworking/cni/pkg/types/100"

	"weft.dev/weft/internal/attach"
	"weft.dev/weft/internal/attach/plan"
	"weft.dev/weft/internal/cni"
	"weft.dev/weft/internal/link/podlink"
	"weft.dev/weft/internal/network"
)

// Recovery rebuilds the records of one network.
type Recovery struct {
	// Network is the network's name in records, and Gateway the address of its pods' gateway.
	Network string
	Gateway netip.Addr
	// BootID is the node's boot.
	BootID string
	// Cache is the directory where the container runtime caches the results of ADD. Empty: nothing is rebuilt.
	Cache string
	// Store has the records, and Records locks them.
	Store   *attach.Store
	Records network.Records
	// Preplugged lists the pre-plugged ports whose peers are in the namespace Ports.
	Preplugged podlink.PrepluggedLinks
	Ports      string
	// Agrees returns an error unless the pod's interface and its port are those of the record. prePlugged says that it is on a pre-plugged
	// port.
	Agrees func(ctx context.Context, rec *attach.Record, prePlugged bool) error
	// Log gets what cannot be rebuilt.
	Log *slog.Logger
}

// Run rebuilds unreadable records, if the pod's interface agrees with the runtime's cache in every detail. Call it before anything without
// a record is removed.
func (r *Recovery) Run(ctx context.Context) error {
	if len(r.Store.Broken()) == 0 || r.Cache == "" {
		return nil
	}
	cached, err := cni.ReadCache(r.Cache)
	if err != nil {
		r.Log.Error("the runtime's results cannot be read: no attachment record is rebuilt", "error", err)
		return nil
	}
	preplugged, err := r.Preplugged.ListPreplugged(ctx, r.Ports)
	if err != nil {
		return fmt.Errorf("pre-plugged ports: %w", err)
	}
	for _, broken := range r.Store.Broken() {
		i := slices.IndexFunc(cached, func(c cni.Cached) bool { return broken.Is(attach.Key{ContainerID: c.ContainerID, IfName: c.IfName}) })
		if i < 0 {
			continue
		}
		rec, err := r.record(&cached[i], broken.Modified)
		if err == nil {
			_, prePlugged := preplugged[rec.HostInterface]
			err = r.rebuild(ctx, rec, prePlugged)
		}
		if err != nil {
			r.Log.Error("attachment record cannot be rebuilt", "path", broken.Path, "pod", cached[i].Args.PodNamespace+"/"+cached[i].Args.PodName, "error", err)
			continue
		}
		r.Log.Warn("unreadable attachment record rebuilt", "attachment", rec.Key().String(), "pod", rec.PodNamespace+"/"+rec.PodName)
	}
	return nil
}

// errDetaching says that a request for the attachment is under way: a DEL removes what the record would describe.
var errDetaching = errors.New("a request for the attachment is under way")

// rebuild rebuilds one record, unless a request for its attachment is under way.
func (r *Recovery) rebuild(ctx context.Context, rec attach.Record, prePlugged bool) error {
	unlock, free := r.Records.TryLock(rec.Key())
	if !free {
		return errDetaching
	}
	defer unlock()
	return r.Store.Rebuild(ctx, rec, func(rec attach.Record) error { return r.Agrees(ctx, &rec, prePlugged) })
}

// record returns the record of an attachment as the runtime's cache of its ADD describes it.
func (r *Recovery) record(c *cni.Cached, created time.Time) (attach.Record, error) {
	rec := attach.Record{
		Network: r.Network, ContainerID: c.ContainerID, IfName: c.IfName, Netns: c.Netns,
		PodNamespace: c.Args.PodNamespace, PodName: c.Args.PodName, PodUID: c.Args.PodUID,
		Gateway: []netip.Addr{r.Gateway}, BootID: r.BootID, State: attach.Attached, Created: created,
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
