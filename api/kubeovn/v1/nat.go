package v1

import metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

// IptablesEIP is an address of an external subnet, held by a NAT gateway.
//
// +kubebuilder:object:root=true
// +kubebuilder:resource:path=iptables-eips,singular=iptables-eip,scope=Cluster,shortName=eip
// +kubebuilder:subresource:status
// +kubebuilder:printcolumn:name="IP",type=string,JSONPath=`.status.ip`
// +kubebuilder:printcolumn:name="Mac",type=string,JSONPath=`.spec.macAddress`
// +kubebuilder:printcolumn:name="Nat",type=string,JSONPath=`.status.nat`
// +kubebuilder:printcolumn:name="NatGwDp",type=string,JSONPath=`.spec.natGwDp`
// +kubebuilder:printcolumn:name="Ready",type=boolean,JSONPath=`.status.ready`
// +kubebuilder:printcolumn:name="ExternalSubnet",type=string,JSONPath=`.spec.externalSubnet`
type IptablesEIP struct {
	metav1.TypeMeta `json:",inline"`
	// Standard object's metadata.
	// +optional
	metav1.ObjectMeta `json:"metadata,omitempty"`

	// spec describes the object.
	Spec IptablesEIPSpec `json:"spec"`
	// status is written by Weft only.
	// +optional
	Status IptablesEIPStatus `json:"status,omitzero"`
}

// IptablesEIPSpec is the spec of IptablesEIP.
//
// +kubebuilder:validation:XValidation:rule="self.natGwDp == oldSelf.natGwDp",message="natGwDp cannot be changed: delete the EIP and make it anew"
// +kubebuilder:validation:XValidation:rule="(has(self.externalSubnet) && size(self.externalSubnet) > 0 ? self.externalSubnet : 'ovn-vpc-external-network') == (has(oldSelf.externalSubnet) && size(oldSelf.externalSubnet) > 0 ? oldSelf.externalSubnet : 'ovn-vpc-external-network')",message="externalSubnet cannot be changed: delete the EIP and make it anew"
type IptablesEIPSpec struct {
	// v4ip is the address. Default: the next free one of the external subnet.
	// +optional
	// +kubebuilder:validation:MaxLength=15
	// +kubebuilder:validation:XValidation:rule="self == '' || (isIP(self) && ip(self).family() == 4)",message="must be an IPv4 address, such as 192.168.100.230"
	V4ip string `json:"v4ip,omitempty"`
	// v6ip is not served yet.
	// +optional
	// +kubebuilder:validation:MaxLength=39
	V6ip string `json:"v6ip,omitempty"`
	// macAddress is not served: all EIPs of a gateway have the MAC address of its interface.
	// +optional
	// +kubebuilder:validation:MaxLength=17
	MacAddress string `json:"macAddress,omitempty"`
	// natGwDp is the VpcNatGateway that holds the address. It cannot be changed.
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=253
	NatGwDp string `json:"natGwDp"`
	// qosPolicy is not served yet.
	// +optional
	// +kubebuilder:validation:MaxLength=253
	QoSPolicy string `json:"qosPolicy,omitempty"`
	// externalSubnet is the Subnet of the address. It cannot be changed: an address is assigned in one Subnet. Default: ovn-vpc-external-network.
	// +optional
	// +kubebuilder:validation:MaxLength=253
	ExternalSubnet string `json:"externalSubnet,omitempty"`
	// namespace is not served.
	// +optional
	// +kubebuilder:validation:MaxLength=63
	Namespace string `json:"namespace,omitempty"`
}

// IptablesEIPStatus says what became of the object.
type IptablesEIPStatus struct {
	// conditions hold Ready, with the reason in words.
	// +optional
	// +listType=map
	// +listMapKey=type
	Conditions []metav1.Condition `json:"conditions,omitempty"`
	// ready is true once the gateway has the address.
	// +optional
	Ready bool `json:"ready,omitempty"`
	// ip is the address.
	// +optional
	IP string `json:"ip,omitempty"`
	// nat names what uses the EIP: fip, snat, dnat.
	// +optional
	Nat string `json:"nat,omitempty"`
	// redo is empty.
	// +optional
	Redo string `json:"redo,omitempty"`
	// qosPolicy is empty.
	// +optional
	QoSPolicy string `json:"qosPolicy,omitempty"`
}

