package v1

import metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

// EgressNetworkPolicyRuleType says what a rule does with the traffic that it matches.
//
// +kubebuilder:validation:Enum=Allow;Deny
type EgressNetworkPolicyRuleType string

// The types of a rule.
const (
	// EgressNetworkPolicyRuleAllow lets traffic out.
	EgressNetworkPolicyRuleAllow EgressNetworkPolicyRuleType = "Allow"
	// EgressNetworkPolicyRuleDeny drops traffic.
	EgressNetworkPolicyRuleDeny EgressNetworkPolicyRuleType = "Deny"
)

// EgressNetworkPolicy is a namespace's egress firewall: it says what its pods may reach outside the cluster. The
// networks of pods and Services are not concerned. With more than one in a namespace, or with a namespace that shares
// its VNID, nothing leaves at all.
//
// +kubebuilder:object:root=true
// +kubebuilder:resource:path=egressnetworkpolicies,scope=Namespaced,categories=weft
// +kubebuilder:subresource:status
// +kubebuilder:printcolumn:name="Valid",type=string,JSONPath=`.status.conditions[?(@.type=="Valid")].status`
// +kubebuilder:printcolumn:name="Reason",type=string,JSONPath=`.status.conditions[?(@.type=="Valid")].reason`
// +kubebuilder:printcolumn:name="Realised",type=string,JSONPath=`.status.conditions[?(@.type=="Realised")].status`
type EgressNetworkPolicy struct {
	metav1.TypeMeta `json:",inline"`
	// Standard object's metadata.
	// +optional
	metav1.ObjectMeta `json:"metadata,omitempty"`

	// spec holds the rules.
	Spec EgressNetworkPolicySpec `json:"spec"`

	// status says what became of the policy; it is written by Weft only.
	// +optional
	Status EgressNetworkPolicyStatus `json:"status,omitzero"`
}

// EgressNetworkPolicySpec holds the rules of an egress firewall.
type EgressNetworkPolicySpec struct {
	// egress are the rules. The first one that matches decides; what none matches is allowed.
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=8000
	Egress []EgressNetworkPolicyRule `json:"egress"`
}

// EgressNetworkPolicyRule is one rule.
type EgressNetworkPolicyRule struct {
	// type is Allow or Deny.
	Type EgressNetworkPolicyRuleType `json:"type"`
	// to is what the rule matches.
	To EgressNetworkPolicyPeer `json:"to"`
}

// EgressNetworkPolicyPeer is the destination that a rule matches: exactly one of its fields is set.
//
// +kubebuilder:validation:XValidation:rule="(has(self.cidrSelector) && size(self.cidrSelector) > 0) != (has(self.dnsName) && size(self.dnsName) > 0)",message="exactly one of cidrSelector and dnsName must be set"
type EgressNetworkPolicyPeer struct {
	// cidrSelector is the range of destination addresses. Bits right of the prefix are ignored: 198.51.100.7/24 is 198.51.100.0/24. 0.0.0.0/32 is read as 0.0.0.0/0, as OpenShift does.
	// +optional
	// +kubebuilder:validation:MaxLength=18
	// +kubebuilder:validation:XValidation:rule="self == '' || (isCIDR(self) && cidr(self).ip().family() == 4)",message="must be an IPv4 range, such as 192.0.2.0/24, without leading zeros"
	CIDRSelector string `json:"cidrSelector,omitempty"`

	// dnsName is a name that stands for the addresses it resolves to. Wildcards are not possible, and no search list is applied.
	// +optional
	// +kubebuilder:validation:MaxLength=254
	// +kubebuilder:validation:Pattern=`^(([A-Za-z0-9-]{1,63}\.)*[A-Za-z0-9-]{1,63}\.?)?$`
	// +kubebuilder:validation:XValidation:rule="!isIP(self)",message="an address is no name: write it as cidrSelector, with /32"
	DNSName string `json:"dnsName,omitempty"`
}

// EgressNetworkPolicyStatus says what became of the policy.
type EgressNetworkPolicyStatus struct {
	// conditions hold Valid: False when the policy cannot be used, or has no effect; the message says why. Realised says on how
	// many nodes what it comes to is in effect, and why not on the others.
	// +optional
	// +listType=map
	// +listMapKey=type
	Conditions []metav1.Condition `json:"conditions,omitempty"`

	// asked is the spec that the condition Realised speaks of.
	// +optional
	Asked EgressNetworkPolicyAsked `json:"asked,omitzero"`
}

// EgressNetworkPolicyAsked names a state of a policy's spec.
type EgressNetworkPolicyAsked struct {
	// generation is the metadata.generation of the spec.
	// +optional
	Generation int64 `json:"generation,omitempty"`
	// version is the resourceVersion by which a node says that it has it (HostSubnet's status.realised). That of the object goes
	// on with each change of its status.
	// +optional
	// +kubebuilder:validation:MaxLength=20
	Version string `json:"version,omitempty"`
}

// EgressNetworkPolicyList is a list of EgressNetworkPolicies.
//
// +kubebuilder:object:root=true
type EgressNetworkPolicyList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`
	// Items are the objects.
	Items []EgressNetworkPolicy `json:"items"`
}
