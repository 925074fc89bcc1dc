package v1

import metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

// NetNamespace is a namespace's part in the network: its VNID, and the addresses it leaves the cluster from. The
// controller makes one for every Namespace, named like it, in the modes that have VNIDs.
//
// +kubebuilder:object:root=true
// +kubebuilder:resource:path=netnamespaces,scope=Cluster,categories=weft
// +kubebuilder:subresource:status
// +kubebuilder:printcolumn:name="NetID",type=integer,JSONPath=`.netid`,description="The network identifier of the network namespace"
// +kubebuilder:printcolumn:name="Egress IPs",type=string,JSONPath=`.egressIPs`,description="The network egress IP addresses"
// +kubebuilder:validation:XValidation:rule="self.netname == self.metadata.name",message="netname must equal metadata.name"
type NetNamespace struct {
	metav1.TypeMeta `json:",inline"`
	// Standard object's metadata. The name is the namespace's.
	// +optional
	metav1.ObjectMeta `json:"metadata,omitempty"`

	// netname is the name of the namespace: the same as metadata.name.
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=63
	// +kubebuilder:validation:Pattern=`^[a-z0-9]([a-z0-9-]*[a-z0-9])?$`
	NetName string `json:"netname"`

	// netid is the namespace's VNID, the one that its packets carry in VXLAN: 0 to 16777215. Namespaces with the same
	// one are one network where isolation is by VNID; 0 reaches all. It is changed by the annotation
	// pod.network.openshift.io/multitenant.change-network.
	// +kubebuilder:validation:Minimum=0
	// +kubebuilder:validation:Maximum=16777215
	NetID uint32 `json:"netid"`

	// egressIPs are the addresses, in order of preference, that traffic of the namespace leaves the cluster from. While
	// none of them is hosted by a node, nothing leaves. Without any, traffic leaves from its node's address.
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=1024
	// +kubebuilder:validation:items:MaxLength=15
	// +kubebuilder:validation:items:XValidation:rule="isIP(self) && ip(self).family() == 4",message="must be an IPv4 address, such as 192.0.2.10, without leading zeros"
	EgressIPs []string `json:"egressIPs,omitempty"`

	// status says what the controller found; it is written by Weft only.
	// +optional
	Status NetNamespaceStatus `json:"status,omitzero"`
}

// NetNamespaceStatus says what the controller found.
type NetNamespaceStatus struct {
	// conditions hold Valid, False when what the object asks for cannot be done; the message says why. EgressIPsInUse is there
	// while egressIPs has any, and says which of them are in use at which nodes, or why they are not.
	// +optional
	// +listType=map
	// +listMapKey=type
	Conditions []metav1.Condition `json:"conditions,omitempty"`
}

// NetNamespaceList is a list of NetNamespaces.
//
// +kubebuilder:object:root=true
type NetNamespaceList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`
	// Items are the objects.
	Items []NetNamespace `json:"items"`
}
