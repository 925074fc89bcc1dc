package v1

import metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

// QoSPolicy limits the bandwidth of EIPs and gateways in Kube-OVN. Weft keeps the objects and does not serve them yet.
//
// +kubebuilder:object:root=true
// +kubebuilder:resource:path=qos-policies,singular=qos-policy,scope=Cluster,shortName=qos
// +kubebuilder:subresource:status
// +kubebuilder:printcolumn:name="Shared",type=string,JSONPath=`.spec.shared`
// +kubebuilder:printcolumn:name="BindingType",type=string,JSONPath=`.spec.bindingType`
type QoSPolicy struct {
	metav1.TypeMeta `json:",inline"`
	// Standard object's metadata.
	// +optional
	metav1.ObjectMeta `json:"metadata,omitempty"`

	// spec describes the object.
	Spec QoSPolicySpec `json:"spec"`
	// status is written by Weft only.
	// +optional
	Status QoSPolicyStatus `json:"status,omitzero"`
}

// QoSPolicySpec is the spec of QoSPolicy.
type QoSPolicySpec struct {
	// bandwidthLimitRules are the limits.
	// +optional
	// +kubebuilder:validation:MaxItems=256
	// +listType=atomic
	BandwidthLimitRules []QoSPolicyBandwidthLimitRule `json:"bandwidthLimitRules,omitempty"`
	// shared says whether several objects may use the policy.
	// +optional
	Shared bool `json:"shared,omitempty"`
	// bindingType is EIP or NATGW.
	// +optional
	// +kubebuilder:validation:Enum=EIP;NATGW;""
	BindingType string `json:"bindingType,omitempty"`
}

// QoSPolicyStatus says what became of the object.
type QoSPolicyStatus struct {
	// conditions hold Ready, with the reason in words.
	// +optional
	// +listType=map
	// +listMapKey=type
	Conditions []metav1.Condition `json:"conditions,omitempty"`
	// bandwidthLimitRules is empty.
	// +optional
	// +listType=atomic
	BandwidthLimitRules []QoSPolicyBandwidthLimitRule `json:"bandwidthLimitRules,omitempty"`
	// shared is false.
	// +optional
	Shared bool `json:"shared,omitempty"`
	// bindingType is empty.
	// +optional
	BindingType string `json:"bindingType,omitempty"`
}

