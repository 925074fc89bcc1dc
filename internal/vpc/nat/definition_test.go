package nat_test

import (
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"weft.dev/weft/internal/vpc/nat"
	"weft.dev/weft/internal/vpc/objects"
)

// A cached definition has its name and its configuration; of a configuration that is too long, it has only enough to show that.
func TestTrimDefinition(t *testing.T) {
	const macvlan = `{"type":"macvlan","master":"ens37"}`
	long := macvlan + strings.Repeat(" ", 1<<20)
	for config, kept := range map[string]string{macvlan: macvlan, long: long[:8193]} {
		whole := nat.Definition()
		whole.SetName("outside")
		whole.SetNamespace("kube-system")
		whole.SetResourceVersion("7")
		whole.SetAnnotations(map[string]string{"note": long})
		if err := unstructured.SetNestedField(whole.Object, config, "spec", "config"); err != nil {
			t.Fatal(err)
		}
		object, err := nat.TrimDefinition(whole)
		trimmed, is := object.(*unstructured.Unstructured)
		if err != nil || !is || trimmed.GetAnnotations() != nil || trimmed.GetResourceVersion() != "7" || trimmed.GetKind() != whole.GetKind() {
			t.Fatalf("%v %.300v", err, object)
		}
		have := nat.Definitions(&unstructured.UnstructuredList{Items: []unstructured.Unstructured{*trimmed}})
		if have["outside.kube-system"] != kept {
			t.Errorf("%d bytes are kept of %d", len(have["outside.kube-system"]), len(config))
		}
		_, problems := objects.ParseDefinition(have["outside.kube-system"])
		if refused := len(problems) > 0; refused != (config == long) || refused && !strings.Contains(problems.Error(), "spec.config: has more than 8192 bytes") {
			t.Errorf("problems of %d bytes: %v", len(config), problems)
		}
	}
	other := struct{}{}
	if object, err := nat.TrimDefinition(other); err != nil || object != other {
		t.Errorf("another kind of object: %v, %v", object, err)
	}
}
