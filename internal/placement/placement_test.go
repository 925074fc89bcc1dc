package placement_test

import (
	"maps"
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"weft.dev/weft/internal/placement"
)

func annotated(value string) map[string]string {
	return map[string]string{placement.AnnotationNetwork: value}
}

func bound(bindings ...placement.Binding) []placement.Binder {
	return []placement.Binder{func(placement.Pod, placement.Namespace) []placement.Binding { return bindings }}
}

func TestDecide(t *testing.T) {
	subnet := placement.Binding{Level: placement.ByNamespace, Network: "vpc", Part: "blue", Reason: "Subnet blue names namespace shop"}
	gone := placement.Binding{Level: placement.ByPod, Network: "vpc", Part: "red", Reason: "annotation of the pod", Refuse: "Subnet red does not exist"}
	tenants := placement.Binding{Level: placement.ByNamespace, Network: "neutron", Part: "shop", Reason: "Tenant shop", Only: true}
	for name, c := range map[string]struct {
		pod, namespace map[string]string
		binders        []placement.Binder
		fallback       string
		network, part  string
		refuse         string
	}{
		"the default":                         {fallback: "overlay", network: "overlay"},
		"no default":                          {refuse: "no default network"},
		"the pod's annotation":                {pod: annotated("flannel"), namespace: annotated("overlay"), fallback: "overlay", network: "flannel"},
		"the namespace's annotation":          {namespace: annotated("flannel"), fallback: "overlay", network: "flannel"},
		"a part":                              {pod: annotated("neutron/blue"), fallback: "overlay", network: "neutron", part: "blue"},
		"an object that names the namespace":  {binders: bound(subnet), fallback: "overlay", network: "vpc", part: "blue"},
		"the pod before the object":           {pod: annotated("flannel"), binders: bound(subnet), fallback: "overlay", network: "flannel"},
		"annotation before the object":        {namespace: annotated("flannel"), binders: bound(subnet), fallback: "overlay", network: "flannel"},
		"the object says which part":          {namespace: annotated("vpc"), binders: bound(subnet), fallback: "overlay", network: "vpc", part: "blue"},
		"bound to what does not exist":        {binders: bound(gone), fallback: "overlay", network: "vpc", part: "red", refuse: "Subnet red does not exist"},
		"the pod's binding is not the second": {binders: bound(subnet, gone), fallback: "overlay", network: "vpc", part: "red", refuse: "Subnet red does not exist"},
		"two networks": {
			binders:  bound(subnet, placement.Binding{Level: placement.ByNamespace, Network: "flannel", Reason: "x"}),
			fallback: "overlay", network: "vpc", part: "blue", refuse: "two networks",
		},
		"a tenant's": {binders: bound(tenants), fallback: "overlay", network: "neutron", part: "shop"},
		"a tenant's, other part": {
			pod: annotated("neutron/second"), binders: bound(tenants), fallback: "overlay", network: "neutron", part: "second",
		},
		"a tenant's pod that leaves": {
			pod: annotated("overlay"), binders: bound(tenants), fallback: "overlay", network: "overlay", refuse: "networks of kind neutron only (Tenant shop)",
		},
		"a tenant's namespace that leaves": {
			namespace: annotated("overlay"), binders: bound(tenants), fallback: "overlay", network: "overlay", refuse: "networks of kind neutron only",
		},
		"unknown":           {pod: annotated("fabric"), fallback: "overlay", network: "fabric", refuse: `network "fabric" (annotation network.weft.dev/network of pod shop/web is "fabric") does not exist; the networks are overlay, flannel, vpc, neutron, off`},
		"absent":            {pod: annotated("off"), fallback: "overlay", network: "off", refuse: "there is no ConfigMap"},
		"the default's own": {fallback: "off", network: "off", refuse: "there is no ConfigMap"},
		"empty":             {pod: annotated(""), fallback: "overlay", refuse: "has to be the name of a network"},
		"half":              {pod: annotated("neutron/"), fallback: "overlay", network: "neutron", refuse: "has to be the name of a network"},
	} {
		t.Run(name, func(t *testing.T) {
			d := placement.Decide(
				placement.Pod{Namespace: "shop", Name: "web", Annotations: c.pod}, placement.Namespace{Name: "shop", Annotations: c.namespace},
				placement.Cluster{
					Default: c.fallback, Absent: map[string]string{"off": "there is no ConfigMap"},
					Known: []string{"overlay", "flannel", "vpc", "neutron", "off"}, Binders: c.binders,
				})
			if d.Network != c.network || d.Part != c.part || d.Reason == "" || !maps.Equal(d.Annotations, c.pod) {
				t.Errorf("decision %+v", d)
			}
			if (d.Refuse == "") != (c.refuse == "") || !strings.Contains(d.Refuse, c.refuse) {
				t.Errorf("refused: %q, want %q", d.Refuse, c.refuse)
			}
		})
	}
}

// TestBoundIsNeverTheDefault: a pod is on the default network only if a binding of its strongest level names that network, or if it has
// no binding.
func TestBoundIsNeverTheDefault(t *testing.T) {
	networks := []string{"overlay", "flannel", "vpc", "fabric", ""}
	rapid.Check(t, func(t *rapid.T) {
		draw := func(label string) (map[string]string, bool) {
			if !rapid.Bool().Draw(t, label) {
				return nil, false
			}
			return annotated(rapid.SampledFrom(networks).Draw(t, label+" network")), true
		}
		pod, byPod := draw("pod")
		namespace, byNamespace := draw("namespace")
		bindings := rapid.SliceOfN(rapid.Custom(func(t *rapid.T) placement.Binding {
			return placement.Binding{
				Level: placement.Level(rapid.IntRange(0, 1).Draw(t, "level")), Network: rapid.SampledFrom(networks[:3]).Draw(t, "network"),
				Refuse: rapid.SampledFrom([]string{"", "it does not exist"}).Draw(t, "refuse"),
			}
		}), 0, 3).Draw(t, "bindings")
		d := placement.Decide(placement.Pod{Annotations: pod}, placement.Namespace{Annotations: namespace},
			placement.Cluster{Default: "overlay", Known: []string{"overlay", "flannel"}, Absent: map[string]string{"vpc": "x"}, Binders: bound(bindings...)})
		var named []string
		for _, level := range []struct {
			level  placement.Level
			has    bool
			values map[string]string
		}{{placement.ByPod, byPod, pod}, {placement.ByNamespace, byNamespace, namespace}} {
			if level.has {
				named = append(named, level.values[placement.AnnotationNetwork])
			}
			for _, b := range bindings {
				if b.Level == level.level && !level.has {
					named = append(named, b.Network)
				}
			}
			if len(named) > 0 {
				break
			}
		}
		switch {
		case len(named) == 0 && (d.Network != "overlay" || d.Refuse != ""):
			t.Fatalf("nothing binds the pod: %+v", d)
		case len(named) > 0 && !slices.Contains(named, d.Network):
			t.Fatalf("bound to %q: %+v", named, d)
		case d.Refuse == "" && d.Network != "overlay" && d.Network != "flannel":
			t.Fatalf("served by what does not serve: %+v", d)
		}
	})
}
