package v1

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// GroupName is the API group of every object in this package.
const GroupName = "network.weft.dev"

// GroupVersion returns network.weft.dev/v1.
func GroupVersion() schema.GroupVersion { return schema.GroupVersion{Group: GroupName, Version: "v1"} }

// AddToScheme registers the kinds of this package. It never fails; scheme builders expect the error.
func AddToScheme(scheme *runtime.Scheme) error {
	scheme.AddKnownTypes(GroupVersion(),
		&NeutronPort{}, &NeutronPortList{},
		&NodeNetwork{}, &NodeNetworkList{},
	)
	metav1.AddToGroupVersion(scheme, GroupVersion())
	return nil
}
