//go:build real

package deploy_test

import (
	"os"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"sigs.k8s.io/controller-runtime/pkg/client"

	networkv1 "weft.dev/weft/api/openshift/v1"
	weftv1 "weft.dev/weft/api/weft/v1"
	"weft.dev/weft/deploy"
	"weft.dev/weft/deploy/crds"
	"weft.dev/weft/internal/apiservertest"
	"weft.dev/weft/internal/testwait"
)

var server *apiservertest.Server //nolint:gochecknoglobals // set once, by TestMain

func TestMain(m *testing.M) {
	os.Exit(apiservertest.MainWith(m, &server, crds.All))
}

// agentOn is a client that may do what the agent of a node may: its token names the node, "" for none.
func agentOn(t *testing.T, node string) client.Client {
	t.Helper()
	config := server.ConfigAs("weft", "weft-agent")
	if node != "" {
		config.Impersonate.Extra = map[string][]string{"authentication.kubernetes.io/node-name": {node}}
	}
	return newClient(t, func(scheme *runtime.Scheme) (client.Client, error) {
		return client.New(config, client.Options{Scheme: scheme})
	})
}

func newClient(t *testing.T, open func(*runtime.Scheme) (client.Client, error)) client.Client {
	t.Helper()
	scheme := runtime.NewScheme()
	for _, add := range []func(*runtime.Scheme) error{clientgoscheme.AddToScheme, networkv1.AddToScheme, weftv1.AddToScheme} {
		if err := add(scheme); err != nil {
			t.Fatal(err)
		}
	}
	c, err := open(scheme)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// condition patches the condition of a node as the agent does.
func condition(node, kind string) (client.Object, client.Patch) {
	return status(node, `{"conditions": [{"type": "`+kind+`", "status": "False", "reason": "Test", "message": "`+time.Now().String()+`"}]}`)
}

func status(node, text string) (client.Object, client.Patch) {
	return &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: node}},
		client.RawPatch("application/strategic-merge-patch+json", []byte(`{"status": `+text+`}`))
}

// The manifest is accepted as a whole by a strict API server, and an agent may write about its own node only.
func TestAgentWritesItsOwnNodeOnly(t *testing.T) {
	ctx := t.Context()
	admin := newClient(t, func(scheme *runtime.Scheme) (client.Client, error) {
		return client.New(server.Config(), client.Options{Scheme: scheme})
	})
	all, err := deploy.Objects()
	must(t, err)
	apply(t, admin, all)
	for _, name := range []string{"mine", "other"} {
		node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{"a": "b"}}}
		must(t, admin.Create(ctx, node))
		node.Status = corev1.NodeStatus{
			Addresses:  []corev1.NodeAddress{{Type: corev1.NodeInternalIP, Address: "192.0.2.1"}},
			Capacity:   corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("1")},
			Conditions: []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionTrue}},
		}
		must(t, admin.Status().Update(ctx, node))
	}
	mine := agentOn(t, "mine")
	// The policy takes effect some time after it was written, the rights as well.
	object, patch := condition("other", "NetworkUnavailable")
	testwait.Until(t, "the policy refuses", func() bool {
		err := mine.Status().Patch(ctx, object, patch)
		return apierrors.IsForbidden(err) && strings.Contains(err.Error(), "may not change node other")
	})
	object, patch = condition("mine", "NetworkUnavailable")
	if err := mine.Status().Patch(ctx, object, patch); err != nil {
		t.Errorf("its own node's condition: %v", err)
	}
	for name, refused := range map[string]func() (client.Object, client.Patch){
		"another condition": func() (client.Object, client.Patch) { return condition("mine", "Ready") },
		"an address": func() (client.Object, client.Patch) {
			return status("mine", `{"addresses": [{"type": "InternalIP", "address": "192.0.2.9"}]}`)
		},
		"the capacity": func() (client.Object, client.Patch) { return status("mine", `{"capacity": {"cpu": "64"}}`) },
		"a label": func() (client.Object, client.Patch) {
			o, _ := condition("mine", "")
			return o, client.RawPatch("application/merge-patch+json", []byte(`{"metadata": {"labels": {"a": "c"}}}`))
		},
		"an annotation": func() (client.Object, client.Patch) {
			o, _ := condition("mine", "")
			return o, client.RawPatch("application/merge-patch+json", []byte(`{"metadata": {"annotations": {"a": "c"}}}`))
		},
	} {
		object, patch := refused()
		if err := mine.Status().Patch(ctx, object, patch); !apierrors.IsForbidden(err) || !strings.Contains(err.Error(), "Weft's agent may change") {
			t.Errorf("%s: %v, want a refusal by the policy", name, err)
		}
	}
	object, patch = condition("mine", "NetworkUnavailable")
	if err := agentOn(t, "").Status().Patch(ctx, object, patch); !apierrors.IsForbidden(err) || !strings.Contains(err.Error(), `node "" may not`) {
		t.Errorf("a token that names no node: %v, want a refusal", err)
	}
	if err := admin.Status().Patch(ctx, object, patch); err != nil {
		t.Errorf("the policy is for agents only: %v", err)
	}
	t.Run("NodeNetwork", func(t *testing.T) { ownNodeNetworkOnly(t, admin, mine) })
	t.Run("HostSubnet", func(t *testing.T) { ownHostSubnetOnly(t, admin, mine) })
	t.Run("every field of Node", func(t *testing.T) { everyNodeField(t, admin, mine) })
	t.Run("NodeNetwork/all rights", func(t *testing.T) { ownNodeNetworkWithAllRights(t, mine) })
}

