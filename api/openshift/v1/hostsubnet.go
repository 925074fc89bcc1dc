package v1

import metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

// HostSubnet is a node's part in the network: its address, and the subnet its pods have their addresses from. The
// controller makes one for every Node, named like it. Others may be made by hand for hosts that are no Node.
//
// +kubebuilder:object:root=true
// +kubebuilder:resource:path=hostsubnets,scope=Cluster,categories=weft
// +kubebuilder:subresource:status
// +kubebuilder:printcolumn:name="Host",type=string,JSONPath=`.host`,description="The name of the node"
// +kubebuilder:printcolumn:name="Host IP",type=string,JSONPath=`.hostIP`,description="The IP address to be used as a VTEP by other nodes in the overlay network"
// +kubebuilder:printcolumn:name="Subnet",type=string,JSONPath=`.subnet`,description="The CIDR range of the overlay network assigned to the node for its pods"
// +kubebuilder:printcolumn:name="Egress CIDRs",type=string,JSONPath=`.egressCIDRs`,description="The network egress CIDRs"
// +kubebuilder:printcolumn:name="Egress IPs",type=string,JSONPath=`.egressIPs`,description="The network egress IP addresses"
// +kubebuilder:validation:XValidation:rule="self.host == self.metadata.name",message="host must equal metadata.name"
// +kubebuilder:validation:XValidation:rule="!has(oldSelf.subnet) || size(oldSelf.subnet) == 0 || has(self.subnet)",message="subnet cannot be removed once it is set: delete the HostSubnet to give the host another subnet"
type HostSubnet struct {
	metav1.TypeMeta `json:",inline"`
	// Standard object's metadata. The name is the node's.
	// +optional
	metav1.ObjectMeta `json:"metadata,omitempty"`

	// host is the name of the node: the same as metadata.name.
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=253
	// +kubebuilder:validation:Pattern=`^[a-z0-9.-]+$`
	Host string `json:"host"`

	// hostIP is the node's address on the network between the nodes: where its tunnels end. It follows the Node's
	// first InternalIP.
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=15
	// +kubebuilder:validation:XValidation:rule="isIP(self) && ip(self).family() == 4 && ip(self).isGlobalUnicast()",message="must be an IPv4 address that other nodes can reach, such as 192.0.2.10, without leading zeros"
	HostIP string `json:"hostIP"`

	// subnet is the range of the node's pods in CIDR notation. It is empty only while the annotation
	// pod.network.openshift.io/assign-subnet asks the controller for one; once set, it never changes: to give a node
	// another subnet, delete its HostSubnet.
	// +optional
	// +kubebuilder:validation:MaxLength=18
	// +kubebuilder:validation:XValidation:rule="self == '' || (isCIDR(self) && cidr(self).ip().family() == 4 && cidr(self).masked() == cidr(self))",message="must be an IPv4 range in canonical form, such as 10.128.2.0/23: no leading zeros, no bits set right of the prefix"
	// +kubebuilder:validation:XValidation:rule="oldSelf == '' || self == oldSelf",message="cannot change once it is set: delete the HostSubnet to give the host another subnet"
	Subnet string `json:"subnet"`

	// egressIPs are the egress addresses that the node hosts. With egressCIDRs they are the controller's to write.
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=1024
	// +kubebuilder:validation:items:MaxLength=15
	// +kubebuilder:validation:items:XValidation:rule="isIP(self) && ip(self).family() == 4",message="must be an IPv4 address, such as 192.0.2.10, without leading zeros"
	EgressIPs []string `json:"egressIPs,omitempty"`

	// egressCIDRs are the ranges of egress addresses that the node may host; with them set, the controller writes
	// egressIPs.
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=64
	// +kubebuilder:validation:items:MaxLength=18
	// +kubebuilder:validation:items:XValidation:rule="isCIDR(self) && cidr(self).ip().family() == 4 && cidr(self).masked() == cidr(self)",message="must be an IPv4 range in canonical form, such as 192.0.2.0/24: no leading zeros, no bits set right of the prefix"
	EgressCIDRs []string `json:"egressCIDRs,omitempty"`

	// status says what the controller found; it is written by Weft only.
	// +optional
	Status HostSubnetStatus `json:"status,omitzero"`
}

// HostSubnetStatus says what the controller found.
type HostSubnetStatus struct {
	// conditions hold Valid, False when the object cannot be used; the message names the field.
	// +optional
	// +listType=map
	// +listMapKey=type
	Conditions []metav1.Condition `json:"conditions,omitempty"`
}

// HostSubnetList is a list of HostSubnets.
//
// +kubebuilder:object:root=true
type HostSubnetList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`
	// Items are the objects.
	Items []HostSubnet `json:"items"`
}
