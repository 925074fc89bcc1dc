package v1

import metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

// Subnet is a switch of a VPC with a range of addresses, or, with a provider other than "ovn", the address pool of a
// NetworkAttachmentDefinition.
//
// +kubebuilder:object:root=true
// +kubebuilder:resource:path=subnets,singular=subnet,scope=Cluster,shortName=subnet
// +kubebuilder:subresource:status
// +kubebuilder:printcolumn:name="Provider",type=string,JSONPath=`.spec.provider`
// +kubebuilder:printcolumn:name="Vpc",type=string,JSONPath=`.spec.vpc`
// +kubebuilder:printcolumn:name="Vlan",type=string,JSONPath=`.spec.vlan`,priority=1
// +kubebuilder:printcolumn:name="Protocol",type=string,JSONPath=`.spec.protocol`
// +kubebuilder:printcolumn:name="CIDR",type=string,JSONPath=`.spec.cidrBlock`
// +kubebuilder:printcolumn:name="Private",type=boolean,JSONPath=`.spec.private`
// +kubebuilder:printcolumn:name="NAT",type=boolean,JSONPath=`.spec.natOutgoing`
// +kubebuilder:printcolumn:name="Default",type=boolean,JSONPath=`.spec.default`
// +kubebuilder:printcolumn:name="GatewayType",type=string,JSONPath=`.spec.gatewayType`
// +kubebuilder:printcolumn:name="V4Used",type=number,JSONPath=`.status.v4usingIPs`
// +kubebuilder:printcolumn:name="V4Available",type=number,JSONPath=`.status.v4availableIPs`
// +kubebuilder:printcolumn:name="V6Used",type=number,JSONPath=`.status.v6usingIPs`
// +kubebuilder:printcolumn:name="V6Available",type=number,JSONPath=`.status.v6availableIPs`
// +kubebuilder:printcolumn:name="ExcludeIPs",type=string,JSONPath=`.spec.excludeIps`
// +kubebuilder:printcolumn:name="U2OInterconnectionIP",type=string,JSONPath=`.status.u2oInterconnectionIP`
// +kubebuilder:printcolumn:name="Ready",type=string,JSONPath=`.status.conditions[?(@.type=="Ready")].status`
type Subnet struct {
	metav1.TypeMeta `json:",inline"`
	// Standard object's metadata.
	// +optional
	metav1.ObjectMeta `json:"metadata,omitempty"`

	// spec describes the subnet.
	Spec SubnetSpec `json:"spec"`
	// status is written by Weft only.
	// +optional
	Status SubnetStatus `json:"status,omitzero"`
}

