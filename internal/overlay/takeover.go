package overlay

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"weft.dev/weft/internal/attach"
	"weft.dev/weft/internal/attach/plan"
	"weft.dev/weft/internal/ipam"
	"weft.dev/weft/internal/link/podlink"
	"weft.dev/weft/internal/overlay/ports"
	"weft.dev/weft/internal/overlay/recovery"
	"weft.dev/weft/internal/overlay/settings"
)

// takeover takes over what the former process left: records, pre-plugged ports, links of pods.
type takeover struct {
	engines *Engines
	store   *attach.Store
	opts    *Options
	ports   *ports.Ports
	pods    *openPods
}

// resume makes the allocators continue after the last record. On the first call it takes over the records: attached ones become live.
func (t *takeover) resume(ctx context.Context, s *settings.Settings) error {
	former := t.ports.Numbers.Subnet() // only Update changes it
	if former == s.View.Local.Subnet {
		return nil
	}
	pool, err := ipam.NewPool(s.View.Local.Subnet)
	if err != nil {
		return fmt.Errorf("HostSubnet %s: %w", s.View.Local.Host, err)
	}
	if !former.IsValid() {
		if err := errors.Join(t.recover(ctx, s), t.takeOver(ctx)); err != nil {
			return err
		}
	}
	var last, own attach.Record
	for _, rec := range t.store.List() {
		if rec.Network == NetworkName && rec.Created.After(last.Created) {
			last = rec
		}
		if rec.Network == NetworkName && rec.Created.After(own.Created) && !t.ports.Preplugged.Has(rec.OFPort) {
			own = rec
		}
	}
	t.ports.Numbers.Resume(pool, &last, &own)
	return nil
}

// recover rebuilds unreadable records whose interfaces agree with the runtime's cache.
func (t *takeover) recover(ctx context.Context, s *settings.Settings) error {
	r := recovery.Recovery{
		Network: NetworkName, Gateway: s.Pipeline.Gateway, BootID: t.opts.BootID, Cache: t.opts.RuntimeCache, Store: t.store,
		Records: t.opts.Records, Preplugged: t.engines.Preplugged, Ports: t.opts.Ports, Log: t.opts.Log,
		Agrees: func(ctx context.Context, rec *attach.Record, prePlugged bool) error {
			pair, err := plan.Pair(rec, &s.Attachments)
			if err != nil {
				return err
			}
			if prePlugged {
				pair.Preplugged = t.opts.Ports
			}
			return errors.Join(s.Pipeline.CheckPod(settings.PodOf(rec)), plan.CheckPair(ctx, t.engines.Pods, rec, pair))
		},
	}
	return r.Run(ctx)
}

// takeOver takes over records, pre-plugged ports and pods' links from before the restart. It deletes links of no pod, and reaps those
// without a record.
func (t *takeover) takeOver(ctx context.Context) error {
	links, err := t.engines.Pods.List(ctx)
	if err != nil {
		return fmt.Errorf("links of pods: %w", err)
	}
	if err := t.ports.Preplugged.TakeOver(ctx); err != nil {
		return err
	}
	t.pods.inherit(t.opts.Records.Attached)
	known, recorded := map[string]bool{}, map[string]bool{}
	for _, rec := range t.store.List() {
		known[rec.Key().Owner()] = true
		if rec.BootID == t.opts.BootID {
			recorded[rec.HostInterface] = true
		}
	}
	var stray []string
	for name, o := range links {
		key, ok := attachment(o)
		switch {
		case podlink.IsPreplugged(o): // see ports.Preplugged.TakeOver
		case !ok && !recorded[name]: // of a version that made links before their pods
			stray = append(stray, name)
		case ok && !known[o]:
			t.opts.Log.Warn("pod link without a record, removing it", "link", name, "attachment", key.String())
			t.opts.Records.Reap(attach.Record{
				Network: NetworkName, ContainerID: key.ContainerID, IfName: key.IfName, HostInterface: name, BootID: t.opts.BootID,
			})
		}
	}
	if len(stray) == 0 {
		return nil
	}
	if err := t.engines.Pods.Delete(ctx, stray...); err != nil {
		return fmt.Errorf("links of no pod: %w", err)
	}
	return nil
}

// attachment returns the key of the attachment that an owner names.
func attachment(owner string) (attach.Key, bool) {
	id, isAttachment := strings.CutPrefix(owner, "attachment/")
	container, ifName, ok := strings.Cut(id, "/")
	return attach.Key{ContainerID: container, IfName: ifName}, isAttachment && ok
}
