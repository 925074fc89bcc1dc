package plan

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	networkv1 "weft.dev/weft/api/openshift/v1"
	"weft.dev/weft/internal/cluster/plan"
	"weft.dev/weft/internal/clusternetwork"
	"weft.dev/weft/internal/ipam"
)

// SubnetState is everything that a plan of node subnets is made from.
type SubnetState struct {
	// Config is the network, nil if there is no valid one. Then no subnet is assigned, but HostSubnets of deleted Nodes are still deleted, and
	// addresses still updated.
	Config *clusternetwork.Config
	// Nodes are all Nodes.
	Nodes []Node
	// Former are the last subnets of hosts, by name. A host that returns gets its subnet again if it is free, because its pods may still run.
	Former map[string]netip.Prefix
	// HostSubnets are all HostSubnets. They are not modified.
	HostSubnets []networkv1.HostSubnet
}

// SubnetPlan is what to write, and which problems there are.
type SubnetPlan struct {
	Writes[*networkv1.HostSubnet]
	// Assigns reports whether subnets are assigned. Then the state must have been read from the API server itself: a cache may lack the last
	// assignments.
	Assigns bool
	// Because says why each HostSubnet in Delete is deleted, by its name.
	Because map[string]string
	// Problems are in a fixed order.
	Problems []Problem
}

// Subnets plans the HostSubnets. alloc has the ranges of the network, in OpenShift SDN's order. The used subnets are those of the
// HostSubnets.
func Subnets(state SubnetState, alloc *ipam.NodeSubnets) SubnetPlan {
	p := &subnetPlanner{state: state, alloc: alloc}
	p.markUsed()
	hostSubnets := make(map[string]*networkv1.HostSubnet, len(state.HostSubnets))
	for i := range state.HostSubnets {
		hostSubnets[state.HostSubnets[i].Name] = &state.HostSubnets[i]
	}
	nodes := make(map[string]bool, len(state.Nodes))
	for _, node := range plan.ByAge(state.Nodes, func(n Node) (time.Time, string) { return n.Created, n.Name }) {
		nodes[node.Name] = true
		p.node(node, hostSubnets[node.Name])
	}
	for _, hs := range hostSubnetsByAge(state.HostSubnets) {
		if !nodes[hs.Name] {
			p.withoutNode(hs)
		}
	}
	return p.plan
}

func hostSubnetsByAge(items []networkv1.HostSubnet) []*networkv1.HostSubnet {
	pointers := make([]*networkv1.HostSubnet, len(items))
	for i := range items {
		pointers[i] = &items[i]
	}
	return plan.ByAge(pointers, func(hs *networkv1.HostSubnet) (time.Time, string) { return hs.CreationTimestamp.Time, hs.Name })
}

type subnetPlanner struct {
	state SubnetState
	alloc *ipam.NodeSubnets
	plan  SubnetPlan
}

func (p *subnetPlanner) problem(about Object, reason, format string, args ...any) {
	p.plan.Problems = append(p.plan.Problems, Problem{Object: about, Reason: reason, Message: fmt.Sprintf(format, args...)})
}

func aboutNode(n Node) Object { return about(KindNode, n.Name, n.UID) }

func aboutHostSubnet(hs *networkv1.HostSubnet) Object { return about(KindHostSubnet, hs.Name, hs.UID) }

// markUsed passes the used subnets to the allocator, and reports subnets that overlap or lie outside the network.
func (p *subnetPlanner) markUsed() {
	if p.state.Config == nil {
		return
	}
	var used []netip.Prefix
	owners := map[netip.Prefix][]*networkv1.HostSubnet{}
	for _, hs := range hostSubnetsByAge(p.state.HostSubnets) {
		// A subnet that is not in canonical form, from before there was validation, keeps its addresses too.
		subnet, err := netip.ParsePrefix(hs.Subnet)
		if err != nil {
			continue
		}
		subnet = subnet.Masked()
		used = append(used, subnet)
		owners[subnet] = append(owners[subnet], hs)
		if !p.state.Config.Contains(subnet) {
			p.problem(aboutHostSubnet(hs), networkv1.ReasonConflict,
				"subnet %s of HostSubnet %s lies in no range of the cluster network: add its range to clusterNetworks, or delete the HostSubnet",
				subnet, hs.Name)
		}
	}
	for _, pair := range p.alloc.SetUsed(used) {
		holders := owners[pair[0]]
		if pair[0] != pair[1] {
			holders = slices.Concat(holders, owners[pair[1]])
		}
		var names []string
		for _, hs := range holders {
			names = append(names, hs.Name)
		}
		p.problem(aboutHostSubnet(holders[len(holders)-1]), networkv1.ReasonConflict,
			"subnets %s and %s overlap (HostSubnets %s): delete all but one of them, and restart the pods of those nodes",
			pair[0], pair[1], strings.Join(names, ", "))
	}
}

// node plans the HostSubnet of a Node; hs is nil if it has none.
func (p *subnetPlanner) node(node Node, hs *networkv1.HostSubnet) {
	address, err := p.address(node)
	if err != nil {
		p.problem(aboutNode(node), networkv1.ReasonIncomplete, "node %s: %v", node.Name, err)
	}
	switch {
	case hs == nil:
		if err == nil {
			p.create(node, address)
		}
	case stale(hs, node.UID): // the next plan creates a new one
		p.delete(hs, "it was given to another Node of that name, which is gone")
	case unusable(hs):
		p.delete(hs, "its HostSubnet could not be used, and is made anew")
	default:
		p.follow(node, address, hs)
	}
}

