package status_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"path/filepath"
	"strings"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	networkv1 "weft.dev/weft/api/openshift/v1"
	weftv1 "weft.dev/weft/api/weft/v1"
	"weft.dev/weft/internal/goldentest"
	"weft.dev/weft/internal/status"
)

func condition(kind string, holds bool, message string) metav1.Condition {
	c := metav1.Condition{Type: kind, Status: metav1.ConditionFalse, Message: message}
	if holds {
		c.Status = metav1.ConditionTrue
	}
	return c
}

func node(name string) corev1.Node {
	return corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name}, Status: corev1.NodeStatus{Conditions: []corev1.NodeCondition{
		{Type: corev1.NodeReady, Status: corev1.ConditionTrue},
	}}}
}

func subnet(name, cidr string) networkv1.HostSubnet {
	return networkv1.HostSubnet{
		ObjectMeta: metav1.ObjectMeta{Name: name}, Host: name, HostIP: "192.0.2.1", Subnet: cidr,
		Status: networkv1.HostSubnetStatus{
			Conditions: []metav1.Condition{
				condition(networkv1.ConditionReady, true, ""), condition(networkv1.ConditionEnginesInStep, true, ""),
				condition(networkv1.ConditionUnobstructed, true, ""),
			},
			Versions:    networkv1.HostSubnetVersions{Weft: "v0.2", OpenVSwitch: "3.1.0", Kernel: "6.1.0", Datapath: "system"},
			Attachments: 3, Addresses: networkv1.HostSubnetAddresses{Used: 3, Total: 509},
			Engines: []networkv1.HostSubnetEngine{{Name: "openflow", InStep: true, Items: 58}, {Name: "nft", InStep: true, Items: 21}},
		},
	}
}

func agentPod(node string, ready bool) corev1.Pod {
	c := corev1.PodCondition{Type: corev1.PodReady, Status: corev1.ConditionFalse}
	if ready {
		c.Status = corev1.ConditionTrue
	}
	return corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: "weft-agent-" + node}, Spec: corev1.PodSpec{NodeName: node},
		Status: corev1.PodStatus{Conditions: []corev1.PodCondition{c}},
	}
}

// now is the API server's time in all tests.
var now = time.Date(2026, 3, 4, 5, 6, 7, 0, time.UTC) //nolint:gochecknoglobals // a constant

// well is a cluster of two nodes without problems.
func well() *status.Facts {
	return &status.Facts{
		Now: now, Namespace: "weft",
		Network: &networkv1.ClusterNetwork{
			ObjectMeta: metav1.ObjectMeta{Name: "default"}, ServiceNetwork: "172.30.0.0/16", PluginName: networkv1.PluginSubnet,
			ClusterNetworks: []networkv1.ClusterNetworkEntry{{CIDR: "10.128.0.0/14", HostSubnetLength: 9}},
			Status: networkv1.ClusterNetworkStatus{Conditions: []metav1.Condition{
				condition(networkv1.ConditionValid, true, ""), condition(networkv1.ConditionReady, true, "every node has a subnet"),
			}},
		},
		HostSubnets: []networkv1.HostSubnet{subnet("n1", "10.128.0.0/23"), subnet("n2", "10.129.0.0/23")},
		Nodes:       []corev1.Node{node("n2"), node("n1")},
		AgentSet: &appsv1.DaemonSet{Status: appsv1.DaemonSetStatus{
			DesiredNumberScheduled: 2, NumberReady: 2, UpdatedNumberScheduled: 2,
		}},
		AgentPods: []corev1.Pod{agentPod("n1", true), agentPod("n2", true)},
		Controller: &appsv1.Deployment{
			Spec: appsv1.DeploymentSpec{Replicas: new(int32(2))}, Status: appsv1.DeploymentStatus{ReadyReplicas: 2},
		},
		Lease: &coordinationv1.Lease{Spec: coordinationv1.LeaseSpec{
			HolderIdentity: new("n1_5e3f"), LeaseDurationSeconds: new(int32(15)), RenewTime: &metav1.MicroTime{Time: now.Add(-time.Second)},
		}},
	}
}

