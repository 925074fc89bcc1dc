package node

import (
	"fmt"
	"strconv"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	weftv1 "weft.dev/weft/api/weft/v1"
)

// report reports in the node's NodeNetwork whether the node serves pods of the network, and how.
func (n *Network) report(b *bridge) {
	if n.opts.Report == nil {
		return
	}
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
	n.opts.Report(section)
}
