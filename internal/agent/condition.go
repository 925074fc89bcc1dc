package agent

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
)

// Reasons of the node's condition NetworkUnavailable.
const (
	reasonReady    = "WeftIsReady"
	reasonNotReady = "WeftIsNotReady"
)

// reportReady sets the node's condition NetworkUnavailable to False. It writes nothing if the condition is already so.
func reportReady(ctx context.Context, clients kubernetes.Interface, node string) error {
	return report(ctx, clients, node, corev1.NodeCondition{
		Type: corev1.NodeNetworkUnavailable, Status: corev1.ConditionFalse,
		Reason: reasonReady, Message: "Weft's agent serves this node's pods",
	})
}

// reportNotReady sets the node's condition NetworkUnavailable to True, with the reason as its message.
func reportNotReady(ctx context.Context, clients kubernetes.Interface, node string, why error) error {
	return report(ctx, clients, node, corev1.NodeCondition{
		Type: corev1.NodeNetworkUnavailable, Status: corev1.ConditionTrue, Reason: reasonNotReady, Message: why.Error(),
	})
}

// reportTimeout bounds a report, so that an API server that does not answer does not block the agent.
const reportTimeout = 5 * time.Second

func report(ctx context.Context, clients kubernetes.Interface, node string, want corev1.NodeCondition) error {
	ctx, cancel := context.WithTimeout(ctx, reportTimeout)
	defer cancel()
	have, err := clients.CoreV1().Nodes().Get(ctx, node, metav1.GetOptions{})
	if err != nil {
		return fmt.Errorf("condition of node %s: %w", node, err)
	}
	same := func(c corev1.NodeCondition) bool {
		return c.Type == want.Type && c.Status == want.Status && c.Reason == want.Reason && c.Message == want.Message
	}
	if slices.ContainsFunc(have.Status.Conditions, same) {
		return nil
	}
	now := metav1.NewTime(time.Now())
	want.LastHeartbeatTime, want.LastTransitionTime = now, now
	for _, c := range have.Status.Conditions {
		if c.Type == want.Type && c.Status == want.Status {
			want.LastTransitionTime = c.LastTransitionTime // only the reason or the message has changed
		}
	}
	patch, err := json.Marshal(map[string]any{"status": map[string]any{"conditions": []corev1.NodeCondition{want}}})
	if err != nil {
		return fmt.Errorf("condition of node %s: %w", node, err)
	}
	_, err = clients.CoreV1().Nodes().Patch(ctx, node, types.StrategicMergePatchType, patch, metav1.PatchOptions{}, "status")
	if err != nil {
		return fmt.Errorf("condition of node %s: %w", node, err)
	}
	return nil
}

// warningMax bounds the warnings in a node's condition, in bytes. The log has all of them.
const warningMax = 1024
