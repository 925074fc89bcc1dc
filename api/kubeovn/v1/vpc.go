package v1

import metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

// Vpc is a private network: a router with addresses of its own. Its subnets are Subnets that name it.
//
// +kubebuilder:object:root=true
// +kubebuilder:resource:path=vpcs,singular=vpc,scope=Cluster,shortName=vpc
// +kubebuilder:subresource:status
// +kubebuilder:printcolumn:name="EnableExternal",type=boolean,JSONPath=`.status.enableExternal`
// +kubebuilder:printcolumn:name="EnableBfd",type=boolean,JSONPath=`.status.enableBfd`
// +kubebuilder:printcolumn:name="Standby",type=boolean,JSONPath=`.status.standby`
// +kubebuilder:printcolumn:name="Subnets",type=string,JSONPath=`.status.subnets`
// +kubebuilder:printcolumn:name="ExtraExternalSubnets",type=string,JSONPath=`.status.extraExternalSubnets`
// +kubebuilder:printcolumn:name="Namespaces",type=string,JSONPath=`.spec.namespaces`
// +kubebuilder:printcolumn:name="DefaultSubnet",type=string,JSONPath=`.spec.defaultSubnet`
// +kubebuilder:printcolumn:name="Ready",type=string,JSONPath=`.status.conditions[?(@.type=="Ready")].status`
// +kubebuilder:printcolumn:name="Age",type=date,JSONPath=`.metadata.creationTimestamp`
type Vpc struct {
	metav1.TypeMeta `json:",inline"`
	// Standard object's metadata.
	// +optional
	metav1.ObjectMeta `json:"metadata,omitempty"`

	// spec describes the VPC.
	// +optional
	Spec VpcSpec `json:"spec,omitzero"`
	// status is written by Weft only.
	// +optional
	Status VpcStatus `json:"status,omitzero"`
}

// VpcSpec describes a VPC.
type VpcSpec struct {
	// defaultSubnet is not served; it is named in the condition Supported.
	// +optional
	// +kubebuilder:validation:MaxLength=253
	DefaultSubnet string `json:"defaultSubnet,omitempty"`
	// namespaces are the namespaces whose pods may use the VPC's subnets, where a Subnet has no list of its own. Empty: all.
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=4096
	// +kubebuilder:validation:items:MaxLength=63
	Namespaces []string `json:"namespaces,omitempty"`
	// staticRoutes are routes of the VPC's router.
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=20000
	StaticRoutes []StaticRoute `json:"staticRoutes,omitempty"`
	// policyRoutes decide before static routes.
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=8000
	PolicyRoutes []PolicyRoute `json:"policyRoutes,omitempty"`
	// vpcPeerings connect this VPC with others. A peering is made once both VPCs declare it.
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=1024
	VpcPeerings []VpcPeering `json:"vpcPeerings,omitempty"`
	// enableExternal is not served yet.
	// +optional
	EnableExternal bool `json:"enableExternal,omitempty"`
	// extraExternalSubnets is not served yet.
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=64
	ExtraExternalSubnets []string `json:"extraExternalSubnets,omitempty"`
	// enableBfd is not served yet.
	// +optional
	EnableBfd bool `json:"enableBfd,omitempty"`
	// bfdPort is not served yet.
	// +optional
	BFDPort *BFDPort `json:"bfdPort,omitempty"`
}

// StaticRoute is a route of a VPC's router.
type StaticRoute struct {
	// policy is policyDst (cidr is matched with the destination) or policySrc (with the source). Default: policyDst.
	// +optional
	// +kubebuilder:validation:Enum=policyDst;policySrc;""
	Policy string `json:"policy,omitempty"`
	// cidr is a range, or an address, which is the range of this address alone.
	// +kubebuilder:validation:MaxLength=43
	// +kubebuilder:validation:XValidation:rule="isCIDR(self) || isIP(self)",message="must be a range such as 10.1.0.0/16, or an address"
	CIDR string `json:"cidr"`
	// nextHopIP is the address of the next hop, in a subnet of the VPC or at the other end of a peering.
	// +kubebuilder:validation:MaxLength=39
	// +kubebuilder:validation:XValidation:rule="isIP(self)",message="must be one address, such as 10.0.1.254"
	NextHopIP string `json:"nextHopIP"`
	// ecmpMode is not served: routes of one prefix with several next hops share the traffic by connection.
	// +optional
	// +kubebuilder:validation:MaxLength=64
	ECMPMode string `json:"ecmpMode,omitempty"`
	// bfdId is not served yet.
	// +optional
	// +kubebuilder:validation:MaxLength=64
	BfdID string `json:"bfdId,omitempty"`
	// routeTable is the table of the route. Subnets choose a table by their routeTable. Default: the main table.
	// +optional
	// +kubebuilder:validation:MaxLength=63
	RouteTable string `json:"routeTable,omitempty"`
}

