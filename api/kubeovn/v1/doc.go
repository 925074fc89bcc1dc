// Package v1 is kubeovn.io/v1: the objects by which users of Kube-OVN describe custom VPCs and NAT gateways, with the same
// names and the same JSON, so that their manifests work here unchanged.
//
// It holds types, constants and the rules that the API server enforces (written as markers and generated into the
// CustomResourceDefinitions); it holds no logic. Package internal/vpc/objects turns objects into typed values, and checks
// again what the API server checks.
//
// Every field of Kube-OVN's objects is here, because the API server prunes fields that a definition does not have. A field
// that Weft does not serve is named in the object's condition Supported. The definitions check an object by itself;
// mistakes that concern other objects (ranges that overlap, addresses that are taken) are reported in conditions.
//
// +kubebuilder:object:generate=true
// +groupName=kubeovn.io
package v1

//go:generate go tool -modfile=../../../tools/go.mod controller-gen object crd paths=. output:crd:artifacts:config=../../../deploy/crds
