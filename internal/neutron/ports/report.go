package ports

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	weftv1 "weft.dev/weft/api/weft/v1"
)

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
	var errs []error
	for _, w := range all {
		if err := write(ctx, ps.opts.API, w.object, &w.status); err != nil {
			errs = append(errs, err)
			ps.mu.Lock()
			if p := ps.all[w.object.Name]; p != nil {
				p.sent = nil
			}
			ps.mu.Unlock()
		}
	}
	return errors.Join(errs...)
}

// write replaces the status. Only the agent writes these fields, so that no version is compared.
func write(ctx context.Context, api client.Client, object *weftv1.NeutronPort, status *weftv1.NeutronPortStatus) error {
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
		return fmt.Errorf("status of NeutronPort %s: %w", object.Name, err)
	}
	target := &weftv1.NeutronPort{ObjectMeta: metav1.ObjectMeta{Name: object.Name}}
	err = api.Status().Patch(ctx, target, client.RawPatch(types.MergePatchType, data))
	if client.IgnoreNotFound(err) != nil {
		return fmt.Errorf("write the status of NeutronPort %s: %w", object.Name, err)
	}
	return nil
}

func equalStatus(a, b *weftv1.NeutronPortStatus) bool {
	samePod := (a.Pod == nil) == (b.Pod == nil) && (a.Pod == nil || *a.Pod == *b.Pod)
	sameTime := (a.ReleasedAt == nil) == (b.ReleasedAt == nil) && (a.ReleasedAt == nil || a.ReleasedAt.Equal(b.ReleasedAt))
	return a.Plugged == b.Plugged && samePod && sameTime && a.Message == b.Message
}
