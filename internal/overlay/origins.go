package overlay

import (
	"net/netip"
	"strconv"
	"strings"

	"weft.dev/weft/internal/attach"
	"weft.dev/weft/internal/overlay/egress"
	"weft.dev/weft/internal/overlay/multicast"
	"weft.dev/weft/internal/overlay/pipeline"
	"weft.dev/weft/internal/overlay/pipeline/conjunction"
	"weft.dev/weft/internal/overlay/remotes"
	"weft.dev/weft/internal/policy"
	"weft.dev/weft/internal/policy/enforcer"
	"weft.dev/weft/internal/reconcile"
)

// mostPolicies is how many policies an Origin lists: all policies of a cluster may name the same address.
const mostPolicies = 20

// Object names an object of the API server. An empty name means all objects of the kind, in the namespace if there is one.
type Object struct{ Kind, Namespace, Name string }

// Origin says what the flows of an owner were compiled from.
type Origin struct {
	Owner reconcile.Owner
	// Objects are the objects, none if they are not known any more. More says that the list is incomplete.
	Objects []Object
	More    bool
	// Pod is the pod of this node whose address the flows match, if they come from other objects; otherwise zero.
	Pod policy.Key
}

// Origins returns the origins of the owners' flows, in the order of owners. Each lists only a few policies; first is among them if flows
// come from it.
func (n *Network) Origins(owners []reconcile.Owner, first policy.Key) []Origin {
	t := tracer{store: n.store, pods: n.pods, hosts: n.hosts, egress: n.EgressIPs, multicast: n.Multicast}
	return t.origins(owners, first)
}

// tracer finds what flows were compiled from.
type tracer struct {
	store     *attach.Store
	pods      *openPods
	hosts     *remotes.Hosts
	egress    *egress.Addresses
	multicast *multicast.Feature
}

func (t *tracer) origins(owners []reconcile.Owner, first policy.Key) []Origin {
	pods, addresses := t.attachedPods()
	t.pods.mu.Lock()
	var judged map[reconcile.Owner]conjunction.Origin
	if rules := t.pods.policies.conjunctions(); rules != nil {
		judged = rules.Origins(mostPolicies, first)
	}
	t.pods.mu.Unlock()
	origins := make([]Origin, 0, len(owners))
	for _, o := range owners {
		origin := Origin{Owner: o, Objects: t.objects(o)}
		if key, is := pods[o]; is && key.Name != "" {
			origin.Objects = []Object{{"Pod", key.Namespace, key.Name}}
		}
		if from, is := judged[o]; is {
			origin.More = from.More
			if from.Address.IsSingleIP() {
				origin.Pod = addresses[from.Address.Addr()]
			}
			for _, key := range from.Policies {
				origin.Objects = append(origin.Objects, Object{"NetworkPolicy", key.Namespace, key.Name})
			}
		}
		origins = append(origins, origin)
	}
	return origins
}

// attachedPods returns the pods of this network's attachments by owner, and by address those of attachments that are not closing.
func (t *tracer) attachedPods() (owners map[reconcile.Owner]policy.Key, addresses map[netip.Addr]policy.Key) {
	owners, addresses = map[reconcile.Owner]policy.Key{}, map[netip.Addr]policy.Key{}
	for _, rec := range t.store.List() {
		if rec.Network != NetworkName {
			continue
		}
		owners[owner(rec.Key())] = enforcer.PodOf(&rec)
		if rec.State == attach.Closing {
			continue
		}
		for _, address := range rec.Addresses {
			addresses[address.Addr()] = enforcer.PodOf(&rec)
		}
	}
	return owners, addresses
}

// objects returns the objects of an owner that is neither a pod nor a policy.
func (t *tracer) objects(o reconcile.Owner) []Object {
	kind, name, _ := strings.Cut(string(o), "/")
	switch {
	case o == pipeline.OwnerCluster || o == pipeline.OwnerState:
		return []Object{{Kind: "ClusterNetwork", Name: "default"}}
	case o == pipeline.OwnerNodes:
		return []Object{{Kind: "Node"}}
	case o == pipeline.OwnerTargets:
		return []Object{{Kind: "EndpointSlice"}}
	case kind == "service":
		namespace, service, _ := strings.Cut(name, "/")
		return []Object{{"Service", namespace, service}}
	case kind == "egressfirewall":
		return []Object{{Kind: "EgressNetworkPolicy", Namespace: name}}
	case kind == "hostsubnet":
		if host := t.hosts.Name(o); host != "" {
			return []Object{{Kind: "HostSubnet", Name: host}}
		}
	case kind == "egressip":
		return projectsOf(name, t.egress.Namespaces)
	case o == pipeline.OwnerMulticastNodes:
		return []Object{{Kind: "HostSubnet"}}
	case kind == "multicast":
		return projectsOf(name, t.multicast.Namespaces)
	}
	return nil
}

// projectsOf returns the NetNamespaces with the VNID that have a feature.
func projectsOf(vnid string, namespaces func(vnid uint32) []string) []Object {
	number, err := strconv.ParseUint(vnid, 10, 32)
	if err != nil {
		return nil
	}
	var objects []Object
	for _, name := range namespaces(uint32(number)) {
		objects = append(objects, Object{Kind: "NetNamespace", Name: name})
	}
	return objects
}
