// Package v1 is network.openshift.io/v1: the objects by which users of OpenShift SDN describe their network, with the
// same names and the same JSON, so that their manifests work here unchanged.
//
// It holds types, constants and the rules that the API server enforces (written as markers and generated into the
// CustomResourceDefinitions); it holds no logic. Turning objects into typed values is package clusternetwork's work.
//
// Where the rules differ from OpenShift's, they are corrections: octets with leading zeros are refused, CIDRs are in
// canonical form, a rule's type is exactly Allow or Deny, and ranges neither overlap each other nor the Services'.
// The only fields added are the status ones.
//
// +kubebuilder:object:generate=true
// +groupName=network.openshift.io
package v1

//go:generate go tool -modfile=../../../tools/go.mod controller-gen object crd paths=. output:crd:artifacts:config=../../../deploy/crds
