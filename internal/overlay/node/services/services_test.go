package services

import (
	"context"
	"errors"
	"log/slog"
	"net/netip"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"

	"weft.dev/weft/internal/service"
)

// What a node does not implement of a Service is reported on that Service with its UID, because kubectl describe finds events by UID.
func TestEventsOfServices(t *testing.T) {
	dns := &corev1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: "kube-system", Name: "dns", UID: "uid-of-dns"}}
	reported := &sinkOfEvents{}
	s := New(Options{
		Cache: cached{from: fake.NewClientBuilder().WithObjects(dns).Build()}, Node: "n1", Events: reported, Log: slog.New(slog.DiscardHandler),
	})
	warnings := []error{errors.New("port 53: affinity is not kept"), errors.New("port 54")}
	s.Report(t.Context(), service.Owner("kube-system", "dns"), warnings)
	s.Report(t.Context(), service.Owner("kube-system", "dns"), nil)
	s.Report(t.Context(), service.Owner("kube-system", "gone"), warnings)
	want := []string{"kube-system/dns uid-of-dns: port 53: affinity is not kept"}
	if diff := cmp.Diff(want, reported.events); diff != "" {
		t.Errorf("events (-want +got):\n%s", diff)
	}
}

// The cluster IP of a Service that another proxy serves is left to the host, and nothing else of it.
func TestServiceOfAnotherProxy(t *testing.T) {
	object := &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "web", Labels: map[string]string{labelProxy: "other"}},
		Spec: corev1.ServiceSpec{
			ClusterIP: "172.30.0.8", ClusterIPs: []string{"172.30.0.8"}, ExternalIPs: []string{"192.0.2.9"},
			Ports: []corev1.ServicePort{{Port: 80, Protocol: corev1.ProtocolTCP}},
		},
	}
	s := New(Options{Cache: cached{from: fake.NewClientBuilder().WithObjects(object).Build()}, Node: "n1", Log: slog.New(slog.DiscardHandler)})
	got, err := s.compile(t.Context(), client.ObjectKeyFromObject(object))
	if err != nil || len(got.Addresses) > 0 || !slices.Equal(got.Host, []netip.Addr{netip.MustParseAddr("172.30.0.8")}) {
		t.Errorf("%+v, %v", got, err)
	}
}

// cached is a cache with the objects of a client.
type cached struct {
	cache.Cache
	from client.Reader
}

// Get implements client.Reader.
func (c cached) Get(ctx context.Context, key client.ObjectKey, obj client.Object, opts ...client.GetOption) error {
	return c.from.Get(ctx, key, obj, opts...)
}

// sinkOfEvents records events as text.
type sinkOfEvents struct{ events []string }

// Service implements Events.
func (s *sinkOfEvents) Service(namespace, name, uid, note string) {
	s.events = append(s.events, namespace+"/"+name+" "+uid+": "+note)
}
