package cluster

import (
	"fmt"

	networkv1 "weft.dev/weft/api/openshift/v1"
	"weft.dev/weft/internal/cluster"
	"weft.dev/weft/internal/overlay/cluster/plan"
)

// Reasons of events that report no problem, and the actions of events.
const (
	reasonGiven = "SubnetGiven"
	reasonFreed = "SubnetFreed"

	actionAssignSubnet = "AssignSubnet"
	actionAssignVNID   = "AssignVNID"

	actionJudgeFirewall = "JudgeEgressFirewall"
)

// subnetEvents returns a function that sends an event for each written HostSubnet whose subnet was assigned or freed. before are the
// HostSubnets that the plan was made from.
func subnetEvents(report *cluster.Reporter, before []networkv1.HostSubnet, result plan.SubnetPlan) func(*networkv1.HostSubnet) {
	had := make(map[string]string, len(before))
	for i := range before {
		had[before[i].Name] = before[i].Subnet
	}
	return func(hs *networkv1.HostSubnet) {
		object := plan.Object{Kind: plan.KindHostSubnet, Name: hs.Name, UID: hs.UID}
		why, freed := result.Because[hs.Name]
		switch {
		case hs.Subnet == "":
		case freed:
			report.Normal(object, reasonFreed, actionAssignSubnet, "subnet "+hs.Subnet+" is free again: "+why)
		case had[hs.Name] == "":
			report.Normal(object, reasonGiven, actionAssignSubnet, fmt.Sprintf("subnet %s is given to %s", hs.Subnet, hs.Name))
		}
	}
}
