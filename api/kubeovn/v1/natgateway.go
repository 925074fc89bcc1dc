package v1

import (
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// VpcNatGateway is a pod of a VPC that translates between the VPC and an external network.
//
// +kubebuilder:object:root=true
// +kubebuilder:resource:path=vpc-nat-gateways,singular=vpc-nat-gateway,scope=Cluster,shortName=vpc-nat-gw
// +kubebuilder:subresource:status
// +kubebuilder:printcolumn:name="Vpc",type=string,JSONPath=`.spec.vpc`
// +kubebuilder:printcolumn:name="Subnet",type=string,JSONPath=`.spec.subnet`
// +kubebuilder:printcolumn:name="LanIP",type=string,JSONPath=`.spec.lanIp`
// +kubebuilder:printcolumn:name="Ready",type=string,JSONPath=`.status.conditions[?(@.type=="Ready")].status`
// +kubebuilder:printcolumn:name="Age",type=date,JSONPath=`.metadata.creationTimestamp`
type VpcNatGateway struct {
	metav1.TypeMeta `json:",inline"`
	// Standard object's metadata.
	// +optional
	metav1.ObjectMeta `json:"metadata,omitempty"`

	// spec describes the gateway.
	Spec VpcNatGatewaySpec `json:"spec"`
	// status is written by Weft only.
	// +optional
	Status VpcNatGatewayStatus `json:"status,omitzero"`
}

// VpcNatGatewaySpec describes a gateway.
//
// +kubebuilder:validation:XValidation:rule="(has(self.externalSubnets) && size(self.externalSubnets) > 0 ? self.externalSubnets[0] : 'ovn-vpc-external-network') == (has(oldSelf.externalSubnets) && size(oldSelf.externalSubnets) > 0 ? oldSelf.externalSubnets[0] : 'ovn-vpc-external-network')",message="externalSubnets cannot be changed: delete the gateway and make it anew"
type VpcNatGatewaySpec struct {
	// namespace is not served: gateways' pods are in the namespace of the ConfigMaps.
	// +optional
	// +kubebuilder:validation:MaxLength=63
	Namespace string `json:"namespace,omitempty"`
	// vpc is the Vpc that the gateway serves.
	// +kubebuilder:validation:MaxLength=253
	Vpc string `json:"vpc"`
	// subnet is the Subnet of the VPC that the gateway has its lanIp in.
	// +kubebuilder:validation:MaxLength=253
	Subnet string `json:"subnet"`
	// externalSubnets holds the external Subnet. Only the first is served. It cannot be changed: a running gateway has an address of it. Default:
	// ovn-vpc-external-network.
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=16
	// +kubebuilder:validation:items:MaxLength=253
	ExternalSubnets []string `json:"externalSubnets,omitempty"`
	// lanIp is the gateway's address in subnet: the next hop of the VPC's routes to the outside. It is not the subnet's own
	// gateway.
	// +optional
	// +kubebuilder:validation:MaxLength=39
	// +kubebuilder:validation:XValidation:rule="self == '' || isIP(self)",message="must be an address of the subnet, such as 10.0.1.254"
	LanIP string `json:"lanIp,omitempty"`
	// selector chooses nodes: entries such as "kubernetes.io/hostname: node1".
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=64
	// +kubebuilder:validation:items:MaxLength=400
	Selector []string `json:"selector,omitempty"`
	// tolerations are those of the gateway's pod.
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=64
	Tolerations []corev1.Toleration `json:"tolerations,omitempty"`
	// affinity is that of the gateway's pod.
	// +optional
	Affinity corev1.Affinity `json:"affinity,omitzero"`
	// qosPolicy is not served yet.
	// +optional
	// +kubebuilder:validation:MaxLength=253
	QoSPolicy string `json:"qosPolicy,omitempty"`
	// replicas above 1 is not served yet.
	// +optional
	// +kubebuilder:validation:Minimum=0
	// +kubebuilder:validation:Maximum=16
	Replicas int32 `json:"replicas,omitempty"`
	// bgpSpeaker is not served.
	// +optional
	BgpSpeaker *VpcBgpSpeaker `json:"bgpSpeaker,omitempty"`
	// bfd is not served yet.
	// +optional
	BFD *VpcNatGatewayBFD `json:"bfd,omitempty"`
	// internalSubnets is not served.
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=256
	InternalSubnets []string `json:"internalSubnets,omitempty"`
	// internalCIDRs is not served.
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=256
	InternalCIDRs []string `json:"internalCIDRs,omitempty"`
	// routes is not served.
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=256
	Routes []GatewayRoute `json:"routes,omitempty"`
	// noDefaultEIP gives the gateway no address of its own in the external subnet.
	// +optional
	NoDefaultEIP bool `json:"noDefaultEIP,omitempty"`
	// annotations is not served.
	// +optional
	Annotations map[string]string `json:"annotations,omitempty"`
}

// GatewayRoute is a route of a gateway in later versions of Kube-OVN.
type GatewayRoute struct {
	// cidr is the destination.
	// +kubebuilder:validation:MaxLength=43
	CIDR string `json:"cidr"`
	// nextHopIP is the next hop, or "gateway".
	// +kubebuilder:validation:MaxLength=43
	NextHopIP string `json:"nextHopIP"`
}

// VpcBgpSpeaker is the BGP speaker of a gateway in later versions of Kube-OVN.
type VpcBgpSpeaker struct {
	// enabled is not served.
	// +optional
	Enabled bool `json:"enabled,omitempty"`
	// asn is not served.
	// +optional
	ASN int64 `json:"asn,omitempty"`
	// remoteAsn is not served.
	// +optional
	RemoteASN int64 `json:"remoteAsn,omitempty"`
	// neighbors is not served.
	// +optional
	// +listType=atomic
	Neighbors []string `json:"neighbors,omitempty"`
	// holdTime is not served.
	// +optional
	HoldTime metav1.Duration `json:"holdTime,omitzero"`
	// routerId is not served.
	// +optional
	RouterID string `json:"routerId,omitempty"`
	// password is not served.
	// +optional
	Password string `json:"password,omitempty"`
	// enableGracefulRestart is not served.
	// +optional
	EnableGracefulRestart bool `json:"enableGracefulRestart,omitempty"`
	// extraArgs is not served.
	// +optional
	// +listType=atomic
	ExtraArgs []string `json:"extraArgs,omitempty"`
}

// VpcNatGatewayBFD is the BFD of gateways in later versions of Kube-OVN.
type VpcNatGatewayBFD struct {
	// enabled is not served yet.
	// +optional
	Enabled bool `json:"enabled,omitempty"`
	// minRX is not served yet.
	// +optional
	MinRX int32 `json:"minRX,omitempty"`
	// minTX is not served yet.
	// +optional
	MinTX int32 `json:"minTX,omitempty"`
	// multiplier is not served yet.
	// +optional
	Multiplier int32 `json:"multiplier,omitempty"`
}

// VpcNatGatewayStatus says what became of a gateway.
type VpcNatGatewayStatus struct {
	// conditions are Ready and Supported.
	// +optional
	// +listType=map
	// +listMapKey=type
	Conditions []metav1.Condition `json:"conditions,omitempty"`
	// qosPolicy is empty.
	// +optional
	QoSPolicy string `json:"qosPolicy"`
	// externalSubnets are those of the running gateway.
	// +optional
	// +listType=atomic
	ExternalSubnets []string `json:"externalSubnets"`
	// selector is that of the running gateway.
	// +optional
	// +listType=atomic
	Selector []string `json:"selector"`
	// tolerations are those of the running gateway.
	// +optional
	// +listType=atomic
	Tolerations []corev1.Toleration `json:"tolerations"`
	// affinity is that of the running gateway.
	// +optional
	Affinity corev1.Affinity `json:"affinity,omitzero"`
	// lanIp is the address in the VPC.
	// +optional
	LanIP string `json:"lanIp,omitempty"`
	// ip is the gateway's own address in the external subnet.
	// +optional
	IP string `json:"ip,omitempty"`
	// replicas is the number of pods.
	// +optional
	Replicas int32 `json:"replicas,omitempty"`
	// ready says whether a pod has the whole of its state.
	// +optional
	Ready bool `json:"ready,omitempty"`
	// hash is that of the state that the gateway's pods must have.
	// +optional
	Hash string `json:"hash,omitempty"`
}

// VpcNatGatewayList is a list of VpcNatGateways.
//
// +kubebuilder:object:root=true
type VpcNatGatewayList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`
	// Items are the objects.
	Items []VpcNatGateway `json:"items"`
}