// stale reports whether the object was created for another Node of the same name.
func stale(hs *networkv1.HostSubnet, uid types.UID) bool {
	made := types.UID(hs.Annotations[networkv1.AnnotationNodeUID])
	return made != "" && made != uid
}

// unusable reports whether the object's fields are invalid. The VNID annotation does not concern a Node's subnet.
func unusable(hs *networkv1.HostSubnet) bool {
	fields := hs.DeepCopy()
	delete(fields.Annotations, networkv1.AnnotationFixedVNID)
	_, err := clusternetwork.ParseHostSubnet(fields)
	return err != nil
}

// address returns the Node's address if it is usable.
func (p *subnetPlanner) address(node Node) (netip.Addr, error) {
	if node.Address == "" {
		return netip.Addr{}, errors.New("it has no InternalIP yet: its kubelet or the cloud provider reports it")
	}
	address, err := netip.ParseAddr(node.Address)
	if err != nil || !address.Is4() || !address.IsGlobalUnicast() {
		return netip.Addr{}, fmt.Errorf("its InternalIP, %.64q, is no IPv4 address that other nodes can reach: set the kubelet's --node-ip", node.Address)
	}
	if p.state.Config != nil {
		if err := p.state.Config.CheckNode(address); err != nil {
			return netip.Addr{}, fmt.Errorf("checked against the network: %w", err)
		}
	}
	return address, nil
}

// create plans the HostSubnet of a Node without one.
func (p *subnetPlanner) create(node Node, address netip.Addr) {
	subnet, ok := p.allocate(aboutNode(node))
	if !ok {
		return
	}
	p.plan.Create = append(p.plan.Create, &networkv1.HostSubnet{
		ObjectMeta: metav1.ObjectMeta{
			Name:        node.Name,
			Annotations: map[string]string{networkv1.AnnotationNodeUID: string(node.UID)},
		},
		Host:   node.Name,
		HostIP: address.String(),
		Subnet: subnet,
	})
}

// follow updates a Node's HostSubnet, in one write.
func (p *subnetPlanner) follow(node Node, address netip.Addr, hs *networkv1.HostSubnet) {
	want := hs.DeepCopy()
	annotate(want, networkv1.AnnotationNodeUID, string(node.UID))
	if address.IsValid() {
		want.HostIP = address.String()
	}
	if want.Subnet == "" && !p.assign(want, aboutNode(node)) {
		return
	}
	delete(want.Annotations, networkv1.AnnotationAssignSubnet)
	p.update(hs, want)
}

// withoutNode plans a HostSubnet without a Node.
func (p *subnetPlanner) withoutNode(hs *networkv1.HostSubnet) {
	if hs.Annotations[networkv1.AnnotationNodeUID] != "" {
		p.delete(hs, "its Node is gone")
		return
	}
	if unusable(hs) {
		_, err := clusternetwork.ParseHostSubnet(hs)
		p.problem(aboutHostSubnet(hs), networkv1.ReasonInvalid, "%v", err)
		return
	}
	want := hs.DeepCopy()
	if text, ok := hs.Annotations[networkv1.AnnotationFixedVNID]; ok {
		if _, err := clusternetwork.ParseVNID(text); err != nil {
			p.problem(aboutHostSubnet(hs), networkv1.ReasonInvalid,
				"annotation %s removed: its value, %.64q, %v", networkv1.AnnotationFixedVNID, text, err)
			delete(want.Annotations, networkv1.AnnotationFixedVNID)
		}
	}
	if _, waiting := hs.Annotations[networkv1.AnnotationAssignSubnet]; waiting {
		if want.Subnet == "" && !p.assign(want, aboutHostSubnet(hs)) {
			return
		}
		delete(want.Annotations, networkv1.AnnotationAssignSubnet)
	}
	p.update(hs, want)
}

func (p *subnetPlanner) assign(hs *networkv1.HostSubnet, about Object) bool {
	subnet, ok := p.allocate(about)
	hs.Subnet = subnet
	return ok
}

// allocate takes the object's former subnet, otherwise the next one. Without a network it reports nothing: the ClusterNetwork's status says
// what is wrong.
func (p *subnetPlanner) allocate(about Object) (string, bool) {
	if p.state.Config == nil {
		return "", false
	}
	if former, had := p.state.Former[about.Name]; had && p.alloc.Take(former) {
		p.plan.Assigns = true
		return former.String(), true
	}
	subnet, err := p.alloc.Allocate()
	if err != nil {
		p.problem(about, networkv1.ReasonExhausted,
			"no subnet for %s: %v: add a range to clusterNetworks of ClusterNetwork %s, or remove nodes", about.Name, err, networkv1.ClusterNetworkDefault)
		return "", false
	}
	p.plan.Assigns = true
	return subnet.String(), true
}

func (p *subnetPlanner) delete(hs *networkv1.HostSubnet, because string) {
	if p.plan.Because == nil {
		p.plan.Because = map[string]string{}
	}
	p.plan.Because[hs.Name] = because
	p.plan.Delete = append(p.plan.Delete, hs)
}

func (p *subnetPlanner) update(have, want *networkv1.HostSubnet) {
	if have.HostIP != want.HostIP || have.Subnet != want.Subnet || !sameAnnotations(have.Annotations, want.Annotations) {
		p.plan.Update = append(p.plan.Update, want)
	}
}