// set sets a condition of a HostSubnet.
func set(hs *networkv1.HostSubnet, c metav1.Condition) {
	for i := range hs.Status.Conditions {
		if hs.Status.Conditions[i].Type == c.Type {
			hs.Status.Conditions[i] = c
			return
		}
	}
	hs.Status.Conditions = append(hs.Status.Conditions, c)
}

// vpcs is a section whose facts are the number of VPCs.
func vpcs() status.Section {
	return status.Section{Name: "vpc", Judge: func(collected any, all *status.Facts) status.SectionReport {
		count, _ := collected.(int)
		said := status.SectionReport{Line: fmt.Sprintf("%d VPCs on %d nodes", count, len(all.Nodes)), Facts: map[string]int{"vpcs": count}}
		if count == 0 {
			said.Warnings = []status.Finding{{Object: objectVPC, What: "no Vpc is used", Next: "create one"}}
		}
		return said
	}}
}

const objectVPC = "vpcs.kubeovn.io"

func section(name string, conditions ...metav1.Condition) weftv1.NodeNetworkSection {
	return weftv1.NodeNetworkSection{Name: name, Conditions: conditions}
}

func reports(node string, sections ...weftv1.NodeNetworkSection) weftv1.NodeNetwork {
	return weftv1.NodeNetwork{ObjectMeta: metav1.ObjectMeta{Name: node}, Status: weftv1.NodeNetworkStatus{Networks: sections}}
}

// The section of a configured network is collected. A kind that is not defined is no problem; a kind that may not be read is.
func TestCollectSections(t *testing.T) {
	scheme := runtime.NewScheme()
	if err := errors.Join(corev1.AddToScheme(scheme), appsv1.AddToScheme(scheme), coordinationv1.AddToScheme(scheme), networkv1.AddToScheme(scheme), weftv1.AddToScheme(scheme)); err != nil {
		t.Fatal(err)
	}
	objects := fake.NewClientBuilder().WithScheme(scheme).WithObjects(
		&corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: "kube-flannel", Name: "kube-flannel-cfg"}},
		&weftv1.NodeNetwork{ObjectMeta: metav1.ObjectMeta{Name: "n1"}},
	).WithInterceptorFuncs(interceptor.Funcs{List: func(ctx context.Context, c client.WithWatch, list client.ObjectList, options ...client.ListOption) error {
		switch list.(type) {
		case *corev1.ServiceList:
			return &meta.NoKindMatchError{}
		case *corev1.SecretList:
			return apierrors.NewForbidden(schema.GroupResource{Resource: "secrets"}, "", errors.New("no right"))
		}
		return c.List(ctx, list, options...)
	}}).Build()
	reading := func(kind string, into client.ObjectList) status.Section {
		return status.Section{Name: kind, Collect: func(ctx context.Context, from *status.Reader) any {
			if !from.List(ctx, kind, into) {
				return nil
			}
			return 1
		}}
	}
	configured := status.Section{Name: "flannel", Collect: func(ctx context.Context, from *status.Reader) any {
		var config corev1.ConfigMap
		if !from.Get(ctx, "ConfigMap", client.ObjectKey{Namespace: "kube-flannel", Name: "kube-flannel-cfg"}, &config) {
			return nil
		}
		return &config
	}}
	facts, err := status.Collect(t.Context(), objects, "weft", reading("Service", &corev1.ServiceList{}), reading("Secret", &corev1.SecretList{}), configured)
	if err != nil {
		t.Fatal(err)
	}
	if len(facts.Sections) != 1 || facts.Sections[0].Section.Name != "flannel" || len(facts.NodeNetworks) != 1 {
		t.Errorf("sections %v, NodeNetworks %v", facts.Sections, facts.NodeNetworks)
	}
	if len(facts.Undefined) != 0 || len(facts.Unreadable) != 1 || facts.Unreadable[0].What != "Secret" {
		t.Errorf("undefined %v, unreadable %v", facts.Undefined, facts.Unreadable)
	}
}

