//go:build real

package cluster_test

import (
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	kubeovn "weft.dev/weft/api/kubeovn/v1"
	"weft.dev/weft/internal/ovn"
	"weft.dev/weft/internal/ovn/ovntest"
)

// VPCs are turned off, and on again. While they are off, rows, addresses and objects stay, also objects that are deleted. Afterwards the changes
// that were made meanwhile take effect, and other rows are not written. If the database is lost while they are off, it is filled with the same
// rows: same UUIDs, tunnel keys and addresses.
func TestOffAndOn(t *testing.T) {
	central := ovntest.New(t, nil)
	central.Start(ovntest.Northbound)
	stop := start(t, central, 1)
	ctx := t.Context()
	const namespace = "offon"
	c := clientWith(t, namespace)
	network := func(name, cidr string) (*kubeovn.Vpc, *kubeovn.Subnet) {
		vpc := &kubeovn.Vpc{ObjectMeta: metav1.ObjectMeta{Name: name}}
		subnet := &kubeovn.Subnet{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: kubeovn.SubnetSpec{Vpc: name, CIDRBlock: cidr}}
		must(t, c.Create(ctx, vpc))
		must(t, c.Create(ctx, subnet))
		return vpc, subnet
	}
	pod := func(name string) *corev1.Pod {
		p := &corev1.Pod{
			ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name, Annotations: map[string]string{kubeovn.AnnotationLogicalSwitch: namespace}},
			Spec:       corev1.PodSpec{NodeName: "node1", Containers: []corev1.Container{{Name: "c", Image: "i"}}},
		}
		must(t, c.Create(ctx, p))
		return p
	}
	addressOf := func(name string) *kubeovn.IP {
		ip := &kubeovn.IP{}
		ovntest.Eventually(t, "an address of pod "+name, func() bool { return has(t, c, namespace, name, ip) })
		return ip
	}
	complete := func(term string) {
		ovntest.Eventually(t, "a complete database", func() bool {
			out, err := ovntest.Try(nil, "ovn-nbctl", "--db="+central.NB(), "get", "NB_Global", ".", "external_ids:"+`"`+ovn.CompleteKey+`"`)
			return err == nil && strings.Contains(out, term)
		})
	}
	gone := func(objects ...client.Object) func() bool {
		return func() bool {
			for _, object := range objects {
				if !apierrors.IsNotFound(c.Get(ctx, client.ObjectKeyFromObject(object), object)) {
					return false
				}
			}
			return true
		}
	}
	kept, keptSubnet := network(namespace, "10.0.1.0/24")
	old, oldSubnet := network("offon-old", "10.0.1.0/24")
	stays := pod("stays")
	port := addressOf("stays").Spec.LogicalPort
	goes := pod("goes")
	freed := addressOf("goes")
	complete("1")
	// Ports that stand ready depend on which addresses were used last; so of ports, only that of the pod is compared.
	rows := func(extra string) string {
		return ovntest.Run(t, nil, "ovsdb-client", "transact", central.NB(), strings.ReplaceAll(`["OVN_Northbound",
			{"op":"select","table":"Logical_Router","where":[["name","==","offon"]],"columns":["_uuid","name","options"EXTRA]},
			{"op":"select","table":"Logical_Router_Port","where":[["name","includes","offon"]],"columns":["_uuid","name","mac","networks"EXTRA]},
			{"op":"select","table":"Logical_Switch","where":[["name","==","offon"]],"columns":["_uuid","name","other_config"]},
			{"op":"select","table":"Logical_Switch_Port","where":[["name","==","`+port+`"]],"columns":["_uuid","name","addresses","options","port_security"EXTRA]}]`,
			"EXTRA", extra))
	}
	names := func(table string) string { return central.Nbctl("--bare", "--columns=name", "list", table) }

	stop() // off
	before, versions := rows(""), rows(`,"_version"`)
	must(t, c.Delete(ctx, goes, client.GracePeriodSeconds(0)))
	must(t, c.Delete(ctx, old))
	must(t, c.Delete(ctx, oldSubnet))
	comes := pod("comes")
	fresh, freshSubnet := network("offon-new", "10.0.2.0/24")
	for _, object := range []client.Object{old, oldSubnet} {
		if must(t, c.Get(ctx, client.ObjectKeyFromObject(object), object)); object.GetDeletionTimestamp() == nil {
			t.Errorf("%s is not being deleted", object.GetName())
		}
	}
	if !has(t, c, namespace, "goes", &kubeovn.IP{}) || has(t, c, namespace, "comes", &kubeovn.IP{}) || !strings.Contains(names("Logical_Router"), "offon-old") {
		t.Error("addresses or rows have changed while VPCs were off")
	}
	if now := rows(`,"_version"`); now != versions {
		t.Errorf("while VPCs were off, rows became\n%s, were\n%s", now, versions)
	}

	stop = start(t, central, 2) // on
	ovntest.Eventually(t, "what was deleted is gone", gone(old, oldSubnet, freed))
	if ip := addressOf("comes"); ip.Spec.LogicalPort == port {
		t.Errorf("the new pod has %s, which is that of a pod that runs", port)
	}
	ovntest.Eventually(t, "the switch of the new Subnet, and no more of the old one", func() bool {
		all := names("Logical_Switch")
		return strings.Contains(all, "offon-new") && !strings.Contains(all, "offon-old")
	})
	if now := rows(`,"_version"`); now != versions {
		t.Errorf("rows that did not change became\n%s, were\n%s", now, versions)
	}

	stop() // off, and the database is lost
	central.Stop(ovntest.Northbound)
	central.Wipe(ovntest.Northbound)
	central.Start(ovntest.Northbound)
	start(t, central, 3)
	complete("3")
	if now := rows(""); now != before {
		t.Errorf("the filled database has\n%s, had\n%s", now, before)
	}

	for _, p := range []*corev1.Pod{stays, comes} {
		must(t, c.Delete(ctx, p, client.GracePeriodSeconds(0)))
	}
	for _, object := range []client.Object{keptSubnet, kept, freshSubnet, fresh} {
		must(t, c.Delete(ctx, object))
	}
	ovntest.Eventually(t, "everything is gone", func() bool {
		return gone(keptSubnet, kept, freshSubnet, fresh)() && names("Logical_Router")+names("Logical_Switch") == ""
	})
}
