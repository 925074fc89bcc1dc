package v1

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// GroupName is the API group of every object in this package.
const GroupName = "stackube.kubernetes.io"

// GroupVersion returns stackube.kubernetes.io/v1.
func GroupVersion() schema.GroupVersion { return schema.GroupVersion{Group: GroupName, Version: "v1"} }

// AddToScheme makes a scheme know this package's kinds. It never fails; the error is the shape that scheme builders
// expect.
func AddToScheme(scheme *runtime.Scheme) error {
	scheme.AddKnownTypes(GroupVersion(),
		&Network{}, &NetworkList{},
		&Tenant{}, &TenantList{},
	)
	metav1.AddToGroupVersion(scheme, GroupVersion())
	return nil
}