// TestReports compares the text for clusters in different states.
func TestReports(t *testing.T) {
	for name, change := range map[string]func(*status.Facts){
		"well": func(*status.Facts) {},
		"nothing-installed": func(f *status.Facts) {
			*f = status.Facts{Now: now, Namespace: "weft", Undefined: []string{"ClusterNetwork", "HostSubnet"}, Nodes: []corev1.Node{node("n1")}}
		},
		"no-clusternetwork": func(f *status.Facts) {
			f.Network, f.HostSubnets = nil, nil
			f.AgentPods = []corev1.Pod{agentPod("n1", false), agentPod("n2", false)}
			f.AgentSet.Status.NumberReady = 0
		},
		"clusternetwork-wrong": func(f *status.Facts) { f.Network.ServiceNetwork = "10.129.0.0/16" },
		"subnets-exhausted": func(f *status.Facts) {
			f.Network.Status.Conditions[1] = condition(networkv1.ConditionReady, false, "no subnet is left for node n2: append a range to clusterNetworks")
			f.HostSubnets = f.HostSubnets[:1]
		},
		"agent-missing": func(f *status.Facts) { f.AgentPods, f.AgentSet.Status.NumberReady = f.AgentPods[:1], 1 },
		"agent-crashes": func(f *status.Facts) {
			pod := agentPod("n2", false)
			pod.Status.ContainerStatuses = []corev1.ContainerStatus{{Name: "agent", State: corev1.ContainerState{
				Waiting: &corev1.ContainerStateWaiting{Reason: "CrashLoopBackOff", Message: "back-off 10s"},
			}}}
			f.AgentPods[1], f.AgentSet.Status.NumberReady = pod, 1
		},
		"agent-waits": func(f *status.Facts) {
			f.AgentPods[1], f.AgentSet.Status.NumberReady = agentPod("n2", false), 1
			set(&f.HostSubnets[1], condition(networkv1.ConditionReady, false, "waiting for Open vSwitch's database at /run/openvswitch"))
		},
		"not-in-step": func(f *status.Facts) {
			set(&f.HostSubnets[1], condition(networkv1.ConditionEnginesInStep, false, "not programmed: openflow: attachment/x/eth0: no room in the table"))
			f.HostSubnets[1].Status.Engines[0] = networkv1.HostSubnetEngine{Name: "openflow", Items: 60, Failures: []string{"attachment/x/eth0: no room in the table"}}
		},
		"refused": func(f *status.Facts) {
			c := condition(networkv1.ConditionEnginesInStep, false, "the node stays as it was: ClusterNetwork default: mtu 9000 and the tunnel's 50 bytes do not fit the MTU of eth0, 1500")
			c.Reason = networkv1.ReasonRefused
			set(&f.HostSubnets[1], c)
		},
		"leftovers": func(f *status.Facts) {
			c := condition(networkv1.ConditionUnobstructed, false, "left from OpenShift SDN: /etc/cni/net.d/80-openshift-network.conf: a CNI configuration of OpenShift SDN, which does not work without its daemon: remove it")
			c.Reason = networkv1.ReasonLeftovers
			set(&f.HostSubnets[1], c)
		},
		"node-lost": func(f *status.Facts) {
			f.Nodes[0].Status.Conditions[0] = corev1.NodeCondition{Type: corev1.NodeReady, Status: corev1.ConditionUnknown, Message: "Kubelet stopped posting node status."}
			f.AgentPods[1] = agentPod("n2", false)
		},
		"no-leader": func(f *status.Facts) {
			f.Lease.Spec.RenewTime = &metav1.MicroTime{Time: now.Add(-time.Minute)}
			f.Controller.Status.ReadyReplicas = 0
		},
		"one-replica": func(f *status.Facts) { f.Controller.Status.ReadyReplicas = 1 },
		"upgrade": func(f *status.Facts) {
			f.HostSubnets[1].Status.Versions.Weft, f.AgentSet.Status.UpdatedNumberScheduled = "v0.3", 1
		},
		"addresses-run-out": func(f *status.Facts) {
			f.HostSubnets[0].Status.Addresses.Used, f.HostSubnets[1].Status.Addresses.Used = 460, 509
		},
		"firewall": func(f *status.Facts) {
			set(&f.HostSubnets[0], condition(networkv1.ConditionUnobstructed, false, "host firewall: ip filter FORWARD drops what comes in by tun0"))
		},
		"another-network-beside": func(f *status.Facts) {
			f.Sections = []status.Collected{{Section: vpcs(), Facts: 3}}
			f.NodeNetworks = []weftv1.NodeNetwork{
				reports("n1", section("overlay", condition("Ready", false, "the HostSubnet says this better")), section("vpc", condition("Ready", true, ""))),
				reports("n2", section("vpc", condition("Ready", false, "ovn-controller does not answer"), condition("InStep", true, ""))),
			}
		},
		"another-network-alone": func(f *status.Facts) {
			f.Network, f.HostSubnets = nil, nil
			f.Sections = []status.Collected{{Section: vpcs(), Facts: 0}}
			f.NodeNetworks = []weftv1.NodeNetwork{reports("n1", section("vpc", condition("Ready", true, "")))}
		},
		"another-network-agents": func(f *status.Facts) {
			f.Network, f.HostSubnets = nil, nil
			f.Sections = []status.Collected{{Section: vpcs(), Facts: 3}}
			f.AgentPods = []corev1.Pod{agentPod("n2", false)}
		},
		"many-nodes": func(f *status.Facts) {
			for i := range 100 {
				name := fmt.Sprintf("worker-%02d", i)
				f.Nodes, f.AgentPods = append(f.Nodes, node(name)), append(f.AgentPods, agentPod(name, i%4 != 0))
				f.HostSubnets = append(f.HostSubnets, subnet(name, "10.130.0.0/23"))
			}
		},
		"forbidden": func(f *status.Facts) {
			f.AgentSet, f.AgentPods = nil, nil
			f.Unreadable = []status.Unreadable{{What: "DaemonSet", Err: errors.New(`daemonsets.apps "weft-agent" is forbidden`)}}
		},
		"agents-outside-pods": func(f *status.Facts) { f.AgentSet, f.AgentPods, f.Controller = nil, nil, nil },
	} {
		t.Run(name, func(t *testing.T) {
			facts := well()
			change(facts)
			report := status.Judge(facts)
			if report.OK != (len(report.Problems) == 0) {
				t.Errorf("ok is %v with %d problems", report.OK, len(report.Problems))
			}
			var text strings.Builder
			if err := report.Text(&text); err != nil {
				t.Fatal(err)
			}
			golden(t, name+".txt", text.String())
		})
	}
}

// TestShape compares the JSON of a report, which scripts rely on.
func TestShape(t *testing.T) {
	facts := well()
	facts.AgentPods[1] = agentPod("n2", false)
	report := status.Judge(facts)
	text, err := json.MarshalIndent(report, "", "  ")
	if err != nil {
		t.Fatal(err)
	}
	golden(t, "shape.json", string(text)+"\n")
	empty, err := json.Marshal(status.Judge(&status.Facts{}))
	if err != nil || strings.Contains(string(empty), `"problems":null`) || strings.Contains(string(empty), `"nodes":null`) {
		t.Errorf("lists of an empty report are no lists: %s, %v", empty, err)
	}
}

func golden(t *testing.T, name, got string) {
	t.Helper()
	path := filepath.Join("testdata", name)
	goldentest.Compare(t, path, got)
}
