package binding_test

import (
	"slices"
	"strings"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/labels"

	"weft.dev/weft/internal/placement"
	"weft.dev/weft/internal/vpc/binding"
	"weft.dev/weft/internal/vpc/objects"
)

func subnet(name string, second int, change func(*binding.Subnet)) *binding.Subnet {
	meta := objects.Meta{Kind: "Subnet", Name: name, UID: name}
	s := &binding.Subnet{Subnet: objects.Subnet{Meta: meta, VPC: "v"}, Age: objects.Age{Meta: meta, Created: time.Unix(int64(second), 0)}}
	if change != nil {
		change(s)
	}
	return s
}

func TestOf(t *testing.T) {
	all := binding.NewSubnets()
	for _, s := range []*binding.Subnet{
		subnet("open", 1, nil),
		subnet("shop", 2, func(s *binding.Subnet) { s.Namespaces = []string{"shop"} }),
		subnet("older-shop", 1, func(s *binding.Subnet) { s.Namespaces = []string{"shop"} }),
		subnet("labelled", 1, func(s *binding.Subnet) {
			s.Selectors = []labels.Selector{labels.SelectorFromSet(labels.Set{"team": "a"})}
		}),
		subnet("of-vpc", 1, func(s *binding.Subnet) { s.Permitted = []string{"bank"} }),
		subnet("broken", 1, func(s *binding.Subnet) { s.Broken, s.Namespaces = "spec.cidrBlock: is bad", []string{"unlucky"} }),
		subnet("nothing", 1, func(s *binding.Subnet) { s.Selectors = []labels.Selector{labels.Nothing()} }),
		subnet("pool", 1, func(s *binding.Subnet) { s.Definition, s.Namespaces = "a.kube-system", []string{"other"} }),
	} {
		all.Set(subnet(s.Name, 9, func(other *binding.Subnet) { other.Namespaces = []string{"default"} })) // replaced
		all.Set(s)
	}
	const key = "ovn.kubernetes.io/logical_switch"
	for name, test := range map[string]struct {
		pod, space string // annotations
		namespace  string
		labels     map[string]string
		names      []string
		refuse     string
		unbound    bool
	}{
		"nothing binds":            {namespace: "default", unbound: true},
		"annotation":               {pod: "open", namespace: "default", names: []string{"open"}},
		"annotation beats list":    {pod: "open", namespace: "shop", names: []string{"open"}},
		"oldest list":              {namespace: "shop", names: []string{"older-shop"}},
		"selector":                 {namespace: "x", labels: map[string]string{"team": "a"}, names: []string{"labelled"}},
		"namespace annotation":     {space: "open, none,shop", namespace: "shop", names: []string{"open", "shop"}},
		"no such Subnet":           {pod: "none", namespace: "shop", refuse: "does not exist"},
		"hostile name":             {pod: "a\n\"b", namespace: "shop", refuse: `Subnet "a\n\"b" does not exist`},
		"another's Subnet":         {pod: "shop", namespace: "default", refuse: "namespace default may not use Subnet shop"},
		"not one of the Vpc's":     {pod: "of-vpc", namespace: "default", refuse: "may not use"},
		"one of the Vpc's":         {pod: "of-vpc", namespace: "bank", names: []string{"of-vpc"}},
		"broken":                   {namespace: "unlucky", refuse: "spec.cidrBlock"},
		"selects nothing":          {pod: "nothing", namespace: "default", refuse: "may not use"},
		"pool of a NAD":            {pod: "pool", namespace: "other", refuse: "no network for pods"},
		"a pool binds no namspace": {namespace: "other", unbound: true},
	} {
		t.Run(name, func(t *testing.T) {
			pod := placement.Pod{Namespace: test.namespace, Name: "p", Annotations: map[string]string{key: test.pod}}
			space := placement.Namespace{Name: test.namespace, Annotations: map[string]string{key: test.space}, Labels: test.labels}
			b, ok := all.Of(pod, space)
			if ok == test.unbound || !slices.Equal(b.Names, test.names) || (b.Refuse == "") != (test.refuse == "") || !strings.Contains(b.Refuse, test.refuse) {
				t.Errorf("%v: %+v", ok, b)
			}
			decision := placement.Decide(pod, space, placement.Cluster{
				Default: "overlay", Known: []string{"overlay", binding.Network}, Binders: []placement.Binder{all.Bind},
			})
			if (decision.Network == "overlay") != test.unbound || (decision.Refuse != "") != (test.refuse != "") {
				t.Errorf("placed: %+v", decision)
			}
		})
	}
}

