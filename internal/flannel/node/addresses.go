package node

import (
	"context"
	"log/slog"
	"maps"
	"net/netip"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"weft.dev/weft/internal/attach"
	"weft.dev/weft/internal/cni"
	"weft.dev/weft/internal/flannel/address"
	"weft.dev/weft/internal/flannel/handover"
	"weft.dev/weft/internal/network"
	"weft.dev/weft/internal/reconcile"
)

// leaveTimeout is how long an ADD waits for the removal of an attachment that has an address which the pod should have.
const leaveTimeout = time.Second

// refused returns an error in a pod's annotations.
func refused(req *cni.Request, err error) error {
	return cni.Errorf(cni.CodeRefused, "network %s: pod %s/%s: %w", Name, req.Args.PodNamespace, req.Args.PodName, err)
}

// nameOf returns the name for which an interface's addresses are kept.
func nameOf(namespace, pod, ifName string) address.Name {
	return address.Name{Namespace: namespace, Pod: pod, Interface: ifName}
}

// addresses chooses the addresses of pods.
type addresses struct {
	pool    address.Pool
	records network.Records
	log     *slog.Logger

	mu sync.Mutex
	// leaving are closed when the records of attachments are gone that an ADD waits for.
	leaving map[attach.Key]chan struct{}
}

func newAddresses(opts *Options) *addresses {
	book, err := address.Open(filepath.Join(opts.Node.StateDir, Name, "addresses.json"), nil)
	if err != nil {
		opts.Log.Warn("addresses kept for the next pods of their names are lost", "annotation", address.AnnotationSticky, "error", err)
	}
	return &addresses{pool: address.Pool{Book: book}, records: opts.Records, log: opts.Log, leaving: map[attach.Key]chan struct{}{}}
}

// choose returns the addresses of a new pod. used are those of the node's attachments.
func (a *addresses) choose(
	ctx context.Context, req *cni.Request, b *bridge, annotations map[string]string, used map[netip.Addr]attach.Key,
) ([]netip.Prefix, error) {
	asked, err := wishes(req, b, annotations)
	if err != nil {
		return nil, err
	}
	wish := address.Wish{Name: nameOf(req.Args.PodNamespace, req.Args.PodName, req.IfName), Asked: asked}
	left, err := a.awaitLeft(ctx, req, a.pool.Wanted(b.Ranges, wish), used)
	if err != nil {
		return nil, err
	}
	given, err := b.files.Assigned()
	if err != nil {
		return nil, cni.Errorf(cni.CodeIO, "network %s: %w", Name, err)
	}
	chosen, err := a.pool.Choose(b.Ranges, wish, func(addr netip.Addr) bool {
		_, is := used[addr]
		return is && !left[addr] || given[addr]
	})
	if err != nil {
		return nil, cni.Errorf(cni.CodeTryAgainLater, "network %s: pod %s/%s: %w", Name, req.Args.PodNamespace, req.Args.PodName, err)
	}
	prefixes := make([]netip.Prefix, len(chosen))
	for i, addr := range chosen {
		prefixes[i] = netip.PrefixFrom(addr, b.Ranges[i].Bits())
	}
	return prefixes, nil
}

// wishes returns the addresses that a pod asks for, by range: by annotation for eth0, or by the runtime (capability ips).
func wishes(req *cni.Request, b *bridge, annotations map[string]string) ([]netip.Addr, error) {
	asked := make([]netip.Addr, len(b.Ranges))
	if req.IfName == handover.Usual {
		var err error
		if asked, err = address.Asked(annotations, b.Ranges); err != nil {
			return nil, refused(req, err)
		}
	}
	if req.NetConf == nil {
		return asked, nil
	}
	seen := map[int]bool{}
	for _, text := range req.NetConf.RuntimeConfig.IPs {
		prefix, err := cni.ParseAddress(text)
		at, is := address.Place(b.Ranges, prefix.Addr())
		switch {
		case err != nil || !is || seen[at]:
			return nil, cni.Errorf(cni.CodeUnsupportedField, "runtimeConfig.ips: %q is not an address for a pod of this node's subnets %v, one of each", text, b.Ranges)
		case asked[at].IsValid() && asked[at] != prefix.Addr():
			return nil, cni.Errorf(cni.CodeUnsupportedField, "runtimeConfig.ips: the runtime asks for %s, and annotation %s of the pod for %s: leave one",
				prefix.Addr(), address.AnnotationIP, asked[at])
		}
		asked[at], seen[at] = prefix.Addr(), true
	}
	return asked, nil
}