func nodeNetwork(name string, owners ...metav1.OwnerReference) *weftv1.NodeNetwork {
	return &weftv1.NodeNetwork{ObjectMeta: metav1.ObjectMeta{Name: name, OwnerReferences: owners}}
}

func owner(kind, name string) metav1.OwnerReference {
	return metav1.OwnerReference{APIVersion: "v1", Kind: kind, Name: name, UID: "6d6f3a5e-0000-4000-8000-000000000001"}
}

// sections patches the status of a NodeNetwork.
func sections(text string) client.Patch {
	return client.RawPatch("application/merge-patch+json", []byte(`{"status": {"networks": `+text+`}}`))
}

const nodeNetworkRefusal = "may create the NodeNetwork of its own node and change its status only"

// With the rights of the chart an agent creates and reports its own node's object.
func ownNodeNetworkOnly(t *testing.T, admin, mine client.Client) {
	ctx := t.Context()
	must(t, admin.Create(ctx, nodeNetwork("other")))
	testwait.Until(t, "the policy refuses another's status", func() bool {
		err := mine.Status().Patch(ctx, nodeNetwork("other"), sections(`[{"name": "vpc"}]`))
		return apierrors.IsForbidden(err) && strings.Contains(err.Error(), nodeNetworkRefusal)
	})
	labelled := nodeNetwork("mine", owner("Node", "mine"))
	labelled.Labels = map[string]string{"a": "b"}
	blocking := owner("Node", "mine")
	blocking.BlockOwnerDeletion = new(true)
	for name, object := range map[string]*weftv1.NodeNetwork{
		"no owner":          nodeNetwork("mine"),
		"two owners":        nodeNetwork("mine", owner("Node", "mine"), owner("Node", "other")),
		"another node":      nodeNetwork("mine", owner("Node", "other")),
		"no node":           nodeNetwork("mine", owner("Pod", "mine")),
		"a blocking owner":  nodeNetwork("mine", blocking),
		"labels":            labelled,
		"another's object":  nodeNetwork("third", owner("Node", "third")),
		"another's, owning": nodeNetwork("third", owner("Node", "mine")),
	} {
		if err := mine.Create(ctx, object); !apierrors.IsForbidden(err) || !strings.Contains(err.Error(), "NodeNetwork") {
			t.Errorf("created with %s: %v, want a refusal by the policy", name, err)
		}
	}
	must(t, mine.Create(ctx, nodeNetwork("mine", owner("Node", "mine"))))
	must(t, mine.Status().Patch(ctx, nodeNetwork("mine"), sections(`[{"name": "vpc", "vpc": {"chassis": "mine"}}]`)))
	if err := agentOn(t, "").Status().Patch(ctx, nodeNetwork("mine"), sections(`[]`)); !apierrors.IsForbidden(err) {
		t.Errorf("a token that names no node: %v, want a refusal", err)
	}
}

