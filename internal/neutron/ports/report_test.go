package ports

import (
	"context"
	"fmt"
	"sync/atomic"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	weftv1 "weft.dev/weft/api/weft/v1"
)

// The ports of a burst are reported together, and each is free once the API server has answered: no pod waits for the watch, nor for the
// reports of other ports. A port that is being deleted meanwhile is not free.
func TestPortsAreReportedTogether(t *testing.T) {
	first, _, _, _ := switched(t)
	const count = 2 * writesAtOnce
	var objects []client.Object
	for i := range count {
		object := pluggedPort(fmt.Sprintf("0a:58:0a:f4:01:%02x", i), fmt.Sprintf("10.244.1.%d/16", i))
		object.Name, object.UID, object.Status.Plugged = fmt.Sprintf("%08x-0000-4000-8000-000000000000", i), types.UID(fmt.Sprint(i)), false
		objects = append(objects, object)
	}
	build := func() client.WithWatch {
		return fake.NewClientBuilder().WithScheme(first.opts.API.Scheme()).WithObjects(objects...).WithStatusSubresource(&weftv1.NeutronPort{}).Build()
	}
	behind, server := build(), build() // the watch shows nothing of what is written
	leaving := objects[0].GetName()
	if err := server.Get(t.Context(), client.ObjectKey{Name: leaving}, objects[0]); err != nil {
		t.Fatal(err)
	}
	objects[0].SetFinalizers([]string{"test/stays"})
	if err := server.Update(t.Context(), objects[0]); err != nil {
		t.Fatal(err)
	}
	if err := server.Delete(t.Context(), objects[0]); err != nil {
		t.Fatal(err)
	}
	var under atomic.Int32
	together := make(chan struct{})
	api := interceptor.NewClient(server, interceptor.Funcs{SubResourcePatch: func(
		ctx context.Context, c client.Client, subResource string, object client.Object, patch client.Patch, opts ...client.SubResourcePatchOption,
	) error {
		if under.Add(1) == writesAtOnce {
			close(together)
		}
		select {
		case <-together:
		case <-time.After(time.Minute):
			return fmt.Errorf("%d statuses are written at the same time, want %d", under.Load(), writesAtOnce)
		}
		return c.SubResource(subResource).Patch(ctx, object, patch, opts...)
	}})
	ps := New(Options{Node: "n1", Rows: first.opts.Rows, Objects: behind, API: api})
	if err := ps.Pass(t.Context()); err != nil {
		t.Fatal(err)
	}
	chosen := map[string]bool{}
	for {
		one, _, _ := ps.Choose("u", func(uuid string, _ *Spec) bool { return chosen[uuid] })
		if one == nil {
			break
		}
		chosen[one.UUID] = true
	}
	if len(chosen) != count-1 || chosen[leaving] {
		t.Errorf("%d of %d reported ports are free, the deleted one %t", len(chosen), count, chosen[leaving])
	}
	written := under.Load()
	if err := ps.Pass(t.Context()); err != nil {
		t.Fatal(err)
	}
	if again := under.Load() - written; again != 0 {
		t.Errorf("%d statuses that the watch has not shown are written again", again)
	}
	var now weftv1.NeutronPort
	if err := server.Get(t.Context(), client.ObjectKey{Name: leaving}, &now); err != nil {
		t.Fatal(err)
	}
	if !now.Status.Plugged || now.DeletionTimestamp.Equal(&metav1.Time{}) {
		t.Errorf("the deleted port: %+v", now.Status)
	}
}
