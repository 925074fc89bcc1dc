package node

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	weftv1 "weft.dev/weft/api/weft/v1"
	"weft.dev/weft/internal/neutron/host"
	"weft.dev/weft/internal/neutron/pipeline"
	"weft.dev/weft/internal/node"
	"weft.dev/weft/internal/ovsdb"
)

// Reasons of the section's condition Ready.
const (
	reasonServing  = "Serving"
	reasonProblems = "Problems"
)

// reporter reports the node's section of its NodeNetwork.
type reporter struct {
	node    *node.Node
	vswitch *node.Switch
	report  func(weftv1.NodeNetworkSection)
	// counts returns how many ports the node has, and on how many of them pods are.
	counts func() (all, used int)
}

// describe reports the node's section of its NodeNetwork. It returns an error while the node cannot serve pods, so that it is called again.
func (r *reporter) describe(ctx context.Context) error {
	look, err := r.vswitch.Database.Foreign(ctx, host.IntegrationBridge)
	if err != nil {
		return fmt.Errorf("report of the node: %w", err)
	}
	problems := problemsOf(&look, r.vswitch.Datapath)
	ranges, left, err := r.ranges()
	if err != nil {
		return fmt.Errorf("report of the node: %w", err)
	}
	if ctx.Err() == nil {
		all, used := r.counts()
		said := section(&look, problems, all, used)
		said.Neutron.Ranges = ranges
		if left > 0 { // pods can be attached nevertheless
			said.Neutron.Problems = append(said.Neutron.Problems, fmt.Sprintf(
				"the node has %d routes more than the %d that are reported: ports with addresses in them get no pod; summarize the routes", left, mostRanges))
		}
		r.report(said)
	}
	if len(problems) > 0 {
		return errors.New(strings.Join(problems, "; "))
	}
	return nil
}

// mostRanges limits the reported routes of a node: the API's maximum.
const mostRanges = 256

// ranges are those that the node routes, except to its pods: the controller gives the node no port with an address in them. left counts
// those that are not reported; the node itself assigns no pod an address in them.
func (r *reporter) ranges() (texts []string, left int, err error) {
	if r.node.Ranges == nil {
		return nil, 0, nil
	}
	found, err := r.node.Ranges(host.Device)
	if err != nil {
		return nil, 0, err //nolint:wrapcheck // the caller wraps it
	}
	for _, p := range found[:min(len(found), mostRanges)] {
		texts = append(texts, p.String())
	}
	return texts, max(0, len(found)-mostRanges), nil
}

// problemsOf returns why pods cannot be served, and what to do.
func problemsOf(look *ovsdb.Foreign, datapath string) []string {
	var problems []string
	switch {
	case !look.Exists:
		problems = append(problems, fmt.Sprintf("bridge %s does not exist; run ovn-controller or Neutron's agent on this node", host.IntegrationBridge))
	case look.Datapath != datapath:
		problems = append(problems, fmt.Sprintf("bridge %s has datapath type %s and %s has %s; packets cannot pass between them: set both to one type (weft agent --datapath)",
			host.IntegrationBridge, look.Datapath, pipeline.Bridge, datapath))
	}
	if look.Hostname == "" {
		problems = append(problems, "external_ids:hostname of Open vSwitch is not set; set it to the host name that Neutron knows the node by")
	}
	return problems
}

func section(look *ovsdb.Foreign, problems []string, all, used int) weftv1.NodeNetworkSection {
	ready := metav1.Condition{
		Type: weftv1.NetworkReady, Status: metav1.ConditionTrue, Reason: reasonServing, Message: "pods can be attached to Neutron ports",
	}
	if len(problems) > 0 {
		ready.Status, ready.Reason, ready.Message = metav1.ConditionFalse, reasonProblems, strings.Join(problems, "; ")
	}
	return weftv1.NodeNetworkSection{
		Name: weftv1.NetworkNeutron, Conditions: []metav1.Condition{ready},
		Facts:   map[string]string{"ports": strconv.Itoa(all), "portsInUse": strconv.Itoa(used)},
		Neutron: &weftv1.NeutronNode{Hostname: look.Hostname, Datapath: look.Datapath, Problems: problems},
	}
}
