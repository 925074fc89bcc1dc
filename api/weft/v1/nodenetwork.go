package v1

import metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

// Names of the sections of a NodeNetwork: one for each kind of network.
const (
	NetworkOverlay = "overlay"
	NetworkFlannel = "flannel"
	NetworkVPC     = "vpc"
	NetworkNeutron = "neutron"
)

// Types of a section's conditions. A network may have further ones.
const (
	// NetworkReady is True when the node serves pods of the network.
	NetworkReady = "Ready"
	// NetworkInStep is True when the complete desired state of the network is programmed on the node.
	NetworkInStep = "InStep"
	// NetworkHostPorts is False when a pod lacks a host port because another pod has it.
	NetworkHostPorts = "HostPorts"
)

// NodeNetwork reports the networks of one node. Its name is the node's, and the Node owns it: it is deleted with the Node.
// The agent of the node creates it and writes its status; the controller and the CLI read it. Agents never read the objects of
// other nodes.
//
// +kubebuilder:object:root=true
// +kubebuilder:resource:path=nodenetworks,scope=Cluster,categories=weft
// +kubebuilder:subresource:status
// +kubebuilder:printcolumn:name="Networks",type=string,JSONPath=`.status.networks[*].name`,description="The networks of the node"
// +kubebuilder:printcolumn:name="Ready",type=string,JSONPath=`.status.networks[*].conditions[?(@.type=="Ready")].status`,description="Whether the node serves pods of each network"
// +kubebuilder:printcolumn:name="Age",type=date,JSONPath=`.metadata.creationTimestamp`
type NodeNetwork struct {
	metav1.TypeMeta `json:",inline"`
	// Standard object's metadata. The name is the node's.
	// +optional
	metav1.ObjectMeta `json:"metadata,omitempty"`

	// status is written by the agent of the node.
	// +optional
	Status NodeNetworkStatus `json:"status,omitzero"`
}

// NodeNetworkStatus is what the agent of a node reports.
type NodeNetworkStatus struct {
	// networks has one section for each network of the node.
	// +optional
	// +listType=map
	// +listMapKey=name
	// +kubebuilder:validation:MaxItems=8
	Networks []NodeNetworkSection `json:"networks,omitempty"`
}

// NodeNetworkSection reports one network of a node.
//
// +kubebuilder:validation:XValidation:rule="!has(self.vpc) || self.name == 'vpc'",message="vpc belongs to the section named vpc"
// +kubebuilder:validation:XValidation:rule="!has(self.neutron) || self.name == 'neutron'",message="neutron belongs to the section named neutron"
type NodeNetworkSection struct {
	// name is the network's: overlay, flannel, vpc or neutron.
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=32
	// +kubebuilder:validation:Pattern=`^[a-z][a-z0-9-]*$`
	Name string `json:"name"`

	// conditions are Ready (the node serves pods of the network), InStep (the complete desired state is programmed), and those
	// of the network itself.
	// +optional
	// +listType=map
	// +listMapKey=type
	// +kubebuilder:validation:MaxItems=16
	Conditions []metav1.Condition `json:"conditions,omitempty"`

	// facts are further properties of the network on this node, for people to read. No program decides by them.
	// +optional
	// +kubebuilder:validation:MaxProperties=32
	// +kubebuilder:validation:XValidation:rule="self.all(key, size(key) <= 63 && size(self[key]) <= 1024)",message="a fact's key has at most 63 characters and its value at most 1024"
	Facts map[string]string `json:"facts,omitempty"`

	// vpc is the node as a chassis of OVN.
	// +optional
	VPC *VPCNode `json:"vpc,omitempty"`

	// neutron is the node as a host of Neutron.
	// +optional
	Neutron *NeutronNode `json:"neutron,omitempty"`
}

// VPCNode is a node as a chassis of OVN.
type VPCNode struct {
	// chassis is the name by which the node is a chassis: its system-id in Open vSwitch.
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=253
	// +kubebuilder:validation:Pattern=`^[A-Za-z0-9]([A-Za-z0-9._-]*[A-Za-z0-9])?$`
	Chassis string `json:"chassis"`

	// hostname is the chassis' hostname.
	// +optional
	// +kubebuilder:validation:MaxLength=253
	Hostname string `json:"hostname,omitempty"`

	// encapIP is the address of the chassis' tunnels.
	// +optional
	// +kubebuilder:validation:MaxLength=45
	// +kubebuilder:validation:XValidation:rule="isIP(self)",message="must be an IP address, such as 192.0.2.10"
	EncapIP string `json:"encapIP,omitempty"`

	// certificate is the one certificate, PEM, that the node shows to OVN's southbound database. Its common name is the chassis.
	// +optional
	// +kubebuilder:validation:MaxLength=8192
	// +kubebuilder:validation:Pattern=`^-----BEGIN CERTIFICATE-----\n[A-Za-z0-9+/=\n]+-----END CERTIFICATE-----\n?$`
	Certificate string `json:"certificate,omitempty"`
}

// NeutronNode is a node as a host of Neutron.
type NeutronNode struct {
	// hostname is what ports of this node have as binding:host_id: external_ids:hostname of the node's Open vSwitch.
	// +optional
	// +kubebuilder:validation:MaxLength=253
	Hostname string `json:"hostname,omitempty"`

	// datapath is the datapath type of br-int: system or netdev.
	// +optional
	// +kubebuilder:validation:MaxLength=32
	Datapath string `json:"datapath,omitempty"`

	// ranges are what the node routes itself, without default routes: Networks must not overlap them.
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=256
	// +kubebuilder:validation:items:MaxLength=18
	Ranges []string `json:"ranges,omitempty"`

	// problems say why pods of Neutron networks cannot be served on the node, such as a missing br-int or one of another
	// datapath type.
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=16
	// +kubebuilder:validation:items:MaxLength=1024
	Problems []string `json:"problems,omitempty"`
}

// NodeNetworkList is a list of NodeNetworks.
//
// +kubebuilder:object:root=true
type NodeNetworkList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`
	// Items are the objects.
	Items []NodeNetwork `json:"items"`
}
