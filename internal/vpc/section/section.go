// Package section has the section of weft status about VPCs: how many there are, which objects are not in effect, and which of OVN's programs
// are missing.
package section

import (
	"context"
	"fmt"
	"slices"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	kubeovn "weft.dev/weft/api/kubeovn/v1"
	weftv1 "weft.dev/weft/api/weft/v1"
	"weft.dev/weft/internal/status"
)

// Names of the StatefulSet with OVN's databases and of the DaemonSet with the nodes' ovn-controllers.
const (
	databasesName   = "weft-ovn"
	controllersName = "weft-ovn-controller"
)

// collected are the objects that the section judges.
type collected struct {
	vpcs    []kubeovn.Vpc
	subnets []kubeovn.Subnet
	// databases runs OVN's databases in pods; nil if they run elsewhere.
	databases *appsv1.StatefulSet
	servers   []corev1.Pod
	// controllers runs the nodes' ovn-controllers in pods; nil if they run elsewhere.
	controllers *appsv1.DaemonSet
	// nat are the objects of NAT gateways.
	nat []conditioned
}

// conditioned is an object with conditions, named as for kubectl get.
type conditioned struct {
	object     string
	conditions []metav1.Condition
}

// Counts are the section's facts for programs.
type Counts struct {
	Vpcs    int `json:"vpcs"`
	Subnets int `json:"subnets"`
	// Chassis are the nodes that have joined OVN.
	Chassis int `json:"chassis"`
}

// Section returns the section of VPCs. A cluster without a Vpc has none.
func Section() status.Section {
	return status.Section{
		Name: weftv1.NetworkVPC, Schemes: []func(*runtime.Scheme) error{kubeovn.AddToScheme},
		Kinds: []status.Kind{
			{Object: &kubeovn.Vpc{}, Version: kubeovn.GroupVersion(), Name: "Vpc"},
			{Object: &kubeovn.Subnet{}, Version: kubeovn.GroupVersion(), Name: "Subnet"},
			{Object: &kubeovn.VpcNatGateway{}, Version: kubeovn.GroupVersion(), Name: "VpcNatGateway"},
			{Object: &kubeovn.IptablesEIP{}, Version: kubeovn.GroupVersion(), Name: "IptablesEIP"},
			{Object: &kubeovn.IptablesSnatRule{}, Version: kubeovn.GroupVersion(), Name: "IptablesSnatRule"},
			{Object: &kubeovn.IptablesDnatRule{}, Version: kubeovn.GroupVersion(), Name: "IptablesDnatRule"},
			{Object: &kubeovn.IptablesFIPRule{}, Version: kubeovn.GroupVersion(), Name: "IptablesFIPRule"},
			{Object: &appsv1.StatefulSet{}, Version: appsv1.SchemeGroupVersion, Name: "StatefulSet", Namespaced: true},
		},
		Collect: collect, Judge: judge,
	}
}

func collect(ctx context.Context, from *status.Reader) any {
	var vpcs kubeovn.VpcList
	if !from.List(ctx, "Vpcs", &vpcs) || len(vpcs.Items) == 0 {
		return nil
	}
	var subnets kubeovn.SubnetList
	from.List(ctx, "Subnets", &subnets)
	found := &collected{vpcs: vpcs.Items, subnets: subnets.Items, nat: collectNAT(ctx, from)}
	var controllers appsv1.DaemonSet
	if from.Get(ctx, "DaemonSet", client.ObjectKey{Namespace: from.Namespace(), Name: controllersName}, &controllers) {
		found.controllers = &controllers
	}
	var databases appsv1.StatefulSet
	if from.Get(ctx, "StatefulSet", client.ObjectKey{Namespace: from.Namespace(), Name: databasesName}, &databases) {
		var pods corev1.PodList
		from.List(ctx, "Pod", &pods, client.InNamespace(from.Namespace()), client.MatchingLabels{"app.kubernetes.io/name": databasesName})
		found.databases, found.servers = &databases, pods.Items
	}
	return found
}

// collectNAT reads the objects of NAT gateways.
func collectNAT(ctx context.Context, from *status.Reader) (found []conditioned) {
	var (
		gateways kubeovn.VpcNatGatewayList
		eips     kubeovn.IptablesEIPList
		snats    kubeovn.IptablesSnatRuleList
		dnats    kubeovn.IptablesDnatRuleList
		fips     kubeovn.IptablesFIPRuleList
	)
	from.List(ctx, "VpcNatGateways", &gateways)
	from.List(ctx, "IptablesEIPs", &eips)
	from.List(ctx, "IptablesSnatRules", &snats)
	from.List(ctx, "IptablesDnatRules", &dnats)
	from.List(ctx, "IptablesFIPRules", &fips)
	for i := range gateways.Items {
		found = append(found, conditioned{"vpc-nat-gw/" + gateways.Items[i].Name, gateways.Items[i].Status.Conditions})
	}
	for i := range eips.Items {
		found = append(found, conditioned{"eip/" + eips.Items[i].Name, eips.Items[i].Status.Conditions})
	}
	for i := range snats.Items {
		found = append(found, conditioned{"snat/" + snats.Items[i].Name, snats.Items[i].Status.Conditions})
	}
	for i := range dnats.Items {
		found = append(found, conditioned{"dnat/" + dnats.Items[i].Name, dnats.Items[i].Status.Conditions})
	}
	for i := range fips.Items {
		found = append(found, conditioned{"fip/" + fips.Items[i].Name, fips.Items[i].Status.Conditions})
	}
	return found
}