// QoSPolicyList is a list of objects of kind QoSPolicy.
//
// +kubebuilder:object:root=true
type QoSPolicyList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`
	// Items are the objects.
	Items []QoSPolicy `json:"items"`
}

// QoSPolicyBandwidthLimitRule is a limit of a QoSPolicy.
type QoSPolicyBandwidthLimitRule struct {
	// name tells rules apart.
	// +kubebuilder:validation:MaxLength=253
	Name string `json:"name"`
	// interface is the gateway's interface.
	// +optional
	// +kubebuilder:validation:MaxLength=15
	Interface string `json:"interface,omitempty"`
	// rateMax is the rate in Mbit/s.
	// +optional
	// +kubebuilder:validation:MaxLength=32
	RateMax string `json:"rateMax,omitempty"`
	// burstMax is the burst in MB.
	// +optional
	// +kubebuilder:validation:MaxLength=32
	BurstMax string `json:"burstMax,omitempty"`
	// priority decides between rules.
	// +optional
	Priority int `json:"priority,omitempty"`
	// direction is ingress or egress.
	// +optional
	// +kubebuilder:validation:Enum=ingress;egress;""
	Direction string `json:"direction,omitempty"`
	// matchType is ip, or empty for all packets.
	// +optional
	// +kubebuilder:validation:MaxLength=16
	MatchType string `json:"matchType,omitempty"`
	// matchValue is "src" or "dst" and a range.
	// +optional
	// +kubebuilder:validation:MaxLength=64
	MatchValue string `json:"matchValue,omitempty"`
}

// IP records the address of one pod in one subnet. Weft's controller writes it; its name is the Subnet's name and the address,
// joined by a dot, so that no address is given out twice.
//
// +kubebuilder:object:root=true
// +kubebuilder:resource:path=ips,singular=ip,scope=Cluster,shortName=ip
// +kubebuilder:selectablefield:JSONPath=`.spec.nodeName`
// +kubebuilder:printcolumn:name="V4IP",type=string,JSONPath=`.spec.v4IpAddress`
// +kubebuilder:printcolumn:name="V6IP",type=string,JSONPath=`.spec.v6IpAddress`
// +kubebuilder:printcolumn:name="Mac",type=string,JSONPath=`.spec.macAddress`
// +kubebuilder:printcolumn:name="Node",type=string,JSONPath=`.spec.nodeName`
// +kubebuilder:printcolumn:name="Subnet",type=string,JSONPath=`.spec.subnet`
// +kubebuilder:printcolumn:name="Namespace",type=string,JSONPath=`.spec.namespace`
// +kubebuilder:printcolumn:name="Pod",type=string,JSONPath=`.spec.podName`
type IP struct {
	metav1.TypeMeta `json:",inline"`
	// Standard object's metadata.
	// +optional
	metav1.ObjectMeta `json:"metadata,omitempty"`

	// spec describes the object.
	Spec IPSpec `json:"spec"`
}

// IPSpec is the spec of IP.
type IPSpec struct {
	// podName is the pod.
	// +optional
	// +kubebuilder:validation:MaxLength=253
	PodName string `json:"podName,omitempty"`
	// namespace is the pod's namespace.
	// +optional
	// +kubebuilder:validation:MaxLength=63
	Namespace string `json:"namespace,omitempty"`
	// subnet is the Subnet.
	// +optional
	// +kubebuilder:validation:MaxLength=253
	Subnet string `json:"subnet,omitempty"`
	// attachSubnets is empty.
	// +optional
	// +listType=atomic
	AttachSubnets []string `json:"attachSubnets,omitempty"`
	// nodeName is the pod's node.
	// +optional
	// +kubebuilder:validation:MaxLength=253
	NodeName string `json:"nodeName,omitempty"`
	// ipAddress is the address.
	// +optional
	// +kubebuilder:validation:MaxLength=80
	IPAddress string `json:"ipAddress,omitempty"`
	// v4IpAddress is the address.
	// +optional
	// +kubebuilder:validation:MaxLength=15
	// +kubebuilder:validation:XValidation:rule="self == '' || (isIP(self) && ip(self).family() == 4)",message="must be an IPv4 address, such as 10.0.1.2"
	V4IPAddress string `json:"v4IpAddress,omitempty"`
	// v6IpAddress is empty.
	// +optional
	// +kubebuilder:validation:MaxLength=39
	V6IPAddress string `json:"v6IpAddress,omitempty"`
	// attachIps is empty.
	// +optional
	// +listType=atomic
	AttachIPs []string `json:"attachIps,omitempty"`
	// macAddress is the MAC address.
	// +optional
	// +kubebuilder:validation:MaxLength=17
	MacAddress string `json:"macAddress,omitempty"`
	// attachMacs is empty.
	// +optional
	// +listType=atomic
	AttachMacs []string `json:"attachMacs,omitempty"`
	// containerID is empty.
	// +optional
	// +kubebuilder:validation:MaxLength=128
	ContainerID string `json:"containerID,omitempty"`
	// podType is the kind of the pod's owner where addresses stay with it.
	// +optional
	// +kubebuilder:validation:MaxLength=63
	PodType string `json:"podType,omitempty"`
	// podUID is the UID of the pod. An agent attaches no other pod with this address.
	// +optional
	// +kubebuilder:validation:MaxLength=64
	PodUID string `json:"podUID,omitempty"`
	// subnetUID is the UID of the Subnet.
	// +optional
	// +kubebuilder:validation:MaxLength=64
	SubnetUID string `json:"subnetUID,omitempty"`
	// logicalPort is the name of the logical switch port, which is the iface-id of the pod's interface: a Subnet's name and an address.
	// +optional
	// +kubebuilder:validation:MaxLength=269
	LogicalPort string `json:"logicalPort,omitempty"`
	// cidr is the range of the Subnet, whose length the pod's address has.
	// +optional
	// +kubebuilder:validation:MaxLength=18
	CIDR string `json:"cidr,omitempty"`
	// gateway is the gateway of the pod's default route.
	// +optional
	// +kubebuilder:validation:MaxLength=39
	Gateway string `json:"gateway,omitempty"`
	// natGateway is the VpcNatGateway whose pod it is.
	// +optional
	// +kubebuilder:validation:MaxLength=253
	NATGateway string `json:"natGateway,omitempty"`
	// mtu is the MTU of the pod's interface; 0 means that of the nodes' network less 58.
	// +optional
	Mtu int32 `json:"mtu,omitempty"`
}

// IPList is a list of objects of kind IP.
//
// +kubebuilder:object:root=true
type IPList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`
	// Items are the objects.
	Items []IP `json:"items"`
}
