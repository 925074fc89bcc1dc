package tenant

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	"k8s.io/apimachinery/pkg/watch"

	networkv1 "weft.dev/weft/api/openshift/v1"
)

// nodes are the cluster's nodes, and whether a change is in effect there.
type nodes struct {
	version uint64
	done    map[string]bool
}

// take takes note of a node. Other hosts know nothing of VNIDs.
func (n *nodes) take(subnet *networkv1.HostSubnet) {
	if subnet.Annotations[networkv1.AnnotationNodeUID] == "" {
		return
	}
	realised, err := strconv.ParseUint(subnet.Status.VNIDsVersion, 10, 64)
	n.done[subnet.Name] = n.version == 0 || err == nil && realised >= n.version
}

// tell writes to a report how far it is, and reports whether it is done.
func (n *nodes) tell(report *Report) bool {
	report.Nodes, report.Realised, report.Behind = len(n.done), 0, nil
	for _, name := range slices.Sorted(maps.Keys(n.done)) {
		if n.done[name] {
			report.Realised++
		} else {
			report.Behind = append(report.Behind, name)
		}
	}
	return len(report.Behind) == 0
}

// realise waits until a change of VNIDs is in effect on all nodes.
func (c *Client) realise(ctx context.Context, report *Report, version uint64, progress func(string)) error {
	var list networkv1.HostSubnetList
	if err := c.objects.List(ctx, &list); err != nil {
		return fmt.Errorf("listing HostSubnets: %w", err)
	}
	all := nodes{version: version, done: map[string]bool{}}
	for i := range list.Items {
		all.take(&list.Items[i])
	}
	if all.tell(report) {
		return nil
	}
	events, err := watchFrom(ctx, c.objects, &networkv1.HostSubnetList{}, list.ResourceVersion)
	if err != nil {
		return err
	}
	defer events.Stop()
	for told := -1; ; {
		if report.Realised != told {
			told = report.Realised
			progress(fmt.Sprintf("in effect on %d of %d nodes", report.Realised, report.Nodes))
		}
		event, err := next(ctx, events)
		if err != nil {
			return fmt.Errorf("the change is made, and not in effect yet on %s: %w", some(report.Behind), err)
		}
		subnet, ok := event.Object.(*networkv1.HostSubnet)
		if !ok {
			continue
		}
		if event.Type == watch.Deleted {
			delete(all.done, subnet.Name)
		} else {
			all.take(subnet)
		}
		if all.tell(report) {
			return nil
		}
	}
}

// some names the first of many.
func some(names []string) string {
	const most = 5
	text := strings.Join(names[:min(most, len(names))], ", ")
	if more := len(names) - most; more > 0 {
		text += fmt.Sprintf(" and %d more", more)
	}
	return text
}
