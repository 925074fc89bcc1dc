//go:build real

package deploy_test

import (
	"encoding/json"
	"reflect"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// everyNodeField tries to change each field of the agent's own Node, by the object and by its status, with all rights: none changes. Only the
// list of conditions may.
func everyNodeField(t *testing.T, admin, mine client.Client) {
	ctx := t.Context()
	refused := map[string]bool{}
	for part, kind := range map[string]reflect.Type{
		"metadata": reflect.TypeFor[metav1.ObjectMeta](), "spec": reflect.TypeFor[corev1.NodeSpec](), "status": reflect.TypeFor[corev1.NodeStatus](),
	} {
		for i := range kind.NumField() {
			name, _, _ := strings.Cut(kind.Field(i).Tag.Get("json"), ",")
			field := part + "." + name
			if field == "status.conditions" || field == "metadata.managedFields" || field == "metadata.resourceVersion" {
				continue // what the agent writes, and what the API server writes with it
			}
			value := reflect.New(kind.Field(i).Type).Elem()
			fill(value)
			if name == "finalizers" {
				value = reflect.ValueOf([]string{"weft.dev/test"})
			}
			text, err := json.Marshal(map[string]any{part: map[string]any{name: value.Interface()}})
			must(t, err)
			patch := client.RawPatch("application/merge-patch+json", text)
			for way, write := range map[string]func(client.Object) error{
				"the object": func(o client.Object) error { return mine.Patch(ctx, o, patch) },
				"the status": func(o client.Object) error { return mine.Status().Patch(ctx, o, patch) },
			} {
				before, after := &corev1.Node{}, &corev1.Node{}
				must(t, admin.Get(ctx, client.ObjectKey{Name: "mine"}, before))
				err := write(&corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "mine"}})
				refused[field] = refused[field] || err != nil && strings.Contains(err.Error(), "Weft's agent may change nothing of a node")
				must(t, admin.Get(ctx, client.ObjectKey{Name: "mine"}, after))
				before.ManagedFields, after.ManagedFields, before.ResourceVersion, after.ResourceVersion = nil, nil, "", ""
				if !equality.Semantic.DeepEqual(before, after) {
					t.Errorf("by %s an agent changes %s", way, field)
				}
			}
		}
	}
	// Of these the API server has no opinion of its own that would hide the policy.
	for _, field := range []string{
		"metadata.ownerReferences", "metadata.labels", "metadata.annotations", "metadata.finalizers", "spec.unschedulable",
		"status.addresses", "status.capacity", "status.daemonEndpoints", "status.nodeInfo", "status.phase", "status.images",
		"status.volumesInUse", "status.volumesAttached", "status.runtimeHandlers",
	} {
		if !refused[field] {
			t.Errorf("the policy does not refuse %s", field)
		}
	}
}

// fill sets a value, and all that it holds, to something other than zero.
func fill(v reflect.Value) {
	if quantity, ok := reflect.TypeAssert[*resource.Quantity](v.Addr()); ok {
		*quantity = resource.MustParse("7")
		return
	}
	if _, ok := reflect.TypeAssert[json.Marshaler](v.Addr()); ok && v.Kind() == reflect.Struct { // a time
		v.Set(reflect.ValueOf(metav1.Now()))
		return
	}
	switch v.Kind() {
	case reflect.String:
		v.SetString("test")
	case reflect.Bool:
		v.SetBool(true)
	case reflect.Int, reflect.Int32, reflect.Int64:
		v.SetInt(7)
	case reflect.Pointer:
		v.Set(reflect.New(v.Type().Elem()))
		fill(v.Elem())
	case reflect.Slice:
		v.Set(reflect.MakeSlice(v.Type(), 1, 1))
		fill(v.Index(0))
	case reflect.Map:
		v.Set(reflect.MakeMap(v.Type()))
		key, value := reflect.New(v.Type().Key()).Elem(), reflect.New(v.Type().Elem()).Elem()
		fill(key)
		fill(value)
		v.SetMapIndex(key, value)
	case reflect.Struct:
		for i := range v.NumField() {
			if v.Type().Field(i).IsExported() {
				fill(v.Field(i))
			}
		}
	default:
	}
}
