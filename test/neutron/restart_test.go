//go:build lab

package neutron

import (
	"context"
	"testing"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"sigs.k8s.io/controller-runtime/pkg/client"

	stackubev1 "weft.dev/weft/api/stackube/v1"
	weftv1 "weft.dev/weft/api/weft/v1"
)

// restartWritesNothing restarts the controller and checks that it writes nothing to OpenStack in two whole reconciles of every object.
// reads are what the controller reads of OpenStack in them.
func (c *controllerUnderTest) restartWritesNothing(ctx context.Context, t *testing.T, reads ...string) {
	t.Helper()
	c.stop()
	c.way.Taken()
	waits := outOfStep(ctx, t, c.kube)
	c.start(ctx, t)
	waits.untilNone(ctx, t)
	// An object's second reconcile begins after the first one has ended.
	outOfStep(ctx, t, c.kube).untilNone(ctx, t)
	for _, path := range reads {
		if !c.way.Read(path) {
			t.Errorf("after a restart the controller has not asked for %s", path)
		}
	}
	if written := c.way.Taken(); len(written) > 0 {
		t.Errorf("after a restart the controller wrote to OpenStack: %v", written)
	}
}

// unreconciled are objects, by their kind and name, each with a look whether the controller has reconciled it.
type unreconciled map[string]func(context.Context) (bool, error)

// untilNone waits until all objects are reconciled, or deleted.
func (u unreconciled) untilNone(ctx context.Context, t *testing.T) {
	t.Helper()
	for what, reconciled := range u {
		for {
			done, err := reconciled(ctx)
			if done || apierrors.IsNotFound(err) {
				break
			}
			select {
			case <-ctx.Done():
				t.Fatalf("%s is not reconciled: %v", what, err)
			case <-time.After(50 * time.Millisecond):
			}
		}
	}
}

// messageOfTest is no message of the controller's.
const messageOfTest = "changed by the test: the next reconcile writes it again"

// outOfStep changes in every object something that the controller writes after it has compared the object with OpenStack: the message in the
// status of a Tenant or Network, and whether a NeutronPort is active. None of them is an input of the controller's.
func outOfStep(ctx context.Context, t *testing.T, kube client.Client) unreconciled {
	t.Helper()
	var tenants stackubev1.TenantList
	var networks stackubev1.NetworkList
	var ports weftv1.NeutronPortList
	for _, list := range []client.ObjectList{&tenants, &networks, &ports} {
		if err := kube.List(ctx, list); err != nil {
			t.Fatal(err)
		}
	}
	if len(tenants.Items) == 0 || len(networks.Items) == 0 {
		t.Fatalf("%d Tenants and %d Networks", len(tenants.Items), len(networks.Items))
	}
	all := unreconciled{}
	patch := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	for i := range tenants.Items {
		o := &tenants.Items[i]
		before := o.DeepCopy()
		o.Status.Message = messageOfTest
		patch(kube.Status().Patch(ctx, o, client.MergeFrom(before)))
		all["Tenant "+o.Name] = func(ctx context.Context) (bool, error) {
			var now stackubev1.Tenant
			err := kube.Get(ctx, client.ObjectKeyFromObject(o), &now)
			return err == nil && now.Status.Message != messageOfTest, err
		}
	}
	for i := range networks.Items {
		o := &networks.Items[i]
		before := o.DeepCopy()
		o.Status.Message = messageOfTest
		patch(kube.Status().Patch(ctx, o, client.MergeFrom(before)))
		all["Network "+o.Namespace+"/"+o.Name] = func(ctx context.Context) (bool, error) {
			var now stackubev1.Network
			err := kube.Get(ctx, client.ObjectKeyFromObject(o), &now)
			return err == nil && now.Status.Message != messageOfTest, err
		}
	}
	for i := range ports.Items {
		o := &ports.Items[i]
		before := o.DeepCopy()
		o.Spec.Active = !before.Spec.Active
		patch(kube.Patch(ctx, o, client.MergeFrom(before)))
		all["NeutronPort "+o.Name] = func(ctx context.Context) (bool, error) {
			var now weftv1.NeutronPort
			err := kube.Get(ctx, client.ObjectKeyFromObject(o), &now)
			return err == nil && now.Spec.Active == before.Spec.Active, err
		}
	}
	return all
}
