package flows

import (
	"fmt"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"weft.dev/weft/internal/admin"
	"weft.dev/weft/internal/overlay/host"
	"weft.dev/weft/internal/overlay/pipeline"
)

// Filter selects the flows of one object; each field is namespace/name. The zero value selects all. Bridge is the bridge of the flows, ""
// for br0.
type Filter struct{ Pod, Policy, Service, Bridge string }

// maxBridge is the length of the longest interface name, without the final NUL.
const maxBridge = unix.IFNAMSIZ - 1

// Validate returns an error that states the valid form.
func (f Filter) Validate() error {
	asked := 0
	for flag, name := range map[string]string{"pod": f.Pod, "policy": f.Policy, "service": f.Service} {
		if name == "" {
			continue
		}
		asked++
		namespace, object, found := strings.Cut(name, "/")
		if !found || namespace == "" || object == "" || strings.Contains(object, "/") {
			return fmt.Errorf("--%s %.64q: it is NAMESPACE/NAME, as in --%s default/web", flag, name, flag)
		}
	}
	if f.Bridge != "" && f.Bridge != host.Bridge && f.Policy+f.Service != "" {
		return fmt.Errorf("--policy and --service find flows of %s only: with --bridge %.15s, use --pod or --explain", host.Bridge, f.Bridge)
	}
	if strings.ContainsAny(f.Bridge, "/ ") || len(f.Bridge) > maxBridge {
		return fmt.Errorf("--bridge %.16q: it is the name of a bridge, as in --bridge br-n", f.Bridge)
	}
	if asked > 1 {
		return fmt.Errorf("--pod, --policy and --service: give one of them, or none for all flows")
	}
	return nil
}

// without returns the owners whose cookies can be computed without an agent.
func (f Filter) without() []admin.Owner {
	owners := []admin.Owner{
		ownerOf(string(pipeline.OwnerCluster), admin.Object{Kind: "ClusterNetwork", Name: "default"}),
		ownerOf(string(pipeline.OwnerState), admin.Object{Kind: "ClusterNetwork", Name: "default"}),
		ownerOf(string(pipeline.OwnerNodes), admin.Object{Kind: "Node"}), ownerOf(string(pipeline.OwnerTargets), admin.Object{Kind: "EndpointSlice"}),
	}
	if namespace, name, is := strings.Cut(f.Service, "/"); is {
		owners = append(owners, ownerOf("service/"+f.Service, admin.Object{Kind: "Service", Namespace: namespace, Name: name}))
	}
	return owners
}

// Apply reduces a report to the selected flows. If there are none, the error lists what has flows.
func (r *Report) Apply(f Filter) error {
	kind, name := "Pod", f.Pod
	switch {
	case f.Policy != "":
		kind, name = "NetworkPolicy", f.Policy
	case f.Service != "":
		kind, name = "Service", f.Service
	}
	if name == "" || r.OwnersUnknown != "" && kind != "Service" {
		return nil
	}
	namespace, object, _ := strings.Cut(name, "/")
	var kept []Flow
	for i := range r.Flows {
		flow := &r.Flows[i]
		if slices.Contains(flow.Objects, admin.Object{Kind: kind, Namespace: namespace, Name: object}) || kind == "Pod" && flow.Pod == name {
			kept = append(kept, *flow)
		}
	}
	if len(kept) == 0 {
		return r.nothing(kind, namespace, name)
	}
	r.Flows = kept
	return nil
}

// nothing returns an error: the object has no flows, the possible reason, and which objects have some.
func (r *Report) nothing(kind, namespace, name string) error {
	node := "this node"
	if r.Node != "" {
		node = "node " + r.Node
	}
	why := map[string]string{
		"Pod":           "it is on another node or not there, or uses its host's network",
		"NetworkPolicy": "it is not there, allows nothing (the pods that it isolates have the flows), selects no pod of this node, or the cluster is not in the mode redhat/openshift-ovs-networkpolicy",
		"Service":       "it is not there, is headless, has no endpoints, or is left to the host",
	}[kind]
	var same, all []string
	for i := range r.Flows {
		for _, o := range r.Flows[i].Objects {
			if o.Kind != kind {
				continue
			}
			all = append(all, o.Namespace+"/"+o.Name)
			if o.Namespace == namespace {
				same = append(same, o.Namespace+"/"+o.Name)
			}
		}
	}
	return fmt.Errorf("%s %s has no flows on %s: %s. %s", kind, name, node, why, thereAre(kind, same, all))
}

// thereAre lists the objects with flows: those of the same namespace, if there are any.
func thereAre(kind string, same, all []string) string {
	const most = 10
	if len(same) > 0 {
		all = same
	}
	slices.Sort(all)
	all = slices.Compact(all)
	switch {
	case len(all) == 0:
		return "No " + kind + " has any there"
	case len(all) > most:
		return fmt.Sprintf("Of those that have some: %s, and %d more", strings.Join(all[:most], ", "), len(all)-most)
	}
	return "There have some: " + strings.Join(all, ", ")
}