// The annotation of networks can name a Subnet as well, and gives no permission that the Subnet's own does not give.
func TestPartOfAnnotation(t *testing.T) {
	all := binding.NewSubnets()
	all.Set(subnet("open", 1, nil))
	all.Set(subnet("shop", 1, func(s *binding.Subnet) { s.Namespaces = []string{"shop"} }))
	at := func(network string) map[string]string { return map[string]string{placement.AnnotationNetwork: network} }
	for name, c := range map[string]struct {
		pod, space map[string]string
		want       []string
		refuse     string
	}{
		"the pod's":       {pod: at("vpc/open"), want: []string{"open"}},
		"the namespace's": {space: at("vpc/open"), want: []string{"open"}},
		"both":            {pod: at("vpc/open"), space: at("vpc/shop"), want: []string{"open"}},
		"beside logical_switch": {
			pod: map[string]string{placement.AnnotationNetwork: "vpc", "ovn.kubernetes.io/logical_switch": "open"}, want: []string{"open"},
		},
		"two Subnets": {
			pod: map[string]string{placement.AnnotationNetwork: "vpc/open", "ovn.kubernetes.io/logical_switch": "shop"}, refuse: "name two Subnets",
		},
		"a list, which it cannot be": {space: at("vpc/open,shop"), refuse: `Subnet "open,shop" does not exist`},
		"one that does not exist":    {pod: at("vpc/none"), refuse: `Subnet "none" does not exist`},
		"one without the permission": {pod: at("vpc/shop"), refuse: "may not use Subnet shop"},
	} {
		pod, namespace := placement.Pod{Namespace: "x", Name: "web", Annotations: c.pod}, placement.Namespace{Name: "x", Annotations: c.space}
		b, ok := all.Of(pod, namespace)
		decision := placement.Decide(pod, namespace, placement.Cluster{
			Default: "overlay", Known: []string{"overlay", binding.Network}, Binders: []placement.Binder{all.Bind},
		})
		if decision.Network != binding.Network || decision.Refuse != b.Refuse || c.refuse == "" && decision.Part != c.want[0] {
			t.Errorf("%s: placed: %+v", name, decision)
		}
		if !ok || !slices.Equal(b.Names, c.want) || !strings.Contains(b.Refuse, c.refuse) || (b.Refuse == "") != (c.refuse == "") {
			t.Errorf("%s: bound %t, %+v", name, ok, b)
		}
	}
}

// A pod that an annotation puts on another network is bound to no Subnet, so that it is assigned no address. An annotation of the namespace
// yields to a Subnet that the pod names.
func TestOtherNetwork(t *testing.T) {
	all := binding.NewSubnets()
	all.Set(subnet("shop", 1, func(s *binding.Subnet) { s.Namespaces = []string{"shop"} }))
	at := func(network string) map[string]string { return map[string]string{placement.AnnotationNetwork: network} }
	asks := map[string]string{"ovn.kubernetes.io/logical_switch": "shop"}
	for name, c := range map[string]struct {
		pod, space map[string]string
		bound      bool
	}{
		"no annotation":                    {bound: true},
		"the pod's":                        {pod: at("flannel")},
		"the pod's, with a part":           {pod: at("neutron/blue")},
		"the pod's, for VPCs":              {pod: at("vpc"), bound: true},
		"the namespace's":                  {space: at("flannel")},
		"the namespace's, and a Subnet's":  {pod: asks, space: at("flannel"), bound: true},
		"the namespace's, and for VPCs":    {pod: asks, space: at("vpc"), bound: true},
		"an invalid one, which is refused": {pod: at("")},
	} {
		pod, namespace := placement.Pod{Namespace: "shop", Name: "web", Annotations: c.pod}, placement.Namespace{Name: "shop", Annotations: c.space}
		_, bound := all.Of(pod, namespace)
		decision := placement.Decide(pod, namespace, placement.Cluster{
			Default: "overlay", Known: []string{"overlay", "flannel", "neutron", binding.Network}, Binders: []placement.Binder{all.Bind},
		})
		if onVPC := decision.Network == binding.Network && decision.Refuse == ""; bound != c.bound || onVPC != c.bound {
			t.Errorf("%s: bound %t, placed on a VPC %t, want %t", name, bound, onVPC, c.bound)
		}
	}
}