// SubnetSpec describes a subnet. Fields that are not served are named in the condition Supported when they are set.
//
// +kubebuilder:validation:XValidation:rule="!has(self.gateway) || size(self.gateway) == 0 || self.gateway.split(',').all(g, self.cidrBlock.split(',').exists(c, isIP(g) && isCIDR(c) && cidr(c).containsIP(g) && string(cidr(c).masked().ip()) != g))",message="gateway must be an address for a host in cidrBlock, such as 10.0.1.1 in 10.0.1.0/24",fieldPath=".gateway"
// +kubebuilder:validation:XValidation:rule="!has(oldSelf.vpc) || size(oldSelf.vpc) == 0 || oldSelf.vpc == 'ovn-cluster' || (has(self.vpc) && self.vpc == oldSelf.vpc)",message="vpc cannot be changed: delete the Subnet and make it anew",fieldPath=".vpc"
// +kubebuilder:validation:XValidation:rule="!has(oldSelf.vpc) || size(oldSelf.vpc) == 0 || oldSelf.vpc == 'ovn-cluster' || (has(oldSelf.provider) && size(oldSelf.provider) > 0 && oldSelf.provider != 'ovn') || !has(self.provider) || size(self.provider) == 0 || self.provider == 'ovn'",message="provider of a Subnet of a Vpc cannot be changed: delete the Subnet and make it anew",fieldPath=".provider"
type SubnetSpec struct {
	// default is not served: pods without a Subnet are on the overlay.
	// +optional
	Default bool `json:"default,omitempty"`
	// vpc is the Vpc that the subnet belongs to. It is required for the provider "ovn", and cannot be changed once it is set.
	// +optional
	// +kubebuilder:validation:MaxLength=253
	Vpc string `json:"vpc,omitempty"`
	// protocol is IPv4. IPv6 and Dual are not served yet.
	// +optional
	// +kubebuilder:validation:Enum=IPv4;IPv6;Dual;""
	Protocol string `json:"protocol,omitempty"`
	// cidrBlock is the subnet's range, such as 10.0.1.0/24.
	// +kubebuilder:validation:MaxLength=88
	// +kubebuilder:validation:XValidation:rule="self.split(',').all(c, isCIDR(c))",message="must be a range such as 10.0.1.0/24, or an IPv4 and an IPv6 range separated by a comma"
	CIDRBlock string `json:"cidrBlock"`
	// gateway is the router's address in the subnet. Default: the first address of the range.
	// +optional
	// +kubebuilder:validation:MaxLength=80
	// +kubebuilder:validation:XValidation:rule="self == '' || self.split(',').all(a, isIP(a))",message="must be an address of the subnet, such as 10.0.1.1"
	Gateway string `json:"gateway,omitempty"`
	// excludeIps are addresses (10.0.1.5) and ranges (10.0.1.10..10.0.1.20) that are only given to pods that ask for them.
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=4096
	// +kubebuilder:validation:items:MaxLength=80
	// +kubebuilder:validation:items:XValidation:rule="isIP(self) || (self.split('..').size() == 2 && isIP(self.split('..')[0]) && isIP(self.split('..')[1]) && (ip(self.split('..')[0]).family() == 6 && ip(self.split('..')[1]).family() == 6 || !self.contains(':') && int(self.split('..')[0].split('.')[0]) * 16777216 + int(self.split('..')[0].split('.')[1]) * 65536 + int(self.split('..')[0].split('.')[2]) * 256 + int(self.split('..')[0].split('.')[3]) <= int(self.split('..')[1].split('.')[0]) * 16777216 + int(self.split('..')[1].split('.')[1]) * 65536 + int(self.split('..')[1].split('.')[2]) * 256 + int(self.split('..')[1].split('.')[3])))",message="must be an address such as 10.0.1.5, or a range such as 10.0.1.10..10.0.1.20 with the lower address first"
	ExcludeIps []string `json:"excludeIps,omitempty"`
	// provider is "ovn" (default), or "<name>.<namespace>" of a NetworkAttachmentDefinition.
	// +optional
	// +kubebuilder:validation:MaxLength=320
	Provider string `json:"provider,omitempty"`
	// namespaces are bound to the subnet: their pods get it unless an annotation names another. No other namespace may use it.
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=4096
	// +kubebuilder:validation:items:MaxLength=63
	Namespaces []string `json:"namespaces,omitempty"`
	// namespaceSelectors bind namespaces by their labels.
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=64
	NamespaceSelectors []metav1.LabelSelector `json:"namespaceSelectors,omitempty"`
	// mtu is the MTU of the pods' interfaces. Default: that of the nodes' network less 58.
	// +optional
	// +kubebuilder:validation:Maximum=65535
	Mtu uint32 `json:"mtu,omitempty"`
	// routeTable is the table of the VPC's routes that packets from this subnet use. Default: the main table.
	// +optional
	// +kubebuilder:validation:MaxLength=63
	// +kubebuilder:validation:XValidation:rule="self.matches('^[A-Za-z0-9_.-]*$') && self != 'global'",message="must be the name of a route table: letters, digits, '-', '_' and '.', and not global"
	RouteTable string `json:"routeTable,omitempty"`
	// private closes the subnet: packets pass within it, and between it and the ranges of allowSubnets, and no others.
	// +optional
	Private bool `json:"private,omitempty"`
	// allowSubnets are ranges that a private subnet exchanges packets with.
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=1024
	// +kubebuilder:validation:items:MaxLength=88
	AllowSubnets []string `json:"allowSubnets,omitempty"`
	// allowEWTraffic allows packets within the subnet before user ACLs of a lower priority than 1900.
	// +optional
	AllowEWTraffic bool `json:"allowEWTraffic,omitempty"`
	// acls are rules of the subnet's switch.
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=4096
	Acls []ACL `json:"acls,omitempty"`

	// vlan is not served.
	// +optional
	// +kubebuilder:validation:MaxLength=63
	Vlan string `json:"vlan,omitempty"`
	// logicalGateway is not served.
	// +optional
	LogicalGateway bool `json:"logicalGateway,omitempty"`
	// vips is not served.
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=1024
	Vips []string `json:"vips,omitempty"`
	// gatewayType is not served.
	// +optional
	// +kubebuilder:validation:Enum=distributed;centralized;""
	GatewayType string `json:"gatewayType,omitempty"`
	// gatewayNode is not served.
	// +optional
	// +kubebuilder:validation:MaxLength=4096
	GatewayNode string `json:"gatewayNode,omitempty"`
	// gatewayNodeSelectors is not served.
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=64
	GatewayNodeSelectors []metav1.LabelSelector `json:"gatewayNodeSelectors,omitempty"`
	// enableEcmp is not served.
	// +optional
	EnableEcmp bool `json:"enableEcmp,omitempty"`
	// natOutgoing is not served.
	// +optional
	NatOutgoing bool `json:"natOutgoing,omitempty"`
	// natOutgoingPolicyRules is not served.
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=1024
	NatOutgoingPolicyRules []NatOutgoingPolicyRule `json:"natOutgoingPolicyRules,omitempty"`
	// externalEgressGateway is not served.
	// +optional
	// +kubebuilder:validation:MaxLength=128
	ExternalEgressGateway string `json:"externalEgressGateway,omitempty"`
	// policyRoutingPriority is not served.
	// +optional
	PolicyRoutingPriority uint32 `json:"policyRoutingPriority,omitempty"`
	// policyRoutingTableID is not served.
	// +optional
	PolicyRoutingTableID uint32 `json:"policyRoutingTableID,omitempty"`
	// disableGatewayCheck changes nothing: no gateway is checked when a pod starts.
	// +optional
	DisableGatewayCheck bool `json:"disableGatewayCheck,omitempty"`
	// disableInterConnection changes nothing: there is no interconnection between clusters.
	// +optional
	DisableInterConnection bool `json:"disableInterConnection,omitempty"`
	// enableLb is not served.
	// +optional
	EnableLb *bool `json:"enableLb,omitempty"`
	// enableExternalLBAddress is not served.
	// +optional
	EnableExternalLBAddress bool `json:"enableExternalLBAddress,omitempty"`
	// enableDHCP is not served.
	// +optional
	EnableDHCP bool `json:"enableDHCP,omitempty"`
	// dhcpV4Options is not served.
	// +optional
	// +kubebuilder:validation:MaxLength=4096
	DHCPv4Options string `json:"dhcpV4Options,omitempty"`
	// dhcpV6Options is not served.
	// +optional
	// +kubebuilder:validation:MaxLength=4096
	DHCPv6Options string `json:"dhcpV6Options,omitempty"`
	// enableIPv6RA is not served.
	// +optional
	EnableIPv6RA bool `json:"enableIPv6RA,omitempty"`
	// ipv6RAConfigs is not served.
	// +optional
	// +kubebuilder:validation:MaxLength=4096
	IPv6RAConfigs string `json:"ipv6RAConfigs,omitempty"`
	// u2oInterconnection is not served.
	// +optional
	U2OInterconnection bool `json:"u2oInterconnection,omitempty"`
	// u2oInterconnectionIP is not served.
	// +optional
	// +kubebuilder:validation:MaxLength=128
	U2OInterconnectionIP string `json:"u2oInterconnectionIP,omitempty"`
	// u2oFeatures is not served.
	// +optional
	U2OFeatures *U2OFeatures `json:"u2oFeatures,omitempty"`
	// enableMulticastSnoop is not served.
	// +optional
	EnableMulticastSnoop bool `json:"enableMulticastSnoop,omitempty"`
	// nodeNetwork is not served.
	// +optional
	// +kubebuilder:validation:MaxLength=253
	NodeNetwork string `json:"nodeNetwork,omitempty"`
}

