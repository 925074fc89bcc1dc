package node

import (
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	networkv1 "weft.dev/weft/api/openshift/v1"
	"weft.dev/weft/internal/overlay/multicast"
)

// Multicast is enabled by exactly one value of the annotation. The annotation survives the stripping of objects for the cache.
func TestWantsMulticast(t *testing.T) {
	for value, want := range map[string]bool{"true": true, "": false, "false": false, "True": false, "yes": false, " true": false, "1": false} {
		nn := &networkv1.NetNamespace{
			ObjectMeta: metav1.ObjectMeta{Name: "a", Annotations: map[string]string{networkv1.AnnotationMulticast: value, "other": "gone"}},
			NetName:    "a", NetID: 42,
		}
		if _, err := strip(nn); err != nil {
			t.Fatal(err)
		}
		if got := *wantsMulticast(nn); got != (multicast.Namespace{VNID: 42, On: want}) {
			t.Errorf("%q: %+v", value, got)
		}
		if len(nn.Annotations) != 1 {
			t.Errorf("kept in memory: %v", nn.Annotations)
		}
	}
	if wantsMulticast(&networkv1.NetNamespace{}).On {
		t.Error("multicast is on without the annotation")
	}
}
