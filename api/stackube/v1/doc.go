// Package v1 is stackube.kubernetes.io/v1: the objects by which users of stackube describe tenants and networks in OpenStack,
// with the same names and the same JSON, so that their manifests work here unchanged.
//
// It holds types, constants and the rules that the API server enforces (written as markers and generated into the
// CustomResourceDefinitions); it holds no logic. Conditions and the fields below spec that are optional beside stackube's own
// are Weft's.
//
// +kubebuilder:object:generate=true
// +groupName=stackube.kubernetes.io
package v1

//go:generate go tool -modfile=../../../tools/go.mod controller-gen object crd paths=. output:crd:artifacts:config=../../../deploy/stackube