// ACL is a rule of a subnet's switch.
type ACL struct {
	// direction is from-lport (packets from the subnet's pods) or to-lport (packets to them).
	// +kubebuilder:validation:Enum=from-lport;to-lport
	Direction string `json:"direction"`
	// priority decides between rules that match; the highest wins.
	// +kubebuilder:validation:Minimum=0
	// +kubebuilder:validation:Maximum=32767
	Priority int `json:"priority,omitempty"`
	// match is an expression in OVN's language, such as "ip4.src == 10.0.1.0/24 && tcp.dst == 80".
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=4096
	Match string `json:"match"`
	// action is allow, allow-related, allow-stateless, drop or reject.
	// +kubebuilder:validation:Enum=allow;allow-related;allow-stateless;drop;reject
	Action string `json:"action"`
}

// NatOutgoingPolicyRule is a rule of Kube-OVN's default VPC.
type NatOutgoingPolicyRule struct {
	// match is what the rule applies to.
	// +optional
	Match NatOutgoingPolicyMatch `json:"match,omitzero"`
	// action is nat or forward.
	// +optional
	// +kubebuilder:validation:MaxLength=16
	Action string `json:"action,omitempty"`
}

// NatOutgoingPolicyMatch is what a NatOutgoingPolicyRule applies to.
type NatOutgoingPolicyMatch struct {
	// srcIPs are ranges of sources, separated by commas.
	// +optional
	// +kubebuilder:validation:MaxLength=4096
	SrcIPs string `json:"srcIPs,omitempty"`
	// dstIPs are ranges of destinations, separated by commas.
	// +optional
	// +kubebuilder:validation:MaxLength=4096
	DstIPs string `json:"dstIPs,omitempty"`
}

