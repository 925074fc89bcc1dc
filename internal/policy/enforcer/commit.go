package enforcer

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"time"

	"weft.dev/weft/internal/attach"
	"weft.dev/weft/internal/cni"
	"weft.dev/weft/internal/policy"
)

// isolationTimeout is how long an ADD waits for its pod's labels. The API server had the pod before the runtime did.
const isolationTimeout = 20 * time.Second

// HandOver hands over all changed fragments in one change, and reports whether there were any. It does not hand over unchanged fragments
// again. The caller holds the lock.
func (e *Enforcer) HandOver() bool {
	if !e.enforcing || e.compiler == nil {
		return false
	}
	var attachments []Attachment
	for key := range e.stale {
		for at, rec := range e.attached[key] {
			was, shown := e.shown[at]
			now := e.decide(&rec)
			if shown && was == now {
				continue
			}
			if now.narrower(was) {
				e.revoked.note(e.pods[key].gone())
			}
			e.shown[at] = now
			attachments = append(attachments, Attachment{Record: rec, Decision: now})
		}
	}
	e.stale = map[policy.Key]struct{}{}
	owners := e.compiler.Commit(e.index, attachments, e.closed, e.revoked.due)
	e.closed = nil
	e.revoked.hand(owners)
	return len(owners) > 0
}

// Narrow notes a revocation if a permission was revoked since the last call. gone says that the cause is a deleted pod: no program sends
// from its address any more, so the revocation is not urgent.
func (x *state) Narrow(gone bool) {
	if x.compiler != nil && x.compiler.Narrowed() {
		x.revoked.note(gone)
	}
}

// Await returns once the isolation of an attachment's pod is known and the pod's fragment is handed over, together with the rules that
// name its address. It takes the lock.
func (e *Enforcer) Await(ctx context.Context, rec *attach.Record) error {
	waiting, cancel := context.WithTimeout(ctx, isolationTimeout)
	defer cancel()
	for {
		e.lock.Lock()
		known := e.decide(rec).Known
		updated := e.updated
		e.stale[PodOf(rec)] = struct{}{}
		e.Hide(rec.Key()) // this ADD may itself have handed over another fragment, of earlier settings
		e.HandOver()
		e.Narrow(true)
		e.revoked.wake()
		e.lock.Unlock()
		if known {
			return nil
		}
		select {
		case <-updated:
		case <-waiting.Done():
			if errors.Is(ctx.Err(), context.Canceled) { // the request was cancelled, or another part of the ADD has failed
				return fmt.Errorf("waiting for the pod's labels: %w", ctx.Err())
			}
			return cni.Errorf(cni.CodeTryAgainLater, "pod %s/%s (UID %s) has not been received from the API server, or has ended: without its labels its isolation is not known: try again later",
				rec.PodNamespace, rec.PodName, rec.PodUID)
		}
	}
}

// Open is Attach for a caller that does not hold the lock. Await or Commit hands over the attachment's fragment.
func (e *Enforcer) Open(rec *attach.Record) {
	e.lock.Lock()
	defer e.lock.Unlock()
	e.Attach(rec)
}

// Close detaches attachments and hands over the resulting changes, without waiting. It takes the lock.
func (e *Enforcer) Close(recs ...attach.Record) {
	e.lock.Lock()
	defer e.lock.Unlock()
	for i := range recs {
		e.Detach(&recs[i])
	}
	e.HandOver()
	e.Narrow(true)
	e.revoked.wake()
}

// Commit hands over the changes. It takes the lock.
func (e *Enforcer) Commit() {
	e.lock.Lock()
	defer e.lock.Unlock()
	e.HandOver()
}

// Begin starts the handing over of changes. nodes are the addresses of the nodes, as pods of the namespace that represents them. It takes
// the lock.
func (e *Enforcer) Begin(nodes map[policy.Key][]netip.Addr) {
	e.lock.Lock()
	defer e.lock.Unlock()
	e.SetNodes(nodes)
	e.Enforce(true)
	e.HandOver()
}

// Move sets the nodes' addresses and the pod ranges of other nodes. It returns once the changes are in effect. It takes the lock.
func (e *Enforcer) Move(ctx context.Context, ranges map[string][]netip.Prefix, nodes map[policy.Key][]netip.Addr) error {
	e.lock.Lock()
	e.SetNodes(nodes)
	e.Place(ranges)
	e.Narrow(false)
	if e.HandOver() {
		e.revoked.changed()
	}
	handed := e.revoked.unsettled()
	e.lock.Unlock()
	return e.revoked.effective(ctx, handed)
}
