//go:build real

package cluster_test

import (
	"context"
	"testing"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/apiutil"

	kubeovn "weft.dev/weft/api/kubeovn/v1"
	"weft.dev/weft/internal/apiservertest"
	"weft.dev/weft/internal/ovn/ovntest"
	"weft.dev/weft/internal/vpc/nat"
)

// attachmentDefinitions is the file with the definition of NetworkAttachmentDefinition.
const attachmentDefinitions = "../../../deploy/third-party/k8s.cni.cncf.io_network-attachment-definitions.yaml"

// VPCs are served while the API server does not know NetworkAttachmentDefinitions. NAT gateways use them once their definition is installed.
func TestWithoutAttachmentDefinitions(t *testing.T) {
	ctx := t.Context()
	all, err := apiservertest.DefinitionIn(attachmentDefinitions)()
	must(t, err)
	definitions := all[0]
	scheme := runtime.NewScheme()
	must(t, apiextensionsv1.AddToScheme(scheme))
	admin, err := client.New(server.Config(), client.Options{Scheme: scheme})
	must(t, err)
	must(t, admin.Delete(ctx, definitions.DeepCopy()))
	ovntest.Eventually(t, "the kind is not served", func() bool {
		requests, err := rest.HTTPClientFor(server.Config())
		must(t, err)
		mapper, err := apiutil.NewDynamicRESTMapper(server.Config(), requests)
		must(t, err)
		kind := nat.Definition().GroupVersionKind()
		_, err = mapper.RESTMapping(kind.GroupKind(), kind.Version)
		gone := apierrors.IsNotFound(admin.Get(ctx, client.ObjectKeyFromObject(definitions), &apiextensionsv1.CustomResourceDefinition{}))
		return meta.IsNoMatchError(err) && gone
	})
	installed := false
	install := func() {
		if !installed {
			must(t, server.InstallCRDs(context.WithoutCancel(ctx), []*apiextensionsv1.CustomResourceDefinition{definitions}))
			installed = true
		}
	}
	defer install() // for the other tests
	central := ovntest.New(t, nil)
	central.Start(ovntest.Northbound)
	start(t, central, 1)
	const name = "undefined"
	c := clientWith(t, name)
	vpc := &kubeovn.Vpc{ObjectMeta: metav1.ObjectMeta{Name: name}}
	inside := &kubeovn.Subnet{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: kubeovn.SubnetSpec{Vpc: name, CIDRBlock: "10.0.1.0/24"}}
	outside := &kubeovn.Subnet{
		ObjectMeta: metav1.ObjectMeta{Name: name + "-outside"}, Spec: kubeovn.SubnetSpec{Provider: "outside." + name, CIDRBlock: "192.168.100.0/24"},
	}
	gateway := &kubeovn.VpcNatGateway{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: kubeovn.VpcNatGatewaySpec{
		Vpc: name, Subnet: name, LanIP: "10.0.1.254", ExternalSubnets: []string{outside.Name},
	}}
	for _, object := range []client.Object{vpc, inside, outside, gateway} {
		must(t, c.Create(ctx, object))
	}
	reads := func(reason string) func() bool {
		return func() bool {
			must(t, c.Get(ctx, client.ObjectKeyFromObject(gateway), gateway))
			ready := meta.FindStatusCondition(gateway.Status.Conditions, "Ready")
			return ready != nil && ready.Reason == reason
		}
	}
	ovntest.Eventually(t, "the Vpc is in effect", func() bool {
		must(t, c.Get(ctx, client.ObjectKeyFromObject(vpc), vpc))
		return meta.IsStatusConditionTrue(vpc.Status.Conditions, "Ready")
	})
	ovntest.Eventually(t, "the gateway lacks its definition", reads(kubeovn.ReasonMissing))
	install()
	definition := nat.Definition()
	definition.SetNamespace(name)
	definition.SetName("outside")
	definition.Object["spec"] = map[string]any{"config": `{"type":"macvlan","master":"ens37"}`}
	ovntest.Eventually(t, "the definition is created", func() bool { return client.IgnoreAlreadyExists(c.Create(ctx, definition.DeepCopy())) == nil })
	ovntest.Eventually(t, "the gateway has its definition", reads(kubeovn.ReasonDisabled))
	for _, object := range []client.Object{definition, gateway, inside, outside, vpc} {
		must(t, c.Delete(ctx, object))
	}
	ovntest.Eventually(t, "everything is gone", func() bool {
		return apierrors.IsNotFound(c.Get(ctx, client.ObjectKeyFromObject(vpc), vpc)) &&
			apierrors.IsNotFound(c.Get(ctx, client.ObjectKeyFromObject(outside), outside))
	})
}
