package v1

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// Tenant is a project with a user in OpenStack, and a Namespace and a Network of the same name. It is in namespace default, as
// in stackube. It holds a password: only administrators and Weft's controller should read Tenants.
//
// +kubebuilder:object:root=true
// +kubebuilder:subresource:status
// +kubebuilder:resource:scope=Namespaced
// +kubebuilder:metadata:annotations="api-approved.kubernetes.io=unapproved, stackube's group, served for its users by Weft"
// +kubebuilder:validation:XValidation:rule="oldSelf.hasValue() || !self.metadata.name.contains('.') && self.metadata.name.size() <= 63",optionalOldSelf=true,message="a Namespace of the tenant's name is made: no dots, at most 63 characters"
// +kubebuilder:printcolumn:name="User",type=string,JSONPath=`.spec.username`
// +kubebuilder:printcolumn:name="Project",type=string,JSONPath=`.status.projectID`
// +kubebuilder:printcolumn:name="State",type=string,JSONPath=`.status.state`
// +kubebuilder:printcolumn:name="Age",type=date,JSONPath=`.metadata.creationTimestamp`
// +kubebuilder:printcolumn:name="Message",type=string,JSONPath=`.status.message`,priority=1
type Tenant struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`

	Spec TenantSpec `json:"spec"`
	// +optional
	Status TenantStatus `json:"status,omitempty"`
}

// TenantSpec is a tenant as it is wanted.
//
// +kubebuilder:validation:XValidation:rule=`(has(self.tenantID) ? self.tenantID : "") == (has(oldSelf.tenantID) ? oldSelf.tenantID : "")`,message="tenantID cannot change: delete the tenant and make it anew"
// +kubebuilder:validation:XValidation:rule="self.username == oldSelf.username",message="username cannot change: delete the tenant and make it anew"
type TenantSpec struct {
	// UserName is the tenant's user in OpenStack.
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=255
	UserName string `json:"username"`
	// Password is the user's, in clear text.
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=255
	Password string `json:"password"`
	// TenantID is the id of a project that is there already; it is never deleted. Default: a project of the tenant's name.
	// +optional
	// +kubebuilder:validation:MaxLength=64
	TenantID string `json:"tenantID,omitempty"`
}

// TenantStatus is what has become of a tenant.
type TenantStatus struct {
	// State is Initializing, Active, Pending, Failed or Terminating.
	// +optional
	State string `json:"state,omitempty"`
	// Message says why the state is not Active.
	// +optional
	Message string `json:"message,omitempty"`
	// ProjectID is the project's id in OpenStack.
	// +optional
	ProjectID string `json:"projectID,omitempty"`
	// +optional
	// +listType=map
	// +listMapKey=type
	Conditions []metav1.Condition `json:"conditions,omitempty"`
}

// TenantList is a list of tenants.
//
// +kubebuilder:object:root=true
type TenantList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`

	Items []Tenant `json:"items"`
}