// PolicyRoute is a rule that decides before static routes.
type PolicyRoute struct {
	// priority decides between rules that match; the highest wins.
	// +kubebuilder:validation:Minimum=0
	// +kubebuilder:validation:Maximum=32765
	Priority int `json:"priority,omitempty"`
	// match is an expression in OVN's language (ovn-sb(5), Logical_Flow, match), such as "ip4.src == 10.0.1.0/24".
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=4096
	Match string `json:"match"`
	// action is allow, drop or reroute.
	// +kubebuilder:validation:Enum=allow;drop;reroute
	Action string `json:"action"`
	// nextHopIP is the next hop of a reroute. Several, separated by commas, share the traffic.
	// +optional
	// +kubebuilder:validation:MaxLength=1024
	NextHopIP string `json:"nextHopIP,omitempty"`
}

// VpcPeering is one side of a connection between two VPCs.
type VpcPeering struct {
	// remoteVpc is the other VPC.
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=253
	RemoteVpc string `json:"remoteVpc"`
	// localConnectIP is this VPC's address in the link between the two, with the link's prefix length, such as
	// 169.254.0.1/30.
	// +kubebuilder:validation:MaxLength=43
	// +kubebuilder:validation:XValidation:rule="isCIDR(self)",message="must be an address with a prefix length, such as 169.254.0.1/30"
	LocalConnectIP string `json:"localConnectIP"`
}

// BFDPort is Kube-OVN's port for BFD sessions.
type BFDPort struct {
	// enabled is not served yet.
	// +optional
	Enabled bool `json:"enabled,omitempty"`
	// ip is not served yet.
	// +optional
	// +kubebuilder:validation:MaxLength=128
	IP string `json:"ip,omitempty"`
	// nodeSelector is not served yet.
	// +optional
	NodeSelector *metav1.LabelSelector `json:"nodeSelector,omitempty"`
}

// VpcStatus says what became of a VPC.
type VpcStatus struct {
	// conditions are Ready, Supported and Shadowed.
	// +optional
	// +listType=map
	// +listMapKey=type
	Conditions []metav1.Condition `json:"conditions,omitempty"`
	// standby is true once the VPC's router is in the northbound database.
	// +optional
	Standby bool `json:"standby"`
	// default is true for the default VPC of Kube-OVN, and so never here.
	// +optional
	Default bool `json:"default"`
	// router is the name of the VPC's router.
	// +optional
	Router string `json:"router"`
	// subnets are the names of the VPC's subnets.
	// +optional
	// +listType=atomic
	Subnets []string `json:"subnets"`
	// vpcPeerings are the VPCs that this one is connected with.
	// +optional
	// +listType=atomic
	VpcPeerings []string `json:"vpcPeerings"`
	// enableExternal is always false.
	// +optional
	EnableExternal bool `json:"enableExternal"`
	// extraExternalSubnets is always empty.
	// +optional
	// +listType=atomic
	ExtraExternalSubnets []string `json:"extraExternalSubnets"`
	// enableBfd is always false.
	// +optional
	EnableBfd bool `json:"enableBfd"`
	// tunnelKey is the datapath's tunnel key, which stays the same when the databases are rebuilt.
	// +optional
	TunnelKey int `json:"tunnelKey,omitempty"`
}

// VpcList is a list of Vpcs.
//
// +kubebuilder:object:root=true
type VpcList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`
	// Items are the objects.
	Items []Vpc `json:"items"`
}
