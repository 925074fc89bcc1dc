package node

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"weft.dev/weft/internal/attach"
	"weft.dev/weft/internal/vpc/nat"
)

// said is what the condition of a gateway's pod says, for which its readiness waits.
type said struct {
	status          corev1.ConditionStatus
	reason, message string
}

// outcome is the outcome of programming a gateway.
type outcome struct {
	rec attach.Record
	said
	at time.Time
}

// failureAge is how long the reason of a failure is not replaced by another one: of several failures, each attempt may find another.
const failureAge = time.Minute

// conclude records the outcome of programming a gateway, for the report, unless the gateway was closed meanwhile. hash is that of what it has
// without an error.
func (g *gateways) conclude(made *natGateway, hash string, err error) {
	now := outcome{rec: made.rec, said: said{corev1.ConditionTrue, "Programmed", hash}, at: time.Now()}
	if err != nil {
		now.said = said{corev1.ConditionFalse, nat.ReasonFailed, bounded(err)}
	}
	key := made.rec.Key()
	g.mu.Lock()
	defer g.mu.Unlock()
	last := g.outcomes[key]
	if g.open[key] != made || err != nil && last.reason == nat.ReasonFailed && now.at.Sub(last.at) < failureAge {
		return
	}
	g.outcomes[key] = now
	signal(g.report)
}

// reportAll reports outcomes that are not reported yet. Of several outcomes during a report, only the last is reported.
func (g *gateways) reportAll(ctx context.Context) error {
	g.mu.Lock()
	due := maps.Clone(g.outcomes)
	maps.DeleteFunc(due, func(key attach.Key, now outcome) bool { return g.reported[key] == now.said })
	g.mu.Unlock()
	var errs []error
	for _, now := range due {
		errs = append(errs, g.reportOne(ctx, &now))
	}
	return errors.Join(errs...)
}

func (g *gateways) reportOne(ctx context.Context, now *outcome) error {
	key := now.rec.Key()
	g.mu.Lock()
	before := g.reported[key]
	delete(g.reported, key) // not known until the API server answers
	g.mu.Unlock()
	if err := g.patch(ctx, &now.rec, now.said, before.status); err != nil {
		return err
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	if _, there := g.outcomes[key]; there {
		g.reported[key] = now.said
	}
	return nil
}

// maxFailure limits the text of a failure in a condition, in bytes.
const maxFailure = 1024

func bounded(err error) string {
	text := err.Error()
	return strings.ToValidUTF8(text[:min(len(text), maxFailure)], "")
}

// denyTimeout limits the request of deny.
const denyTimeout = 2 * time.Second

// deny reports why the ADD of a gateway's pod fails, for the controller's report on the VpcNatGateway.
func (g *gateways) deny(ctx context.Context, rec *attach.Record, reason, message string) {
	ctx, cancel := context.WithTimeout(ctx, denyTimeout)
	defer cancel()
	if err := g.patch(ctx, rec, said{corev1.ConditionFalse, reason, message}, ""); err != nil {
		g.deps.Log.Warn("why a NAT gateway has no state could not be reported", "gateway", gatewayOf(rec), "error", err)
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	for key, other := range g.outcomes { // a later sandbox of the pod may have been reported meanwhile
		if other.rec.PodUID == rec.PodUID {
			delete(g.reported, key)
			signal(g.report)
		}
	}
}

// patch writes the condition of the gateway's pod, unless it has it already. before is the status that the condition has; empty: unknown.
func (g *gateways) patch(ctx context.Context, rec *attach.Record, s said, before corev1.ConditionStatus) error {
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: rec.PodNamespace, Name: rec.PodName}}
	if before == "" {
		have := g.conditionOf(ctx, pod)
		if have.Status == s.status && have.Reason == s.reason && have.Message == s.message {
			return nil // as after a restart of the agent
		}
		before = have.Status
	}
	condition := map[string]any{"type": nat.Condition, "status": s.status, "reason": s.reason, "message": s.message}
	if before != s.status {
		condition["lastTransitionTime"] = metav1.Now()
	}
	meta := map[string]any{}
	if rec.PodUID != "" {
		meta["uid"] = rec.PodUID // a later pod of this name is another one
	}
	patch, err := json.Marshal(map[string]any{"metadata": meta, "status": map[string]any{"conditions": []any{condition}}})
	if err != nil {
		return fmt.Errorf("encode the condition of pod %s/%s: %w", rec.PodNamespace, rec.PodName, err)
	}
	err = g.deps.API.Status().Patch(ctx, pod, client.RawPatch(types.StrategicMergePatchType, patch))
	if apierrors.IsConflict(err) {
		return nil // another pod has the name
	}
	if client.IgnoreNotFound(err) != nil {
		return fmt.Errorf("report on pod %s/%s: %w", rec.PodNamespace, rec.PodName, err)
	}
	return nil
}

// conditionOf returns the condition that a pod has; the zero value if it has none, or the API server does not answer.
func (g *gateways) conditionOf(ctx context.Context, pod *corev1.Pod) corev1.PodCondition {
	var now corev1.Pod
	if err := g.deps.API.Get(ctx, client.ObjectKeyFromObject(pod), &now); err != nil {
		return corev1.PodCondition{}
	}
	for _, condition := range now.Status.Conditions {
		if condition.Type == nat.Condition {
			return condition
		}
	}
	return corev1.PodCondition{}
}
