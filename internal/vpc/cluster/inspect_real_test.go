//go:build real

package cluster_test

import (
	"context"
	"errors"
	"testing"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	kubeovn "weft.dev/weft/api/kubeovn/v1"
	"weft.dev/weft/internal/ovn/ovntest"
	"weft.dev/weft/internal/vpc/cluster"
)

// While a replica leads, its Inspector finds the rows that cannot be written, with the reason; once they can be, nothing differs.
func TestInspector(t *testing.T) {
	const name, port = "inspected", "inspected/10.0.1.2"
	central := ovntest.New(t, nil)
	central.Start(ovntest.Northbound)
	central.Nbctl("ls-add", "foreign", "--", "lsp-add", "foreign", port)
	ctx := t.Context()
	c := clientWith(t, name)
	vpc := &kubeovn.Vpc{ObjectMeta: metav1.ObjectMeta{Name: name}}
	subnet := &kubeovn.Subnet{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: kubeovn.SubnetSpec{Vpc: name, CIDRBlock: "10.0.1.0/24"}}
	must(t, c.Create(ctx, vpc))
	must(t, c.Create(ctx, subnet))
	inspector := &cluster.Inspector{}
	follows := func() {
		t.Helper()
		if _, err := inspector.Inspect(ctx); !errors.Is(err, cluster.ErrFollows) {
			t.Errorf("a replica that does not lead: %v", err)
		}
	}
	follows()
	stop := startWith(t, central, cluster.Options{
		Term: func(context.Context, client.Reader) (uint64, error) { return 1, nil }, Inspector: inspector,
	}, server.Config())
	ovntest.Eventually(t, "the row that cannot be written differs", func() bool {
		found, err := inspector.Inspect(ctx)
		if err != nil {
			return false // the loop has not started
		}
		for _, d := range found.Differences {
			if d.Wanted && !d.Held && d.Err != nil && d.Want.Text["name"] == port {
				return true
			}
		}
		return false
	})
	central.Nbctl("ls-del", "foreign")
	ovntest.Eventually(t, "nothing differs", func() bool {
		found, err := inspector.Inspect(ctx)
		must(t, err)
		return len(found.Differences) == 0 && found.Desired > 0 && found.Desired == found.Programmed
	})
	must(t, c.Delete(ctx, subnet))
	must(t, c.Delete(ctx, vpc))
	ovntest.Eventually(t, "everything is gone", func() bool {
		return apierrors.IsNotFound(c.Get(ctx, client.ObjectKeyFromObject(vpc), vpc)) && apierrors.IsNotFound(c.Get(ctx, client.ObjectKeyFromObject(subnet), subnet))
	})
	stop()
	follows()
}