// IptablesEIPList is a list of objects of kind IptablesEIP.
//
// +kubebuilder:object:root=true
type IptablesEIPList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`
	// Items are the objects.
	Items []IptablesEIP `json:"items"`
}

// IptablesSnatRule translates the sources of a range to an EIP on the way out. Of several rules the one with the longest
// prefix decides.
//
// +kubebuilder:object:root=true
// +kubebuilder:resource:path=iptables-snat-rules,singular=iptables-snat-rule,scope=Cluster,shortName=snat
// +kubebuilder:subresource:status
// +kubebuilder:printcolumn:name="EIP",type=string,JSONPath=`.spec.eip`
// +kubebuilder:printcolumn:name="V4IP",type=string,JSONPath=`.status.v4ip`
// +kubebuilder:printcolumn:name="V6IP",type=string,JSONPath=`.status.v6ip`
// +kubebuilder:printcolumn:name="InternalCIDR",type=string,JSONPath=`.spec.internalCIDR`
// +kubebuilder:printcolumn:name="NatGwDp",type=string,JSONPath=`.status.natGwDp`
// +kubebuilder:printcolumn:name="Ready",type=boolean,JSONPath=`.status.ready`
type IptablesSnatRule struct {
	metav1.TypeMeta `json:",inline"`
	// Standard object's metadata.
	// +optional
	metav1.ObjectMeta `json:"metadata,omitempty"`

	// spec describes the object.
	Spec IptablesSnatRuleSpec `json:"spec"`
	// status is written by Weft only.
	// +optional
	Status IptablesSnatRuleStatus `json:"status,omitzero"`
}

// IptablesSnatRuleSpec is the spec of IptablesSnatRule.
type IptablesSnatRuleSpec struct {
	// eip is the IptablesEIP.
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=253
	EIP string `json:"eip"`
	// internalCIDR is the range of sources, or one address.
	// +kubebuilder:validation:MaxLength=18
	// +kubebuilder:validation:XValidation:rule="(isCIDR(self) && cidr(self).ip().family() == 4) || (isIP(self) && ip(self).family() == 4)",message="must be an IPv4 range such as 10.0.1.0/24, or an address"
	InternalCIDR string `json:"internalCIDR"`
}

// IptablesSnatRuleStatus says what became of the object.
type IptablesSnatRuleStatus struct {
	// conditions hold Ready, with the reason in words.
	// +optional
	// +listType=map
	// +listMapKey=type
	Conditions []metav1.Condition `json:"conditions,omitempty"`
	// ready is true once the gateway has it.
	// +optional
	Ready bool `json:"ready,omitempty"`
	// v4ip is the address of the EIP.
	// +optional
	V4ip string `json:"v4ip,omitempty"`
	// v6ip is empty.
	// +optional
	V6ip string `json:"v6ip,omitempty"`
	// natGwDp is the gateway of the EIP.
	// +optional
	NatGwDp string `json:"natGwDp,omitempty"`
	// redo is empty: a gateway that restarts gets its whole state at once.
	// +optional
	Redo string `json:"redo,omitempty"`
	// internalCIDR is the range in effect.
	// +optional
	InternalCIDR string `json:"internalCIDR,omitempty"`
}

// IptablesSnatRuleList is a list of objects of kind IptablesSnatRule.
//
// +kubebuilder:object:root=true
type IptablesSnatRuleList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`
	// Items are the objects.
	Items []IptablesSnatRule `json:"items"`
}

// IptablesDnatRule forwards a port of an EIP to an address of the VPC.
//
// +kubebuilder:object:root=true
// +kubebuilder:resource:path=iptables-dnat-rules,singular=iptables-dnat-rule,scope=Cluster,shortName=dnat
// +kubebuilder:subresource:status
// +kubebuilder:printcolumn:name="EIP",type=string,JSONPath=`.spec.eip`
// +kubebuilder:printcolumn:name="Protocol",type=string,JSONPath=`.spec.protocol`
// +kubebuilder:printcolumn:name="V4IP",type=string,JSONPath=`.status.v4ip`
// +kubebuilder:printcolumn:name="V6IP",type=string,JSONPath=`.status.v6ip`
// +kubebuilder:printcolumn:name="InternalIP",type=string,JSONPath=`.spec.internalIp`
// +kubebuilder:printcolumn:name="ExternalPort",type=string,JSONPath=`.spec.externalPort`
// +kubebuilder:printcolumn:name="InternalPort",type=string,JSONPath=`.spec.internalPort`
// +kubebuilder:printcolumn:name="NatGwDp",type=string,JSONPath=`.status.natGwDp`
// +kubebuilder:printcolumn:name="Ready",type=boolean,JSONPath=`.status.ready`
type IptablesDnatRule struct {
	metav1.TypeMeta `json:",inline"`
	// Standard object's metadata.
	// +optional
	metav1.ObjectMeta `json:"metadata,omitempty"`

	// spec describes the object.
	Spec IptablesDnatRuleSpec `json:"spec"`
	// status is written by Weft only.
	// +optional
	Status IptablesDnatRuleStatus `json:"status,omitzero"`
}

// IptablesDnatRuleSpec is the spec of IptablesDnatRule.
type IptablesDnatRuleSpec struct {
	// eip is the IptablesEIP.
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=253
	EIP string `json:"eip"`
	// externalPort is the port of the EIP, 1 to 65535.
	// +kubebuilder:validation:MaxLength=5
	// +kubebuilder:validation:Pattern=`^[1-9][0-9]{0,4}$`
	ExternalPort string `json:"externalPort"`
	// protocol is tcp (default) or udp, in any case.
	// +optional
	// +kubebuilder:validation:MaxLength=8
	Protocol string `json:"protocol,omitempty"`
	// internalIp is the address that packets are forwarded to.
	// +kubebuilder:validation:MaxLength=15
	// +kubebuilder:validation:XValidation:rule="isIP(self) && ip(self).family() == 4",message="must be an IPv4 address, such as 10.0.1.5"
	InternalIP string `json:"internalIp"`
	// internalPort is the port that packets are forwarded to.
	// +kubebuilder:validation:MaxLength=5
	// +kubebuilder:validation:Pattern=`^[1-9][0-9]{0,4}$`
	InternalPort string `json:"internalPort"`
	// type is exclusive (default). share is not served.
	// +optional
	// +kubebuilder:validation:Enum=exclusive;share;""
	Type string `json:"type,omitempty"`
}