func judge(facts any, all *status.Facts) status.SectionReport {
	c, ok := facts.(*collected)
	if !ok {
		return status.SectionReport{}
	}
	counts := Counts{Vpcs: len(c.vpcs), Subnets: len(c.subnets), Chassis: all.Serving(weftv1.NetworkVPC)}
	report := status.SectionReport{
		Line:  fmt.Sprintf("VPCs: %d, with %d subnets; nodes that have joined OVN: %d of %d", counts.Vpcs, counts.Subnets, counts.Chassis, len(all.Nodes)),
		Facts: counts,
	}
	c.addServers(&report, all.Namespace)
	c.addControllers(&report, all.Namespace)
	for i := range c.vpcs {
		add(&report, "vpc/"+c.vpcs[i].Name, c.vpcs[i].Status.Conditions)
	}
	for i := range c.subnets {
		add(&report, "subnet/"+c.subnets[i].Name, c.subnets[i].Status.Conditions)
	}
	for i := range c.nat {
		add(&report, c.nat[i].object, c.nat[i].conditions)
	}
	return report
}

// addServers adds the servers of OVN's databases that are not ready. Of three, one may be missing.
func (c *collected) addServers(report *status.SectionReport, namespace string) {
	if c.databases == nil {
		return
	}
	wanted := 1
	if c.databases.Spec.Replicas != nil {
		wanted = int(*c.databases.Spec.Replicas)
	}
	var missing []string
	for i := range wanted {
		name := fmt.Sprintf("%s-%d", databasesName, i)
		at := slices.IndexFunc(c.servers, func(pod corev1.Pod) bool { return pod.Name == name })
		if at < 0 || !slices.ContainsFunc(c.servers[at].Status.Conditions, func(condition corev1.PodCondition) bool {
			return condition.Type == corev1.PodReady && condition.Status == corev1.ConditionTrue
		}) {
			missing = append(missing, name)
		}
	}
	for _, name := range missing {
		finding := status.Finding{
			Object: "pod/" + name, What: "no server of OVN's databases runs there, or it is not ready: traffic goes on, and no pod can be added to a VPC",
			Next: "kubectl -n " + namespace + " describe pod " + name + "; docs/vpc.md, Symptoms",
		}
		if len(missing)*2 < wanted {
			finding.What = "this server of OVN's databases is missing, or not ready: the others serve, and none of them may fail"
			report.Warnings = append(report.Warnings, finding)
			continue
		}
		report.Problems = append(report.Problems, finding)
	}
}

// addControllers adds a problem if the ovn-controller of a node is not ready.
func (c *collected) addControllers(report *status.SectionReport, namespace string) {
	if c.controllers == nil {
		return
	}
	ready, wanted := c.controllers.Status.NumberReady, c.controllers.Status.DesiredNumberScheduled
	if ready < wanted {
		report.Problems = append(report.Problems, status.Finding{
			Object: "daemonset/" + controllersName,
			What:   fmt.Sprintf("ovn-controller is ready on %d of %d nodes: traffic goes on, and no pod of a VPC can be added on the others", ready, wanted),
			Next:   "kubectl -n " + namespace + " get pods -o wide -l app.kubernetes.io/component=ovn-controller; docs/vpc.md, Symptoms",
		})
	}
}

// add adds the problems in an object's conditions: an object that is not in effect is a problem, an unsupported field or a rule that matches
// nothing a warning.
func add(report *status.SectionReport, object string, conditions []metav1.Condition) {
	next := "kubectl get " + object + " -o yaml"
	for _, c := range conditions {
		finding := status.Finding{Object: object, What: c.Type + " is " + string(c.Status) + ": " + c.Message, Next: next}
		switch {
		case c.Type == kubeovn.ConditionReady && c.Status != metav1.ConditionTrue:
			report.Problems = append(report.Problems, finding)
		case c.Type == kubeovn.ConditionSupported && c.Status != metav1.ConditionTrue, c.Type == kubeovn.ConditionShadowed && c.Status == metav1.ConditionTrue,
			c.Type == kubeovn.ConditionMatched && c.Status != metav1.ConditionTrue:
			report.Warnings = append(report.Warnings, finding)
		}
	}
}
