package cluster

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	kubeovn "weft.dev/weft/api/kubeovn/v1"
	shared "weft.dev/weft/internal/cluster"
	"weft.dev/weft/internal/vpc/cluster/plan"
)

var errRefused = errors.New("refused")

// recorder is an API server that records writes, and refuses some of them.
type recorder struct {
	client.Client
	refuses string

	mu     sync.Mutex
	writes []string
}

func (r *recorder) write(verb string, object client.Object) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	what := fmt.Sprintf("%s %T", verb, object)
	if what == r.refuses {
		return errRefused
	}
	r.writes = append(r.writes, what)
	return nil
}

func (r *recorder) Create(_ context.Context, object client.Object, _ ...client.CreateOption) error {
	return r.write("create", object)
}

func (r *recorder) Update(_ context.Context, object client.Object, _ ...client.UpdateOption) error {
	return r.write("update", object)
}

func (r *recorder) Delete(_ context.Context, object client.Object, _ ...client.DeleteOption) error {
	return r.write("delete", object)
}

func (r *recorder) Status() client.SubResourceWriter { return recordedStatus{recorder: r} }

type recordedStatus struct {
	client.SubResourceWriter
	*recorder
}

func (s recordedStatus) Update(_ context.Context, object client.Object, _ ...client.SubResourceUpdateOption) error {
	return s.write("status", object)
}

func (s recordedStatus) Create(context.Context, client.Object, client.Object, ...client.SubResourceCreateOption) error {
	return errRefused
}

// An address is assigned in the plan in which its Subnet and its Vpc get their finalizers, but is written after them. If one of the finalizers
// cannot be written, the address is not either, and a later plan assigns it.
func TestAddressesAfterFinalizers(t *testing.T) {
	for _, refused := range []string{"", "update *v1.Vpc", "update *v1.Subnet"} {
		t.Run("refused "+refused, func(t *testing.T) {
			server := &recorder{refuses: refused}
			r := &reconciler{
				tools: shared.Tools{Client: server}, planner: plan.NewPlanner(), written: map[key]version{}, log: slog.New(slog.DiscardHandler),
			}
			r.knows(&kubeovn.Vpc{ObjectMeta: metav1.ObjectMeta{Name: "v", UID: "v"}})
			r.knows(&kubeovn.Subnet{ObjectMeta: metav1.ObjectMeta{Name: "s", UID: "s"}, Spec: kubeovn.SubnetSpec{Vpc: "v", CIDRBlock: "10.0.1.0/24"}})
			r.knows(&corev1.Pod{
				ObjectMeta: metav1.ObjectMeta{Namespace: "n", Name: "p", UID: "p", Annotations: map[string]string{kubeovn.AnnotationLogicalSwitch: "s"}},
				Spec:       corev1.PodSpec{NodeName: "n"},
			})
			errs := r.write(t.Context(), r.planner.Plan(metav1.Now()))
			created := slices.Index(server.writes, "create *v1.IP")
			if refused != "" {
				if !errors.Is(errors.Join(errs...), errRefused) || created >= 0 {
					t.Fatalf("errors %v; writes %v", errs, server.writes)
				}
				server.refuses = ""
				errs = r.write(t.Context(), r.planner.Plan(metav1.Now()))
				created = slices.Index(server.writes, "create *v1.IP")
			}
			held := max(slices.Index(server.writes, "update *v1.Vpc"), slices.Index(server.writes, "update *v1.Subnet"))
			if len(errs) > 0 || created < 0 || held > created {
				t.Errorf("errors %v; writes %v", errs, server.writes)
			}
		})
	}
}
