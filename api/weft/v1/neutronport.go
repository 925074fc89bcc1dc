package v1

import metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

const (
	// NeutronPortFinalizer is on every NeutronPort until its port is deleted in OpenStack.
	NeutronPortFinalizer = "network.weft.dev/neutron-port"
	// NeutronPortNodeField is the field by which an agent selects the NeutronPorts of its node.
	NeutronPortNodeField = "spec.node"
)

// NeutronPort is a port in OpenStack that a pod of a node can be attached to. Its name is the port's UUID.
//
// The controller creates the port in OpenStack and writes spec; the agent of the node writes status. An agent attaches a pod to a
// port that is plugged, active, free and not being deleted. To delete a port, the controller deletes the object; the agent
// unplugs the port once no pod is attached, and reports plugged: false; the controller then deletes the port in OpenStack and removes the
// finalizer. If the node is gone, the controller does not wait.
//
// +kubebuilder:object:root=true
// +kubebuilder:resource:path=neutronports,scope=Cluster,categories=weft
// +kubebuilder:subresource:status
// +kubebuilder:selectablefield:JSONPath=`.spec.node`
// +kubebuilder:validation:XValidation:rule="self.metadata.name.matches('^[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}$')",message="the name must be the port's UUID, such as 5b1fdbd5-6f0b-4f0a-9a5c-0d9c5f3f0f11"
// +kubebuilder:printcolumn:name="Namespace",type=string,JSONPath=`.spec.network.namespace`
// +kubebuilder:printcolumn:name="Network",type=string,JSONPath=`.spec.network.name`
// +kubebuilder:printcolumn:name="Node",type=string,JSONPath=`.spec.node`
// +kubebuilder:printcolumn:name="Address",type=string,JSONPath=`.spec.addresses[*].address`
// +kubebuilder:printcolumn:name="Active",type=boolean,JSONPath=`.spec.active`,description="Whether Neutron reports the port as ACTIVE"
// +kubebuilder:printcolumn:name="Plugged",type=boolean,JSONPath=`.status.plugged`,description="Whether the port is on the node's br-int"
// +kubebuilder:printcolumn:name="Pod",type=string,JSONPath=`.status.pod.name`
// +kubebuilder:printcolumn:name="Age",type=date,JSONPath=`.metadata.creationTimestamp`
// +kubebuilder:printcolumn:name="Message",type=string,JSONPath=`.status.message`,priority=1
type NeutronPort struct {
	metav1.TypeMeta `json:",inline"`
	// Standard object's metadata. The name is the port's UUID.
	// +optional
	metav1.ObjectMeta `json:"metadata,omitempty"`

	// spec is the port in OpenStack, written by the controller.
	Spec NeutronPortSpec `json:"spec"`
	// status is the port on its node, written by the agent of the node.
	// +optional
	Status NeutronPortStatus `json:"status,omitzero"`
}

// NeutronPortSpec is a port as OpenStack has it.
//
// +kubebuilder:validation:XValidation:rule="self.addresses.map(a, a.address) == oldSelf.addresses.map(a, a.address)",message="the addresses cannot change: delete the port and create another"
type NeutronPortSpec struct {
	// network is the Network whose pods use the port.
	// +kubebuilder:validation:XValidation:rule="self == oldSelf",message="network cannot change: delete the port and create another"
	Network NeutronPortNetwork `json:"network"`

	// node is the Node whose pods use the port. The port's binding:host_id is the hostname in the node's NodeNetwork.
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=253
	// +kubebuilder:validation:XValidation:rule="self == oldSelf",message="node cannot change: delete the port and create another"
	Node string `json:"node"`

	// mac is the port's MAC address.
	// +kubebuilder:validation:Pattern=`^[0-9a-f][02468ace](:[0-9a-f]{2}){5}$`
	// +kubebuilder:validation:XValidation:rule="self == oldSelf",message="mac cannot change: delete the port and create another"
	MAC string `json:"mac"`

	// addresses are the port's fixed addresses, at most one of each family.
	// +listType=atomic
	// +kubebuilder:validation:MinItems=1
	// +kubebuilder:validation:MaxItems=2
	// +kubebuilder:validation:XValidation:rule="self.size() == 1 || cidr(self[0].address).ip().family() != cidr(self[1].address).ip().family()",message="must have at most one address of each family"
	Addresses []NeutronPortAddress `json:"addresses"`

	// mtu is the network's MTU in bytes.
	// +kubebuilder:validation:Minimum=68
	// +kubebuilder:validation:Maximum=65535
	MTU int32 `json:"mtu"`

	// routes are the subnets' host routes.
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=64
	Routes []NeutronPortRoute `json:"routes,omitempty"`

	// dns are the name servers that the subnets give.
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=10
	// +kubebuilder:validation:items:MaxLength=45
	// +kubebuilder:validation:XValidation:rule="self.all(a, isIP(a))",message="must be IP addresses"
	DNS []string `json:"dns,omitempty"`

	// active says that Neutron reports the port as ACTIVE.
	// +optional
	Active bool `json:"active,omitempty"`
}

