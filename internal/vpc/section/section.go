// Package section has the section of weft status about VPCs: how many there are, and which objects are not in effect.
package section

import (
	"context"
	"fmt"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"

	kubeovn "weft.dev/weft/api/kubeovn/v1"
	weftv1 "weft.dev/weft/api/weft/v1"
	"weft.dev/weft/internal/status"
)

// collected are the objects that the section judges.
type collected struct {
	vpcs    []kubeovn.Vpc
	subnets []kubeovn.Subnet
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
	return &collected{vpcs.Items, subnets.Items}
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
	for i := range c.vpcs {
		add(&report, "vpc/"+c.vpcs[i].Name, c.vpcs[i].Status.Conditions)
	}
	for i := range c.subnets {
		add(&report, "subnet/"+c.subnets[i].Name, c.subnets[i].Status.Conditions)
	}
	return report
}

// add adds the problems in an object's conditions: an object that is not in effect is a problem, an unsupported field a warning.
func add(report *status.SectionReport, object string, conditions []metav1.Condition) {
	next := "kubectl get " + object + " -o yaml"
	for _, c := range conditions {
		finding := status.Finding{Object: object, What: c.Type + " is " + string(c.Status) + ": " + c.Message, Next: next}
		switch {
		case c.Type == kubeovn.ConditionReady && c.Status != metav1.ConditionTrue:
			report.Problems = append(report.Problems, finding)
		case c.Type == kubeovn.ConditionSupported && c.Status != metav1.ConditionTrue, c.Type == kubeovn.ConditionShadowed && c.Status == metav1.ConditionTrue:
			report.Warnings = append(report.Warnings, finding)
		}
	}
}
