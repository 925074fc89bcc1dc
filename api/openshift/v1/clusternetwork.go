package v1

import metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

// ClusterNetwork describes the cluster's pod network. Only the object named "default" is used.
//
// Former releases took an object with only one of network and hostsubnetlength. The rule against that lets such an object stay, because the
// API server judges by it also when the status is written, which says what is wrong.
//
// +kubebuilder:object:root=true
// +kubebuilder:resource:path=clusternetworks,scope=Cluster,categories=weft
// +kubebuilder:subresource:status
// +kubebuilder:printcolumn:name="Cluster Network",type=string,JSONPath=`.network`,description="The primary cluster network CIDR"
// +kubebuilder:printcolumn:name="Service Network",type=string,JSONPath=`.serviceNetwork`,description="The service network CIDR"
// +kubebuilder:printcolumn:name="Plugin Name",type=string,JSONPath=`.pluginName`,description="The network plugin in use"
// +kubebuilder:printcolumn:name="Valid",type=string,JSONPath=`.status.conditions[?(@.type=="Valid")].status`,description="Whether the network can be used as described",priority=1
// +kubebuilder:validation:XValidation:rule="(has(self.clusterNetworks) && size(self.clusterNetworks) > 0) || (has(self.network) && size(self.network) > 0 && has(self.hostsubnetlength))",message="clusterNetworks needs at least one range (or, in the old form, network and hostsubnetlength are set)"
// +kubebuilder:validation:XValidation:rule="!has(self.network) || size(self.network) == 0 || !has(self.clusterNetworks) || size(self.clusterNetworks) == 0 || self.network == self.clusterNetworks[0].CIDR",message="network must be left out or equal clusterNetworks[0].CIDR"
// +kubebuilder:validation:XValidation:rule="!has(self.hostsubnetlength) || !has(self.clusterNetworks) || size(self.clusterNetworks) == 0 || self.hostsubnetlength == self.clusterNetworks[0].hostSubnetLength",message="hostsubnetlength must be left out or equal clusterNetworks[0].hostSubnetLength"
// +kubebuilder:validation:XValidation:rule="(has(self.network) && size(self.network) > 0) == has(self.hostsubnetlength) || (oldSelf.hasValue() && (has(oldSelf.value().network) && size(oldSelf.value().network) > 0) != has(oldSelf.value().hostsubnetlength))",optionalOldSelf=true,message="network and hostsubnetlength are set both or neither"
// +kubebuilder:validation:XValidation:rule="!has(self.network) || !isCIDR(self.network) || !has(self.hostsubnetlength) || cidr(self.network).prefixLength() + self.hostsubnetlength <= 32",message="hostsubnetlength does not fit: it is at most 32 minus the prefix length of network"
// +kubebuilder:validation:XValidation:rule="!has(self.clusterNetworks) || !isCIDR(self.serviceNetwork) || self.clusterNetworks.all(c, !isCIDR(c.CIDR) || !(cidr(c.CIDR).containsCIDR(self.serviceNetwork) || cidr(self.serviceNetwork).containsCIDR(c.CIDR)))",message="serviceNetwork must not overlap a range of clusterNetworks"
// +kubebuilder:validation:XValidation:rule="!has(self.network) || !isCIDR(self.network) || !isCIDR(self.serviceNetwork) || !(cidr(self.network).containsCIDR(self.serviceNetwork) || cidr(self.serviceNetwork).containsCIDR(self.network))",message="serviceNetwork must not overlap network"
// +kubebuilder:validation:XValidation:rule="(has(self.vxlanPort) ? self.vxlanPort : 4789) == (has(oldSelf.vxlanPort) ? oldSelf.vxlanPort : 4789)",message="vxlanPort cannot change (without one it is 4789): for another port, remove Weft from all nodes (weft cleanup), delete the ClusterNetwork and the HostSubnets, and install it again"
type ClusterNetwork struct {
	metav1.TypeMeta `json:",inline"`
	// Standard object's metadata. The name must be "default" for the network to be used.
	// +optional
	metav1.ObjectMeta `json:"metadata,omitempty"`

	// network is the first range of the cluster network in CIDR notation. It is kept for old clients: leave it out, or
	// set it to the same as clusterNetworks[0].CIDR. Without clusterNetworks it is the only range.
	// +optional
	// +kubebuilder:validation:MaxLength=18
	// +kubebuilder:validation:XValidation:rule="self == '' || (isCIDR(self) && cidr(self).ip().family() == 4 && cidr(self).masked() == cidr(self))",message="must be an IPv4 range in canonical form, such as 10.128.0.0/14: no leading zeros, no bits set right of the prefix"
	Network string `json:"network,omitempty"`

	// hostsubnetlength is the number of host bits of a node's subnet in network: 9 gives each node a /23, that is 509
	// pods. Like network, leave it out, or set it to the same as clusterNetworks[0].hostSubnetLength.
	// +optional
	// +kubebuilder:validation:Minimum=2
	// +kubebuilder:validation:Maximum=30
	HostSubnetLength uint32 `json:"hostsubnetlength,omitempty"`

	// serviceNetwork is the range, in CIDR notation, that the API server takes the Services' addresses from. It must
	// be the API server's --service-cluster-ip-range, and overlap no range of the pods.
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=18
	// +kubebuilder:validation:XValidation:rule="isCIDR(self) && cidr(self).ip().family() == 4 && cidr(self).masked() == cidr(self)",message="must be an IPv4 range in canonical form, such as 172.30.0.0/16: no leading zeros, no bits set right of the prefix"
	ServiceNetwork string `json:"serviceNetwork"`

	// pluginName selects the kind of isolation: redhat/openshift-ovs-subnet (none), redhat/openshift-ovs-multitenant
	// (by VNID) or redhat/openshift-ovs-networkpolicy (by NetworkPolicy); upper and lower case are the same. Left out,
	// it is redhat/openshift-ovs-networkpolicy. It may be changed while the cluster runs.
	// +optional
	// +kubebuilder:validation:MaxLength=64
	// +kubebuilder:validation:XValidation:rule="self == '' || self.lowerAscii() in ['redhat/openshift-ovs-subnet', 'redhat/openshift-ovs-multitenant', 'redhat/openshift-ovs-networkpolicy']",message="must be redhat/openshift-ovs-subnet, redhat/openshift-ovs-multitenant or redhat/openshift-ovs-networkpolicy"
	PluginName string `json:"pluginName,omitempty"`

	// clusterNetworks are the ranges that nodes take their subnets from: the first one with room, in this order.
	// Ranges may be appended, and a range may grow, while the cluster runs; one that nodes have subnets in must stay.
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=32
	// +kubebuilder:validation:XValidation:rule="self.all(a, !isCIDR(a.CIDR) || self.exists_one(b, isCIDR(b.CIDR) && (cidr(a.CIDR).containsCIDR(b.CIDR) || cidr(b.CIDR).containsCIDR(a.CIDR))))",message="the ranges must not overlap each other"
	ClusterNetworks []ClusterNetworkEntry `json:"clusterNetworks,omitempty"`

	// vxlanPort is the UDP port of the tunnels between nodes. Default 4789. All nodes use the same, and it cannot change: for another
	// port, remove Weft from all nodes, delete the ClusterNetwork and the HostSubnets, and install it again.
	// +optional
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=65535
	VXLANPort *uint32 `json:"vxlanPort,omitempty"`

	// mtu is the pods' MTU in bytes. It must be at least 50 less than that of the network between the nodes (VXLAN
	// takes as much). Default: each node's interface less 50, 1450 on an ordinary network.
	// +optional
	// +kubebuilder:validation:Minimum=576
	// +kubebuilder:validation:Maximum=65536
	MTU *uint32 `json:"mtu,omitempty"`

	// status says what the controller found; it is written by Weft only.
	// +optional
	Status ClusterNetworkStatus `json:"status,omitzero"`
}

