package node

import (
	"context"
	"fmt"
	"slices"
	"sync"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	kubeovn "weft.dev/weft/api/kubeovn/v1"
	"weft.dev/weft/internal/network"
	"weft.dev/weft/internal/placement"
	"weft.dev/weft/internal/vpc/binding"
	"weft.dev/weft/internal/vpc/cluster/plan"
)

// present reports whether there is a VPC. Of two Vpcs one is not the default one: no more are read.
func present(ctx context.Context, objects client.Reader) (network.Presence, error) {
	var vpcs kubeovn.VpcList
	if err := objects.List(ctx, &vpcs, client.UnsafeDisableDeepCopy, client.Limit(2)); err != nil {
		return network.Presence{}, fmt.Errorf("list Vpcs: %w", err)
	}
	for i := range vpcs.Items {
		if vpcs.Items[i].Name != kubeovn.DefaultVpc {
			return network.Presence{Present: true, Why: "there are Vpcs"}, nil
		}
	}
	return network.Presence{Why: "there is no Vpc"}, nil
}

// bindings decide which Subnets pods are bound to, compiled when Vpcs or Subnets have changed.
type bindings struct {
	mu       sync.Mutex
	versions []version
	compiled *binding.Subnets
}

// version identifies an object's version that was compiled.
type version struct{ uid, version string }

func versionOf(object metav1.Object) version {
	return version{string(object.GetUID()), object.GetResourceVersion()}
}

func compare(a, b version) int {
	switch {
	case a.uid < b.uid:
		return -1
	case a.uid > b.uid:
		return 1
	}
	return 0
}

// bind implements network.Kind's Bind.
func (b *bindings) bind(ctx context.Context, objects client.Reader) (placement.Binder, error) {
	var vpcs kubeovn.VpcList
	var subnets kubeovn.SubnetList
	var gateways kubeovn.VpcNatGatewayList
	for _, list := range []client.ObjectList{&vpcs, &subnets, &gateways} {
		if err := objects.List(ctx, list, client.UnsafeDisableDeepCopy); err != nil {
			return nil, fmt.Errorf("list %T: %w", list, err)
		}
	}
	versions := make([]version, 0, len(vpcs.Items)+len(subnets.Items)+len(gateways.Items))
	for i := range vpcs.Items {
		versions = append(versions, versionOf(&vpcs.Items[i]))
	}
	for i := range subnets.Items {
		versions = append(versions, versionOf(&subnets.Items[i]))
	}
	for i := range gateways.Items {
		versions = append(versions, versionOf(&gateways.Items[i]))
	}
	slices.SortFunc(versions, compare)
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.compiled == nil || !slices.Equal(versions, b.versions) {
		b.versions, b.compiled = versions, plan.Bindings(vpcs.Items, subnets.Items, gateways.Items)
	}
	return b.compiled.Bind, nil
}
