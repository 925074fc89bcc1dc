package ports

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"golang.org/x/sync/errgroup"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	weftv1 "weft.dev/weft/api/weft/v1"
)

// writesAtOnce is the number of statuses that are written at the same time: a burst of pods waits for those of its ports.
const writesAtOnce = 8

// report writes the status of ports if it differs.
func (ps *Ports) report(ctx context.Context) error {
	type writing struct {
		object *weftv1.NeutronPort
		status weftv1.NeutronPortStatus
	}
	var all []writing
	ps.mu.Lock()
	for _, p := range ps.all {
		if p.object == nil {
			continue
		}
		status := p.status(ps.opts.Rows)
		if equalStatus(&status, &p.object.Status) {
			p.sent = nil
			continue
		}
		if p.sent != nil && equalStatus(&status, p.sent) && time.Since(p.sentAt) < resend {
			continue // the watch will show it
		}
		p.sent, p.sentAt = &status, time.Now()
		all = append(all, writing{p.object, status})
	}
	ps.wakeWaiting()
	ps.mu.Unlock()
	errs := make([]error, len(all))
	var writes errgroup.Group
	writes.SetLimit(writesAtOnce)
	for i, w := range all {
		writes.Go(func() error {
			now, err := write(ctx, ps.opts.API, w.object, &w.status)
			errs[i] = err
			ps.mu.Lock()
			defer ps.mu.Unlock()
			p := ps.all[w.object.Name]
			switch {
			case p == nil:
			case now == nil:
				p.sent = nil
			case p.object != nil && p.object.UID == now.UID: // the port may be free now: the watch would show the same later
				p.object = now
				ps.wakeWaiting()
			}
			return nil
		})
	}
	return errors.Join(append(errs, writes.Wait())...)
}

// write replaces the status, and returns the object as it is then; nil after an error, or if there is none. Only the agent writes these
// fields, so that no version is compared.
func write(ctx context.Context, api client.Client, object *weftv1.NeutronPort, status *weftv1.NeutronPortStatus) (*weftv1.NeutronPort, error) {
	fields := map[string]any{"plugged": nil, "pod": nil, "releasedAt": nil, "message": nil}
	if status.Plugged {
		fields["plugged"] = true
	}
	if status.Pod != nil {
		fields["pod"] = map[string]any{"namespace": status.Pod.Namespace, "name": status.Pod.Name, "uid": status.Pod.UID}
	}
	if status.ReleasedAt != nil {
		fields["releasedAt"] = status.ReleasedAt
	}
	if status.Message != "" {
		fields["message"] = status.Message
	}
	data, err := json.Marshal(map[string]any{"status": fields})
	if err != nil {
		return nil, fmt.Errorf("status of NeutronPort %s: %w", object.Name, err)
	}
	target := &weftv1.NeutronPort{ObjectMeta: metav1.ObjectMeta{Name: object.Name}}
	err = api.Status().Patch(ctx, target, client.RawPatch(types.MergePatchType, data))
	switch {
	case apierrors.IsNotFound(err):
		return nil, nil //nolint:nilnil // its deletion is no error
	case err != nil:
		return nil, fmt.Errorf("write the status of NeutronPort %s: %w", object.Name, err)
	}
	return target, nil
}

func equalStatus(a, b *weftv1.NeutronPortStatus) bool {
	samePod := (a.Pod == nil) == (b.Pod == nil) && (a.Pod == nil || *a.Pod == *b.Pod)
	sameTime := (a.ReleasedAt == nil) == (b.ReleasedAt == nil) && (a.ReleasedAt == nil || a.ReleasedAt.Equal(b.ReleasedAt))
	return a.Plugged == b.Plugged && samePod && sameTime && a.Message == b.Message
}