// ClusterNetworkEntry is one range of the cluster network.
//
// +kubebuilder:validation:XValidation:rule="!isCIDR(self.CIDR) || cidr(self.CIDR).prefixLength() + self.hostSubnetLength <= 32",message="hostSubnetLength does not fit: it is at most 32 minus the prefix length of CIDR"
type ClusterNetworkEntry struct {
	// CIDR is the range, such as 10.128.0.0/14.
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=18
	// +kubebuilder:validation:XValidation:rule="isCIDR(self) && cidr(self).ip().family() == 4 && cidr(self).masked() == cidr(self)",message="must be an IPv4 range in canonical form, such as 10.128.0.0/14: no leading zeros, no bits set right of the prefix"
	CIDR string `json:"CIDR"`

	// hostSubnetLength is the number of host bits of a node's subnet: 9 gives each node a /23. A node has three
	// addresses less for pods than its subnet holds (network, gateway, broadcast). It is at most 32 minus the prefix
	// length of CIDR.
	// +kubebuilder:validation:Minimum=2
	// +kubebuilder:validation:Maximum=30
	HostSubnetLength uint32 `json:"hostSubnetLength"`
}

// ClusterNetworkStatus says what the controller found.
type ClusterNetworkStatus struct {
	// conditions are Valid (the object can be used as it is; if not, the message names the field) and Ready (every
	// node has a subnet).
	// +optional
	// +listType=map
	// +listMapKey=type
	Conditions []metav1.Condition `json:"conditions,omitempty"`
}

// ClusterNetworkList is a list of ClusterNetworks.
//
// +kubebuilder:object:root=true
type ClusterNetworkList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`
	// Items are the objects.
	Items []ClusterNetwork `json:"items"`
}
