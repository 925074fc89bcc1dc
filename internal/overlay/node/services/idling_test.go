package services

import (
	"context"
	"log/slog"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	clientset "k8s.io/client-go/kubernetes/fake"

	"weft.dev/weft/internal/openflow"
	"weft.dev/weft/internal/service"
	"weft.dev/weft/internal/testwait"
)

func idledObject(uid, at string) *corev1.Service {
	object := &corev1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "web", UID: types.UID(uid)}}
	if at != "" {
		object.Annotations = map[string]string{service.AnnotationIdled: at, "other": "x"}
	}
	return object
}

// Clients of a Service that is no longer idled wait until it has endpoints, for at most two minutes.
func TestClientsOfAServiceThatWakesWait(t *testing.T) {
	start := time.Now()
	for _, c := range []struct {
		name  string
		after func(*idling) (waking bool, begins time.Duration)
		want  bool
	}{
		{"at once", func(d *idling) (bool, time.Duration) { return d.note(idledObject("u", ""), start) }, true},
		{"still", func(d *idling) (bool, time.Duration) {
			d.note(idledObject("u", ""), start)
			return d.note(idledObject("u", ""), start.Add(wakingTime-1))
		}, true},
		{"no longer", func(d *idling) (bool, time.Duration) {
			d.note(idledObject("u", ""), start)
			return d.note(idledObject("u", ""), start.Add(wakingTime))
		}, false},
		{"endpoints added and removed", func(d *idling) (bool, time.Duration) {
			d.note(idledObject("u", ""), start)
			d.served(types.NamespacedName{Namespace: "shop", Name: "web"})
			return d.note(idledObject("u", ""), start)
		}, false},
		{"it is idled again", func(d *idling) (bool, time.Duration) {
			d.note(idledObject("u", ""), start)
			return d.note(idledObject("u", "later"), start)
		}, false},
		{"another object of the name", func(d *idling) (bool, time.Duration) { return d.note(idledObject("v", ""), start) }, false},
		{"deleted and created again", func(d *idling) (bool, time.Duration) {
			d.gone(types.NamespacedName{Namespace: "shop", Name: "web"})
			return d.note(idledObject("u", ""), start)
		}, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			d := newIdling()
			if waking, begins := d.note(idledObject("u", "then"), start); waking || begins != 0 {
				t.Errorf("an idled Service: %v, %s", waking, begins)
			}
			waking, begins := c.after(d)
			if waking != c.want || begins > 0 && c.name != "at once" {
				t.Errorf("waits: %v, want %v; begins %s", waking, c.want, begins)
			}
		})
	}
}

// A packet that the switch reports becomes one event on the Service, in the form that controllers of idled Services expect: core/v1, reason
// NeedPods, and a time after the one at which the Service was idled.
func TestNeedPods(t *testing.T) {
	clients := clientset.NewClientset()
	d := newIdling()
	s := &Follower{Options: Options{Node: strings.Repeat("n", 250), Log: slog.New(slog.DiscardHandler), Clients: clients}, idling: d}
	idledAt := time.Now().Add(-time.Minute)
	d.note(idledObject("u", idledAt.Format(time.RFC3339)), time.Now())
	cookie := idlingCookie(types.NamespacedName{Namespace: "shop", Name: "web"})
	for range 5 {
		d.packet(&openflow.PacketIn{Cookie: cookie})
		d.packet(&openflow.PacketIn{Cookie: cookie + 1})
	}
	if len(d.asked) != 1 {
		t.Fatalf("%d events are to be made of packets at one time, want 1", len(d.asked))
	}
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	ended := make(chan error, 1)
	go func() { ended <- s.wakeIdled(ctx) }()
	var event corev1.Event
	testwait.Until(t, "there is an event", func() bool {
		list, err := clients.CoreV1().Events("shop").List(t.Context(), metav1.ListOptions{})
		if err != nil {
			t.Fatal(err)
		}
		if len(list.Items) > 0 {
			event = list.Items[0]
		}
		return len(list.Items) > 0
	})
	about := corev1.ObjectReference{Kind: "Service", APIVersion: "v1", Namespace: "shop", Name: "web", UID: "u"}
	if event.Reason != "NeedPods" || event.InvolvedObject != about || event.LastTimestamp.Time.Before(idledAt) || len(event.Name) > 253 {
		t.Errorf("event %+v", event)
	}
	cancel()
	if err := <-ended; err != nil {
		t.Error(err)
	}
}

// If clients of many idled Services come at once, events are limited by the node's budget. Later packets trigger the events for the other
// Services.
func TestNeedPodsHasABudget(t *testing.T) {
	d := newIdling()
	for i := range 3 * needPodsBurst {
		object := idledObject("u", "then")
		object.Name = strings.Repeat("x", i+1)
		d.note(object, time.Now())
		d.packet(&openflow.PacketIn{Cookie: idlingCookie(types.NamespacedName{Namespace: "shop", Name: object.Name})})
	}
	if len(d.asked) != needPodsBurst {
		t.Errorf("%d events at once, want %d", len(d.asked), needPodsBurst)
	}
}
