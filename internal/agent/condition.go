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

// readyCondition is the node's condition NetworkUnavailable while its pods are served. They are served whatever the host's firewalls do; the
// message has their warning.
func readyCondition(warning string) corev1.NodeCondition {
	message := "Weft's agent serves this node's pods"
	if warning != "" {
		message += "; host firewall: " + warning[:min(len(warning), warningMax)]
	}
	return corev1.NodeCondition{Type: corev1.NodeNetworkUnavailable, Status: corev1.ConditionFalse, Reason: reasonReady, Message: message}
}

// reportReady sets the node's condition NetworkUnavailable to False. It writes nothing if the condition is already so.
func reportReady(ctx context.Context, clients kubernetes.Interface, node string) error {
	return report(ctx, clients, node, readyCondition(""))
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
	if hasCondition(have, want) {
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

// hasCondition reports whether a node has a condition with the same content; its times do not matter.
func hasCondition(node *corev1.Node, want corev1.NodeCondition) bool {
	return slices.ContainsFunc(node.Status.Conditions, func(c corev1.NodeCondition) bool {
		return c.Type == want.Type && c.Status == want.Status && c.Reason == want.Reason && c.Message == want.Message
	})
}

// warningMax bounds the warnings in a node's condition, in bytes. The log has all of them.
const warningMax = 1024
