package node

import (
	"fmt"
	"strconv"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	weftv1 "weft.dev/weft/api/weft/v1"
	"weft.dev/weft/internal/hostport/publish"
)

// report reports in the node's NodeNetwork whether the node serves pods of the network, and how.
func (n *Network) report() {
	if n.opts.Report == nil {
		return
	}
	n.reporting.Lock()
	defer n.reporting.Unlock()
	b, _ := n.current()
	ready := metav1.Condition{Type: weftv1.NetworkReady, Status: metav1.ConditionTrue, Reason: "Serving"}
	section := weftv1.NodeNetworkSection{Name: weftv1.NetworkFlannel}
	if b != nil {
		ranges := make([]string, len(b.Ranges))
		for i, r := range b.Ranges {
			ranges[i] = r.String()
		}
		section.Facts = map[string]string{"bridge": b.Name, "subnets": strings.Join(ranges, ","), "mtu": strconv.Itoa(b.MTU)}
		ready.Message = fmt.Sprintf("pods can be attached to bridge %s, with addresses of %s", b.Name, strings.Join(ranges, " and "))
	}
	if err := n.Ready(); err != nil {
		ready.Status, ready.Reason, ready.Message = metav1.ConditionFalse, "NotServing", err.Error()
	}
	section.Conditions = []metav1.Condition{ready}
	conflicts := n.hostPorts.Conflicts(n.opts.Records.Attached())
	if len(conflicts) > 0 || n.conflicts > 0 {
		section.Conditions = append(section.Conditions, hostPortsCondition(conflicts))
	}
	n.conflicts = len(conflicts)
	n.opts.Report(section)
}

// hostPortsCondition reports whether each pod has its host ports, with the reason for the first that lacks one.
func hostPortsCondition(conflicts []publish.Conflict) metav1.Condition {
	if len(conflicts) == 0 {
		return metav1.Condition{Type: weftv1.NetworkHostPorts, Status: metav1.ConditionTrue, Reason: "InEffect"}
	}
	message := conflicts[0].Err.Error()
	if more := len(conflicts) - 1; more > 0 {
		message += fmt.Sprintf("; %d more pods lack one", more)
	}
	return metav1.Condition{Type: weftv1.NetworkHostPorts, Status: metav1.ConditionFalse, Reason: "Conflict", Message: message}
}

// conflictsEnded reports again if a conflict about host ports was reported: it may have ended with the attachments that were removed.
func (n *Network) conflictsEnded() {
	n.reporting.Lock()
	reported := n.conflicts
	n.reporting.Unlock()
	if reported > 0 {
		n.report()
	}
}