// awaitLeft waits for attachments that are being removed and have addresses which the pod should have, such as the pod's former sandbox. It
// returns those addresses. If one is not free yet in the end, writing the plan fails, and it is waited for again.
func (a *addresses) awaitLeft(ctx context.Context, req *cni.Request, wanted []netip.Addr, used map[netip.Addr]attach.Key) (map[netip.Addr]bool, error) {
	left := map[netip.Addr]bool{}
	var attached map[attach.Key]bool
	waiting, cancel := context.WithTimeout(ctx, leaveTimeout)
	defer cancel()
	for _, addr := range wanted {
		key, is := used[addr]
		if !is || key == (attach.Key{ContainerID: req.ContainerID, IfName: req.IfName}) {
			continue
		}
		if attached == nil {
			attached = a.attached()
		}
		if attached[key] {
			continue
		}
		left[addr] = true
		select {
		case <-a.gone(key):
		case <-waiting.Done():
		}
		if ctx.Err() != nil {
			return nil, cni.Errorf(cni.CodeTryAgainLater, "network %s: address %s is being freed: %w", Name, addr, ctx.Err())
		}
	}
	return left, nil
}

func (a *addresses) attached() map[attach.Key]bool {
	out := map[attach.Key]bool{}
	for _, rec := range a.records.Attached() {
		out[rec.Key()] = true
	}
	return out
}

// gone is closed when the attachment's record has been deleted.
func (a *addresses) gone(key attach.Key) <-chan struct{} {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.leaving[key] == nil {
		a.leaving[key] = make(chan struct{})
	}
	return a.leaving[key]
}

// left reports that an attachment's record has been deleted.
func (a *addresses) left(key attach.Key) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if left := a.leaving[key]; left != nil {
		close(left)
		delete(a.leaving, key)
	}
}

// keep keeps the addresses of a pod that ends for the next pod of its name, if its annotation says so.
func (a *addresses) keep(rec *attach.Record) {
	d, err := detailsOf(rec)
	if err != nil || d.Sticky <= 0 || rec.PodName == "" {
		return
	}
	var had []netip.Addr
	for _, prefix := range rec.Addresses {
		had = append(had, prefix.Addr())
	}
	if err := a.pool.Book.Keep(nameOf(rec.PodNamespace, rec.PodName, rec.IfName), had, d.Sticky); err != nil {
		a.log.Warn("the addresses of a pod are kept only until the agent ends", "pod", rec.PodNamespace+"/"+rec.PodName, "error", err)
	}
}

// vacated records the node's addresses that may have tracked connections although no pod has them: those that a pod has left, and all
// outside the swept ranges. A new pod with such an address would inherit the connections. For an address without a pod, no new connection
// is tracked, because the judge drops its packets.
type vacated struct {
	mu    sync.Mutex
	swept []netip.Prefix
	left  map[netip.Addr]departure
	count uint64
}

// departure is a pod that has left an address: the owner of the judge's fragment for it, and a unique number.
type departure struct {
	owner  reconcile.Owner
	number uint64
}

// leave records that a pod was removed. The judge's fragment for it has been withdrawn before.
func (v *vacated) leave(rec *attach.Record) {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.count++
	for _, address := range rec.Addresses {
		v.left[address.Addr()] = departure{reconcile.Owner(rec.Key().Owner()), v.count}
	}
}

// departed returns the addresses that pods have left.
func (v *vacated) departed() map[netip.Addr]departure {
	v.mu.Lock()
	defer v.mu.Unlock()
	return maps.Clone(v.left)
}

// flushed records that the connections of these addresses were flushed. An address that was left again meanwhile stays.
func (v *vacated) flushed(addresses map[netip.Addr]departure) {
	v.mu.Lock()
	defer v.mu.Unlock()
	for address, of := range addresses {
		if v.left[address] == of {
			delete(v.left, address)
		}
	}
}

// sweep records that in the ranges only addresses of attached pods have connections.
func (v *vacated) sweep(ranges []netip.Prefix) {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.swept = slices.Clone(ranges)
}

// reused returns the addresses of a new pod that may have connections of other pods.
func (v *vacated) reused(rec *attach.Record) map[netip.Addr]departure {
	v.mu.Lock()
	defer v.mu.Unlock()
	out := map[netip.Addr]departure{}
	for _, address := range rec.Addresses {
		addr := address.Addr()
		swept := slices.ContainsFunc(v.swept, func(r netip.Prefix) bool { return r.Contains(addr) })
		if of, left := v.left[addr]; left || !swept {
			out[addr] = of
		}
	}
	return out
}

// owners returns the owners whose withdrawal has to be in effect before the addresses' connections are flushed.
func owners(addresses map[netip.Addr]departure) []reconcile.Owner {
	var out []reconcile.Owner
	for _, of := range addresses {
		if of.owner != "" && !slices.Contains(out, of.owner) {
			out = append(out, of.owner)
		}
	}
	return out
}
