package v1

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// States of a Network and a Tenant, as stackube has them.
const (
	StateInitializing = "Initializing"
	StateActive       = "Active"
	StatePending      = "Pending"
	StateFailed       = "Failed"
	StateTerminating  = "Terminating"
)

// ConditionReady says whether OpenStack has what the object asks for.
const ConditionReady = "Ready"

// ConditionUser says that a Tenant's user in OpenStack has got the password of the observed generation. It stays while the Tenant is not
// ready: setting a password again would end the user's sessions.
const ConditionUser = "User"

// Network is a network in OpenStack, of the project of its namespace's tenant.
//
// +kubebuilder:object:root=true
// +kubebuilder:subresource:status
// +kubebuilder:resource:scope=Namespaced
// +kubebuilder:metadata:annotations="api-approved.kubernetes.io=unapproved, stackube's group, served for its users by Weft"
// +kubebuilder:printcolumn:name="CIDR",type=string,JSONPath=`.spec.cidr`
// +kubebuilder:printcolumn:name="Network",type=string,JSONPath=`.status.networkID`
// +kubebuilder:printcolumn:name="State",type=string,JSONPath=`.status.state`
// +kubebuilder:printcolumn:name="Age",type=date,JSONPath=`.metadata.creationTimestamp`
// +kubebuilder:printcolumn:name="Message",type=string,JSONPath=`.status.message`,priority=1
type Network struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`

	Spec NetworkSpec `json:"spec"`
	// +optional
	Status NetworkStatus `json:"status,omitempty"`
}

// NetworkSpec is a network as it is wanted.
//
// +kubebuilder:validation:XValidation:rule=`has(self.networkID) && self.networkID != "" || has(self.cidr) && self.cidr != ""`,message="give cidr, or networkID of a network that is there"
// +kubebuilder:validation:XValidation:rule=`!has(self.cidr) || self.cidr == "" || !has(self.gateway) || self.gateway == "" || isIP(self.gateway) && isCIDR(self.cidr) && cidr(self.cidr).containsIP(self.gateway)`,message="gateway is not an address in cidr"
// +kubebuilder:validation:XValidation:rule=`(has(self.networkID) ? self.networkID : "") == (has(oldSelf.networkID) ? oldSelf.networkID : "")`,message="networkID cannot change: delete the network and make it anew"
// +kubebuilder:validation:XValidation:rule=`(has(self.cidr) ? self.cidr : "") == (has(oldSelf.cidr) ? oldSelf.cidr : "")`,message="cidr cannot change: delete the network and make it anew"
// +kubebuilder:validation:XValidation:rule=`(has(self.gateway) ? self.gateway : "") == (has(oldSelf.gateway) ? oldSelf.gateway : "")`,message="gateway cannot change: delete the network and make it anew"
// +kubebuilder:validation:XValidation:rule=`!(has(self.networkID) && self.networkID != "") || !(has(self.ipv6CIDR) && self.ipv6CIDR != "")`,message="ipv6CIDR is for networks without networkID: with it, pods get addresses of the IPv6 subnets that the network has"
// +kubebuilder:validation:XValidation:rule=`!has(self.ipv6Gateway) || self.ipv6Gateway == "" || has(self.ipv6CIDR) && isIP(self.ipv6Gateway) && isCIDR(self.ipv6CIDR) && cidr(self.ipv6CIDR).containsIP(self.ipv6Gateway)`,message="ipv6Gateway is not an address in ipv6CIDR"
// +kubebuilder:validation:XValidation:rule=`!has(oldSelf.ipv6CIDR) || oldSelf.ipv6CIDR == "" || has(self.ipv6CIDR) && self.ipv6CIDR == oldSelf.ipv6CIDR`,message="ipv6CIDR cannot change: delete the network and make it anew"
// +kubebuilder:validation:XValidation:rule=`!has(oldSelf.ipv6CIDR) || oldSelf.ipv6CIDR == "" || (has(self.ipv6Gateway) ? self.ipv6Gateway : "") == (has(oldSelf.ipv6Gateway) ? oldSelf.ipv6Gateway : "")`,message="ipv6Gateway cannot change: delete the network and make it anew"
type NetworkSpec struct {
	// CIDR is the range of the network's subnet, IPv4, such as 10.244.0.0/16.
	// +optional
	// +kubebuilder:validation:MaxLength=18
	// +kubebuilder:validation:XValidation:rule=`self == "" || isCIDR(self) && cidr(self).ip().family() == 4 && cidr(self) == cidr(self).masked() && cidr(self).prefixLength() <= 28`,message="not an IPv4 range of at least 16 addresses whose host bits are zero"
	CIDR string `json:"cidr,omitempty"`
	// Gateway is the router's address in the subnet. Default: the first.
	// +optional
	// +kubebuilder:validation:MaxLength=15
	Gateway string `json:"gateway,omitempty"`
	// IPv6CIDR is the range of a second subnet, IPv6, such as fd00:10:244::/64. Pods that start later get an address in it as well.
	// +optional
	// +kubebuilder:validation:MaxLength=43
	// +kubebuilder:validation:XValidation:rule=`self == "" || isCIDR(self) && cidr(self).ip().family() == 6 && cidr(self) == cidr(self).masked() && cidr(self).prefixLength() <= 120`,message="not an IPv6 range of at least 256 addresses whose host bits are zero"
	IPv6CIDR string `json:"ipv6CIDR,omitempty"`
	// IPv6Gateway is the router's address in the IPv6 subnet. Default: the one after the first, such as fd00:10:244::1.
	// +optional
	// +kubebuilder:validation:MaxLength=39
	IPv6Gateway string `json:"ipv6Gateway,omitempty"`
	// NetworkID is the id of a network that is there already, of the tenant's project or shared; it is never changed or deleted.
	// +optional
	// +kubebuilder:validation:MaxLength=36
	NetworkID string `json:"networkID,omitempty"`
	// DNSServers are what pods are given as name servers.
	// +optional
	// +kubebuilder:validation:MaxItems=5
	// +kubebuilder:validation:items:MaxLength=39
	// +kubebuilder:validation:XValidation:rule="self.all(a, isIP(a))",message="not a list of addresses"
	DNSServers []string `json:"dnsServers,omitempty"`
}

// NetworkStatus is what has become of a network.
type NetworkStatus struct {
	// State is Initializing, Active, Pending, Failed or Terminating.
	// +optional
	State string `json:"state,omitempty"`
	// Message says why the state is not Active.
	// +optional
	Message string `json:"message,omitempty"`
	// NetworkID is the network's id in OpenStack.
	// +optional
	NetworkID string `json:"networkID,omitempty"`
	// MTU is the network's MTU in bytes.
	// +optional
	MTU int32 `json:"mtu,omitempty"`
	// +optional
	// +listType=map
	// +listMapKey=type
	Conditions []metav1.Condition `json:"conditions,omitempty"`
}

// NetworkList is a list of networks.
//
// +kubebuilder:object:root=true
type NetworkList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`

	Items []Network `json:"items"`
}