// U2OFeatures are details of Kube-OVN's interconnection of underlay and overlay.
type U2OFeatures struct {
	// overlayOnlyRouting is not served.
	// +optional
	OverlayOnlyRouting bool `json:"overlayOnlyRouting,omitempty"`
}

// SubnetStatus says what became of a subnet. Counts and ranges come from the same pool and agree with each other.
type SubnetStatus struct {
	// conditions are Ready and Supported.
	// +optional
	// +listType=map
	// +listMapKey=type
	Conditions []metav1.Condition `json:"conditions,omitempty"`
	// v4availableIPs counts the addresses that can still be given out.
	// +optional
	V4AvailableIPs int64 `json:"v4availableIPs"`
	// v4availableIPrange lists them.
	// +optional
	V4AvailableIPRange string `json:"v4availableIPrange"`
	// v4usingIPs counts the addresses in use, without excluded ones.
	// +optional
	V4UsingIPs int64 `json:"v4usingIPs"`
	// v4usingIPrange lists them.
	// +optional
	V4UsingIPRange string `json:"v4usingIPrange"`
	// v6availableIPs is 0.
	// +optional
	V6AvailableIPs int64 `json:"v6availableIPs"`
	// v6availableIPrange is empty.
	// +optional
	V6AvailableIPRange string `json:"v6availableIPrange"`
	// v6usingIPs is 0.
	// +optional
	V6UsingIPs int64 `json:"v6usingIPs"`
	// v6usingIPrange is empty.
	// +optional
	V6UsingIPRange string `json:"v6usingIPrange"`
	// activateGateway is empty.
	// +optional
	ActivateGateway string `json:"activateGateway"`
	// u2oInterconnectionIP is empty.
	// +optional
	U2OInterconnectionIP string `json:"u2oInterconnectionIP"`
	// lastIP is the address that was given out last. The next one is searched from there, so that a released address comes again
	// only after a lap.
	// +optional
	LastIP string `json:"lastIP,omitempty"`
	// tunnelKey is the datapath's tunnel key, which stays the same when the databases are rebuilt.
	// +optional
	TunnelKey int `json:"tunnelKey,omitempty"`
}

// SubnetList is a list of Subnets.
//
// +kubebuilder:object:root=true
type SubnetList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`
	// Items are the objects.
	Items []Subnet `json:"items"`
}
