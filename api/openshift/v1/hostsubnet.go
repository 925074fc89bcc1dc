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
// +kubebuilder:printcolumn:name="Ready",type=string,JSONPath=`.status.conditions[?(@.type=="Ready")].status`,description="Whether the node's agent serves its pods",priority=1
// +kubebuilder:printcolumn:name="In Step",type=string,JSONPath=`.status.conditions[?(@.type=="EnginesInStep")].status`,description="Whether all that is desired is programmed",priority=1
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
	// first IPv4 InternalIP.
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

	// status says what the controller and the node's agent found; it is written by Weft only.
	// +optional
	Status HostSubnetStatus `json:"status,omitzero"`
}

// HostSubnetStatus says what the controller and the node's agent found. The agent writes what it found of its own node, when
// that changes; whether it is alive is what Kubernetes says of its pod.
type HostSubnetStatus struct {
	// conditions are Valid, the controller's: False when the object cannot be used, and the message names the field. The
	// others are the agent's: Ready (it serves the node's pods), EnginesInStep (all that is desired is programmed) and
	// Unobstructed (no firewall of the host's keeps packets of pods from passing).
	// +optional
	// +listType=map
	// +listMapKey=type
	Conditions []metav1.Condition `json:"conditions,omitempty"`

	// versions are the releases that run on the node.
	// +optional
	Versions HostSubnetVersions `json:"versions,omitzero"`

	// attachments is how many interfaces of pods the node has. This and the other numbers are at most a minute old.
	// +optional
	Attachments int32 `json:"attachments,omitempty"`

	// addresses is how many addresses for pods the node has.
	// +optional
	Addresses HostSubnetAddresses `json:"addresses,omitzero"`

	// engines are what the agent keeps in step: openflow, ovsdb, link and nft.
	// +optional
	// +listType=map
	// +listMapKey=name
	// +kubebuilder:validation:MaxItems=16
	Engines []HostSubnetEngine `json:"engines,omitempty"`

	// vnidsVersion is, where pods are isolated by VNID, the resourceVersion of the last change of a NetNamespace's netid
	// that is wholly in effect on the node. A later resourceVersion of a NetNamespace than this says that the node is still
	// at it, if that changed the netid.
	// +optional
	// +kubebuilder:validation:MaxLength=20
	VNIDsVersion string `json:"vnidsVersion,omitempty"`

	// vxlanPorts has the UDP port of the node's tunnels: one entry. Earlier releases wrote two while tunnels moved to another port.
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=2
	// +kubebuilder:validation:items:Minimum=1
	// +kubebuilder:validation:items:Maximum=65535
	VXLANPorts []int32 `json:"vxlanPorts,omitempty"`

	// realised says, of each kind of object that the node follows, which are in effect there: NetworkPolicy,
	// EgressNetworkPolicy, NetNamespace (egress addresses and multicast) and VNID (the VNID of a NetNamespace), in the modes
	// that have them.
	// +optional
	// +listType=map
	// +listMapKey=kind
	// +kubebuilder:validation:MaxItems=16
	Realised []HostSubnetRealised `json:"realised,omitempty"`

	// refusedEgressIPs are the egress addresses, of those in egressIPs and egressCIDRs that NetNamespaces want, that the node cannot
	// hold. No node sends traffic to it for them, and where ranges give out addresses, another node gets them. A node may have more
	// than fit here; these are then the lowest. So while there are 64, every address above the highest of them counts as refused.
	// +optional
	// +listType=map
	// +listMapKey=ip
	// +kubebuilder:validation:MaxItems=64
	RefusedEgressIPs []HostSubnetRefusedEgressIP `json:"refusedEgressIPs,omitempty"`
}

// MaxRefusedEgressIPs is the number of egress addresses for which refusedEgressIPs has room.
const MaxRefusedEgressIPs = 64

// HostSubnetRefusedEgressIP is an egress address that a node cannot hold.
type HostSubnetRefusedEgressIP struct {
	// ip is the address.
	// +kubebuilder:validation:MaxLength=15
	IP string `json:"ip"`
	// reason says why, and what to do.
	// +optional
	// +kubebuilder:validation:MaxLength=300
	Reason string `json:"reason,omitempty"`
}

// HostSubnetRealised says which objects of one kind are in effect on a node.
type HostSubnetRealised struct {
	// kind is that of the objects.
	// +kubebuilder:validation:MaxLength=63
	Kind string `json:"kind"`
	// version is the resourceVersion up to which objects are in effect: one whose own is not above it is, as it says or as a
	// later version of it said, unless it is among the exceptions. Without it, of none is it known that it is.
	// +optional
	// +kubebuilder:validation:MaxLength=20
	Version string `json:"version,omitempty"`
	// reason says why objects beyond version are not in effect, where more is known than that they are new.
	// +optional
	// +kubebuilder:validation:MaxLength=1100
	Reason string `json:"reason,omitempty"`
	// exceptions are the first, by name, of the objects that are not in effect, or not as they say.
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=20
	Exceptions []HostSubnetException `json:"exceptions,omitempty"`
	// more is how many further exceptions there are: all of them come after those by name.
	// +optional
	More int32 `json:"more,omitempty"`
}

// HostSubnetException is an object that is not in effect on a node, or not as it says.
type HostSubnetException struct {
	// object is its name, with its namespace before it if it has one: shop/web.
	// +kubebuilder:validation:MaxLength=320
	Object string `json:"object"`
	// reason says in words what is not in effect, and why.
	// +optional
	// +kubebuilder:validation:MaxLength=300
	Reason string `json:"reason,omitempty"`
}

// HostSubnetVersions are the releases that run on a node.
type HostSubnetVersions struct {
	// weft is the agent's release.
	// +optional
	Weft string `json:"weft,omitempty"`
	// openVSwitch is the switch's release.
	// +optional
	OpenVSwitch string `json:"openVSwitch,omitempty"`
	// kernel is the running kernel's release.
	// +optional
	Kernel string `json:"kernel,omitempty"`
	// datapath is the bridge's type: system, the kernel's, or netdev, in userspace.
	// +optional
	Datapath string `json:"datapath,omitempty"`
}

// HostSubnetAddresses counts a node's addresses for pods.
type HostSubnetAddresses struct {
	// used is how many are taken.
	// +optional
	Used int32 `json:"used"`
	// total is how many there are.
	// +optional
	Total int32 `json:"total"`
}

// HostSubnetEngine is how one engine of a node stands.
type HostSubnetEngine struct {
	// name is openflow, ovsdb, link or nft.
	// +kubebuilder:validation:MaxLength=32
	Name string `json:"name"`
	// inStep says that all that is desired is programmed.
	// +optional
	InStep bool `json:"inStep"`
	// items is how many items are desired.
	// +optional
	Items int32 `json:"items"`
	// hash is that of the desired state, where one is kept: the same objects give the same hash.
	// +optional
	Hash string `json:"hash,omitempty"`
	// lastCommit is when the engine was last changed by this agent.
	// +optional
	LastCommit *metav1.Time `json:"lastCommit,omitempty"`
	// failures are the first of those objects whose part could not be programmed, each with the reason.
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=10
	Failures []string `json:"failures,omitempty"`
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