// IptablesDnatRuleStatus says what became of the object.
type IptablesDnatRuleStatus struct {
	// conditions hold Ready, with the reason in words.
	// +optional
	// +listType=map
	// +listMapKey=type
	Conditions []metav1.Condition `json:"conditions,omitempty"`
	// ready is true once the gateway has it.
	// +optional
	Ready bool `json:"ready,omitempty"`
	// v4ip is the address of the EIP.
	// +optional
	V4ip string `json:"v4ip,omitempty"`
	// v6ip is empty.
	// +optional
	V6ip string `json:"v6ip,omitempty"`
	// natGwDp is the gateway of the EIP.
	// +optional
	NatGwDp string `json:"natGwDp,omitempty"`
	// redo is empty: a gateway that restarts gets its whole state at once.
	// +optional
	Redo string `json:"redo,omitempty"`
	// protocol is the protocol in effect.
	// +optional
	Protocol string `json:"protocol,omitempty"`
	// internalIp is the address in effect.
	// +optional
	InternalIP string `json:"internalIp,omitempty"`
	// internalPort is the port in effect.
	// +optional
	InternalPort string `json:"internalPort,omitempty"`
	// externalPort is the port of the EIP in effect.
	// +optional
	ExternalPort string `json:"externalPort,omitempty"`
}

// IptablesDnatRuleList is a list of objects of kind IptablesDnatRule.
//
// +kubebuilder:object:root=true
type IptablesDnatRuleList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`
	// Items are the objects.
	Items []IptablesDnatRule `json:"items"`
}

// IptablesFIPRule makes an EIP the floating IP of one address of the VPC, in both directions.
//
// +kubebuilder:object:root=true
// +kubebuilder:resource:path=iptables-fip-rules,singular=iptables-fip-rule,scope=Cluster,shortName=fip
// +kubebuilder:subresource:status
// +kubebuilder:printcolumn:name="EIP",type=string,JSONPath=`.spec.eip`
// +kubebuilder:printcolumn:name="V4IP",type=string,JSONPath=`.status.v4ip`
// +kubebuilder:printcolumn:name="InternalIP",type=string,JSONPath=`.spec.internalIp`
// +kubebuilder:printcolumn:name="V6IP",type=string,JSONPath=`.status.v6ip`
// +kubebuilder:printcolumn:name="Ready",type=boolean,JSONPath=`.status.ready`
// +kubebuilder:printcolumn:name="NatGwDp",type=string,JSONPath=`.status.natGwDp`
type IptablesFIPRule struct {
	metav1.TypeMeta `json:",inline"`
	// Standard object's metadata.
	// +optional
	metav1.ObjectMeta `json:"metadata,omitempty"`

	// spec describes the object.
	Spec IptablesFIPRuleSpec `json:"spec"`
	// status is written by Weft only.
	// +optional
	Status IptablesFIPRuleStatus `json:"status,omitzero"`
}

// IptablesFIPRuleSpec is the spec of IptablesFIPRule.
type IptablesFIPRuleSpec struct {
	// eip is the IptablesEIP. No other rule may use it.
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=253
	EIP string `json:"eip"`
	// internalIp is the address.
	// +kubebuilder:validation:MaxLength=15
	// +kubebuilder:validation:XValidation:rule="isIP(self) && ip(self).family() == 4",message="must be an IPv4 address, such as 10.0.1.5"
	InternalIP string `json:"internalIp"`
}

// IptablesFIPRuleStatus says what became of the object.
type IptablesFIPRuleStatus struct {
	// conditions hold Ready, with the reason in words.
	// +optional
	// +listType=map
	// +listMapKey=type
	Conditions []metav1.Condition `json:"conditions,omitempty"`
	// ready is true once the gateway has it.
	// +optional
	Ready bool `json:"ready,omitempty"`
	// v4ip is the address of the EIP.
	// +optional
	V4ip string `json:"v4ip,omitempty"`
	// v6ip is empty.
	// +optional
	V6ip string `json:"v6ip,omitempty"`
	// natGwDp is the gateway of the EIP.
	// +optional
	NatGwDp string `json:"natGwDp,omitempty"`
	// redo is empty: a gateway that restarts gets its whole state at once.
	// +optional
	Redo string `json:"redo,omitempty"`
	// internalIp is the address in effect.
	// +optional
	InternalIP string `json:"internalIp,omitempty"`
}

// IptablesFIPRuleList is a list of objects of kind IptablesFIPRule.
//
// +kubebuilder:object:root=true
type IptablesFIPRuleList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`
	// Items are the objects.
	Items []IptablesFIPRule `json:"items"`
}
