package plan_test

import (
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	kubeovn "weft.dev/weft/api/kubeovn/v1"
)

// The annotations of Kube-OVN, in all of their forms. Of an address of two families the IPv4 side is used.
func TestAddressAnnotations(t *testing.T) {
	w := newWorld(t)
	w.vpc("v", 1, kubeovn.VpcSpec{})
	w.subnet("s", 2, "v", "10.0.1.0/24,fd00:1::/64")
	for name, c := range map[string]struct{ address, pool, owner string }{
		"fixed-of-two-families":   {address: "10.0.1.50,fd00:1::50"},
		"fixed-with-space":        {address: " 10.0.1.51"},
		"pool-0":                  {pool: "10.0.1.60,10.0.1.61"},
		"pool-1":                  {pool: "10.0.1.60,10.0.1.61", owner: "pool"},
		"semicolons-2":            {pool: "10.0.1.70;10.0.1.71; 10.0.1.72", owner: "semicolons"},
		"of-two-families-1":       {pool: "10.0.1.80,fd00:1::80;10.0.1.81,fd00:1::81", owner: "of-two-families"},
		"one-of-two-families":     {pool: "10.0.1.90,fd00:1::90"},
		"one-of-two-families-0":   {pool: "10.0.1.91,fd00:1::91", owner: "one-of-two-families"},
		"one-with-semicolon":      {pool: "10.0.1.95;10.0.1.96"},
		"the-other-one-of-a-pool": {pool: "10.0.1.95;10.0.1.96"},
	} {
		pod := w.pod(name, "s", c.address)
		pod.Annotations[kubeovn.AnnotationIPPool] = c.pool
		if c.owner != "" {
			pod.OwnerReferences = []metav1.OwnerReference{{Kind: "StatefulSet", Name: c.owner, UID: types.UID(c.owner), Controller: new(true)}}
		}
	}
	w.settle(t)
	for name, want := range map[string]string{
		"fixed-of-two-families": "10.0.1.50", "fixed-with-space": "10.0.1.51", "pool-0": "10.0.1.60", "pool-1": "10.0.1.61",
		"semicolons-2": "10.0.1.72", "of-two-families-1": "10.0.1.81", "one-of-two-families": "10.0.1.90", "one-of-two-families-0": "10.0.1.91",
		"one-with-semicolon": "10.0.1.95", "the-other-one-of-a-pool": "10.0.1.96",
	} {
		if ip := w.ips[name+".ns1"]; ip == nil || ip.Spec.V4IPAddress != want {
			t.Errorf("pod %s has %v, want %s: %s", name, ip, want, w.waiting["ns1/"+name])
		}
	}
}