// The policy holds whatever the rights are.
func ownNodeNetworkWithAllRights(t *testing.T, mine client.Client) {
	ctx := t.Context()
	label := client.RawPatch("application/merge-patch+json", []byte(`{"metadata": {"labels": {"a": "b"}}}`))
	for name, err := range map[string]error{
		"its own metadata": mine.Patch(ctx, nodeNetwork("mine"), label),
		"another's status": mine.Status().Patch(ctx, nodeNetwork("other"), sections(`[]`)),
		"no object":        mine.Delete(ctx, nodeNetwork("mine")),
		"another deleted":  mine.Delete(ctx, nodeNetwork("other")),
		"all deleted":      mine.DeleteAllOf(ctx, &weftv1.NodeNetwork{}),
	} {
		if !apierrors.IsForbidden(err) || !strings.Contains(err.Error(), nodeNetworkRefusal) {
			t.Errorf("%s: %v, want a refusal by the policy", name, err)
		}
	}
}

// The policy holds whatever the rights are: here an agent has all.
func ownHostSubnetOnly(t *testing.T, admin, mine client.Client) {
	ctx := t.Context()
	must(t, admin.Create(ctx, &rbacv1.ClusterRoleBinding{
		ObjectMeta: metav1.ObjectMeta{Name: "all-for-agents"},
		RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: "cluster-admin"},
		Subjects:   []rbacv1.Subject{{Kind: "ServiceAccount", Namespace: "weft", Name: "weft-agent"}},
	}))
	subnet := func(name, address string) *networkv1.HostSubnet {
		return &networkv1.HostSubnet{ObjectMeta: metav1.ObjectMeta{Name: name}, Host: name, HostIP: address}
	}
	must(t, admin.Create(ctx, subnet("mine", "192.0.2.1")))
	must(t, admin.Create(ctx, subnet("other", "192.0.2.2")))
	text := `{"status": {"conditions": [{"type": "Test", "status": "True", "reason": "Test", "message": "", "lastTransitionTime": "2026-01-01T00:00:00Z"}]}}`
	status := client.RawPatch("application/merge-patch+json", []byte(text))
	testwait.Until(t, "its own status is written", func() bool {
		return mine.Status().Patch(ctx, subnet("mine", ""), status) == nil
	})
	moved := client.RawPatch("application/merge-patch+json", []byte(`{"hostIP": "192.0.2.3"}`))
	for name, err := range map[string]error{
		"another's status":  mine.Status().Patch(ctx, subnet("other", ""), status),
		"its own address":   mine.Patch(ctx, subnet("mine", ""), moved),
		"another's address": mine.Patch(ctx, subnet("other", ""), moved),
		"a new object":      mine.Create(ctx, subnet("third", "192.0.2.3")),
		"no object":         mine.Delete(ctx, subnet("mine", "")),
		"no object at all":  mine.DeleteAllOf(ctx, &networkv1.HostSubnet{}),
	} {
		if !apierrors.IsForbidden(err) || !strings.Contains(err.Error(), "may change the status of its own HostSubnet only") {
			t.Errorf("%s: %v, want a refusal by the policy", name, err)
		}
	}
}

// apply creates objects of a manifest, but for those that another test has created.
func apply(t *testing.T, c client.Client, objects []*unstructured.Unstructured) {
	t.Helper()
	for _, object := range objects {
		if err := c.Create(t.Context(), object, client.FieldValidation("Strict")); err != nil && !apierrors.IsAlreadyExists(err) {
			t.Fatalf("apply %s %s: %v", object.GetKind(), object.GetName(), err)
		}
	}
}
