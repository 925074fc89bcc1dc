//go:build real

package networktest_test

import (
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"weft.dev/weft/internal/agent/cniconf"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	networkv1 "weft.dev/weft/api/openshift/v1"
	"weft.dev/weft/internal/cni"
	"weft.dev/weft/internal/network/networktest"
	"weft.dev/weft/internal/openflow/ovstest"
	"weft.dev/weft/internal/placement"
)

func cableConfig() *corev1.ConfigMap {
	return &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: "kube-system", Name: networktest.Name}}
}

func (m *machine) want(pods map[string]string) {
	m.t.Helper()
	eventually(m.t, "records", func() error {
		if have := m.networks(); !maps.Equal(have, pods) {
			return fmt.Errorf("networks of pods %v, want %v", have, pods)
		}
		return nil
	})
}

// TestAlone: an agent on a node without Open vSwitch, in a cluster without an overlay, serves its other network and reports this to the
// runtime and to the cluster.
func TestAlone(t *testing.T) {
	m := newMachine(t, "alone", hostSpace(t), filepath.Join(t.TempDir(), "none"))
	m.start()
	eventually(t, "STATUS of a node without networks", func() error {
		if _, err := m.do(cni.CommandStatus, "", ""); cni.AsError(err) == nil || cni.AsError(err).Code != cni.CodeNotAvailable {
			return fmt.Errorf("STATUS: %w", err)
		}
		return nil
	})
	config := cableConfig()
	m.create(config) // a network that appears while the agent runs
	m.serves()
	eventually(t, "the runtime's configuration", func() error {
		_, err := os.Stat(filepath.Join(m.dir, "net.d", "20-cable.conflist"))
		return err
	})
	if _, err := os.Stat(filepath.Join(m.dir, "net.d", cniconf.Name)); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the overlay's configuration: %v", err)
	}
	eventually(t, "the node's condition", func() error {
		var node corev1.Node
		if err := m.Get(t.Context(), client.ObjectKey{Name: m.name}, &node); err != nil {
			return err
		}
		for _, c := range node.Status.Conditions {
			if c.Type == corev1.NodeNetworkUnavailable && c.Status == corev1.ConditionFalse {
				return nil
			}
		}
		return fmt.Errorf("conditions %v", node.Status.Conditions)
	})
	one, bound := m.pod("alone-one", ""), m.pod("alone-bound", "overlay")
	m.add("alone-one", one)
	if err := reaches(one, hostAddress(), connects); err != nil {
		t.Error(err)
	}
	m.refused("alone-bound", bound, "overlay", "there is no ClusterNetwork default")
	m.kill()
	if err := reaches(one, hostAddress(), connects); err != nil {
		t.Errorf("without the agent: %v", err)
	}
	m.start()
	m.serves()
	if _, err := m.do(cni.CommandCheck, "alone-one", one.Path()); err != nil {
		t.Errorf("CHECK after a restart: %v", err)
	}
	// The network is no longer configured: its pod keeps its connectivity, and new pods are refused.
	if err := m.Delete(t.Context(), config); err != nil {
		t.Fatal(err)
	}
	two := m.pod("alone-two", networktest.Name)
	eventually(t, "a pod of a network that is gone", func() error {
		_, err := m.do(cni.CommandAdd, "alone-two", two.Path())
		if failure := cni.AsError(err); failure == nil || failure.Code != cni.CodeRefused || !strings.Contains(failure.Error(), "still serves the pods") {
			if err == nil {
				_, err = m.do(cni.CommandDel, "alone-two", two.Path())
			}
			return fmt.Errorf("ADD: %w", err)
		}
		return nil
	})
	if err := reaches(one, hostAddress(), connects); err != nil {
		t.Errorf("of a network that is not configured any more: %v", err)
	}
	if _, err := m.do(cni.CommandDel, "alone-one", one.Path()); err != nil {
		t.Error(err)
	}
	m.want(map[string]string{})
}

// TestBesideTheOverlay: two networks on one node. ADD follows placement, CHECK and DEL the record; GC covers both networks. Over restarts,
// each network keeps what the other has programmed.
func TestBesideTheOverlay(t *testing.T) {
	host := hostSpace(t)
	vswitch := ovstest.StartIn(t, host)
	m := newMachine(t, "beside", host, vswitch.RunDir)
	m.create(&networkv1.ClusterNetwork{
		ObjectMeta: metav1.ObjectMeta{Name: "default"}, ServiceNetwork: "172.30.0.0/16", PluginName: "redhat/openshift-ovs-subnet",
		ClusterNetworks: []networkv1.ClusterNetworkEntry{{CIDR: "10.128.0.0/14", HostSubnetLength: 9}},
	})
	m.create(&networkv1.HostSubnet{ObjectMeta: metav1.ObjectMeta{Name: m.name}, Host: m.name, HostIP: hostAddress().String(), Subnet: "10.128.0.0/23"})
	m.create(cableConfig())
	m.start()
	m.serves()
	gateway := netip.MustParseAddr("10.128.0.1")
	a, b := m.pod("beside-a", ""), m.pod("beside-b", networktest.Name)
	m.add("beside-a", a)
	m.add("beside-b", b)
	m.want(map[string]string{"beside-a": "overlay", "beside-b": networktest.Name})
	both := func(when string) {
		t.Helper()
		if err := reaches(a, gateway, connects); err != nil {
			t.Errorf("%s: the overlay's pod: %v", when, err)
		}
		if err := reaches(b, hostAddress(), connects); err != nil {
			t.Errorf("%s: the other network's pod: %v", when, err)
		}
		if set := m.run("nft", "list", "set", "inet", networktest.Table, networktest.Pods); !strings.Contains(set, "10.99.0.1") {
			t.Errorf("%s: the other network's set: %s", when, set)
		}
		for name, pod := range map[string]string{"beside-a": a.Path(), "beside-b": b.Path()} {
			if _, err := m.do(cni.CommandCheck, name, pod); err != nil {
				t.Errorf("%s: CHECK of %s: %v", when, name, err)
			}
		}
	}
	both("attached")
	m.refused("beside-c", m.pod("beside-c", "fabric"), `network "fabric"`, "does not exist", "overlay, cable")
	m.refused("beside-d", m.pod("beside-d", "cable/short"), `no part "short"`)

	// A later change of placement does not affect an attached pod.
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "beside-b"}}
	patch := client.RawPatch("application/merge-patch+json", []byte(`{"metadata":{"annotations":{"`+placement.AnnotationNetwork+`":"overlay"}}}`))
	if err := m.Patch(t.Context(), pod, patch); err != nil {
		t.Fatal(err)
	}
	for range 3 {
		m.kill()
		m.start()
		m.serves()
		eventually(t, "CHECK after a restart", func() error {
			_, err := m.do(cni.CommandCheck, "beside-b", b.Path())
			return err
		})
		both("after a restart")
	}
	e := m.pod("beside-e", networktest.Name)
	m.add("beside-e", e)
	if _, err := m.do(cni.CommandGC, `{"containerID":"c-beside-b","ifname":"eth0"}`, ""); err != nil {
		t.Errorf("GC: %v", err)
	}
	m.want(map[string]string{"beside-b": networktest.Name})
	if err := reaches(b, hostAddress(), connects); err != nil {
		t.Errorf("after GC: %v", err)
	}
	if _, err := m.do(cni.CommandDel, "beside-b", b.Path()); err != nil {
		t.Error(err)
	}
	m.want(map[string]string{})
}