// NeutronPortNetwork names a Network of stackube.kubernetes.io.
type NeutronPortNetwork struct {
	// namespace and name are the Network's.
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=63
	Namespace string `json:"namespace"`
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=253
	Name string `json:"name"`
	// uid is the Network's: a Network that was deleted and created again does not use the ports of the former.
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=63
	UID string `json:"uid"`
	// id is the network's UUID in OpenStack.
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=36
	ID string `json:"id"`
}

// NeutronPortAddress is an address of a port.
type NeutronPortAddress struct {
	// address is the address with the length of its subnet, such as 10.244.0.5/16.
	// +kubebuilder:validation:MaxLength=49
	// +kubebuilder:validation:XValidation:rule="isCIDR(self)",message="must be an address with the length of its subnet, such as 10.244.0.5/16"
	Address string `json:"address"`
	// gateway is the subnet's gateway. Empty: the subnet has none.
	// +optional
	// +kubebuilder:validation:MaxLength=45
	// +kubebuilder:validation:XValidation:rule="self == '' || isIP(self)",message="must be an IP address"
	Gateway string `json:"gateway,omitempty"`
	// gatewayMAC is the MAC address of the router's port in the subnet. Empty: no router is attached, and Services have only endpoints
	// in the port's subnet.
	// +optional
	// +kubebuilder:validation:Pattern=`^([0-9a-f][02468ace](:[0-9a-f]{2}){5})?$`
	// +kubebuilder:validation:MaxLength=17
	GatewayMAC string `json:"gatewayMAC,omitempty"`
}

// NeutronPortRoute is a route of a subnet.
type NeutronPortRoute struct {
	// destination is a range, such as 192.0.2.0/24.
	// +kubebuilder:validation:MaxLength=49
	// +kubebuilder:validation:XValidation:rule="isCIDR(self)",message="must be a range of addresses, such as 192.0.2.0/24"
	Destination string `json:"destination"`
	// nextHop is an address in the subnet.
	// +kubebuilder:validation:MaxLength=45
	// +kubebuilder:validation:XValidation:rule="isIP(self)",message="must be an IP address"
	NextHop string `json:"nextHop"`
}

// NeutronPortStatus is a port on its node.
type NeutronPortStatus struct {
	// plugged says that the port is on the node's br-int, or is about to be. The controller deletes no port in OpenStack that is
	// plugged, unless its node is gone.
	// +optional
	Plugged bool `json:"plugged,omitempty"`

	// pod is the pod that is attached to the port. None: the port is free, or rests.
	// +optional
	Pod *NeutronPortPod `json:"pod,omitempty"`

	// releasedAt is when the last pod was detached. No pod is attached for 60 seconds from then.
	// +optional
	ReleasedAt *metav1.Time `json:"releasedAt,omitempty"`

	// message says why the port cannot be plugged or used. Empty: it can.
	// +optional
	// +kubebuilder:validation:MaxLength=1024
	Message string `json:"message,omitempty"`
}

// NeutronPortPod names a pod.
type NeutronPortPod struct {
	// namespace, name and uid are the pod's.
	// +kubebuilder:validation:MaxLength=63
	Namespace string `json:"namespace"`
	// +kubebuilder:validation:MaxLength=253
	Name string `json:"name"`
	// +optional
	// +kubebuilder:validation:MaxLength=63
	UID string `json:"uid,omitempty"`
}

// NeutronPortList is a list of NeutronPorts.
//
// +kubebuilder:object:root=true
type NeutronPortList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`
	// Items are the objects.
	Items []NeutronPort `json:"items"`
}
