//go:build lab

package e2e

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"weft.dev/weft/test/traffic"
)

const idledAt = "idling.alpha.openshift.io/idled-at"

// The first connection to an idled Service creates the event that controllers of idled Services wait for. The first endpoint answers the
// connection, also if the annotation is removed some time before there is one.
func TestServiceIdled(t *testing.T) {
	s := newServiceScene(t, "idle")
	since := time.Now().Add(-time.Minute)
	made := s.service(t, "idle", func(o *corev1.Service) { o.Annotations = map[string]string{idledAt: since.UTC().Format(time.RFC3339)} })
	s.endpoints(t, "idle", "idle", endpointPorts(sourcePort))
	vip := port(netip.MustParseAddr(made.Spec.ClusterIP), 80)
	type result struct {
		answer traffic.Answer
		err    error
	}
	results := make(chan result, 1)
	// Before the agent has the annotation, the Service refuses connections.
	await(t, "the event NeedPods", func(ctx context.Context) error {
		short, cancel := context.WithTimeout(ctx, time.Second)
		defer cancel()
		if answer, err := traffic.Ask(short, s.near.Netns, "tcp", vip); err == nil {
			return fmt.Errorf("answered by %s before there is an endpoint", answer.Name)
		}
		return needPods(ctx, s.client, made, since)
	})
	go func() {
		conn, err := traffic.DialWaiting(t.Context(), s.near.Netns, "tcp", vip, 2*time.Minute)
		if err != nil {
			results <- result{err: err}
			return
		}
		answer, err := conn.Ask()
		results <- result{answer, errors.Join(err, conn.Close())}
	}()
	woken, err := s.client.CoreV1().Services("default").Get(t.Context(), made.Name, metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	delete(woken.Annotations, idledAt)
	if _, err := s.client.CoreV1().Services("default").Update(t.Context(), woken, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	silent(t, s.near.Netns, "tcp", vip)
	s.endpoints(t, "idle", "idle", endpointPorts(sourcePort), at(s.there))
	if got := <-results; got.err != nil || got.answer.Name != "there" || got.answer.Source != s.near.IPs[0] {
		t.Errorf("the connection that waited: %s, %v", got.answer, got.err)
	}
	settles(t, s.far.Netns, vip, "there")
}

// needPods returns an error until there is an event NeedPods about a Service after since.
func needPods(ctx context.Context, client kubernetes.Interface, about *corev1.Service, since time.Time) error {
	events, err := client.CoreV1().Events(about.Namespace).List(ctx, metav1.ListOptions{FieldSelector: "reason=NeedPods,involvedObject.name=" + about.Name})
	if err != nil {
		return err
	}
	for i := range events.Items {
		e := &events.Items[i]
		if e.InvolvedObject.Kind == "Service" && e.InvolvedObject.UID == about.UID && e.LastTimestamp.After(since) {
			return nil
		}
	}
	return fmt.Errorf("%d events NeedPods, none of the Service", len(events.Items))
}
