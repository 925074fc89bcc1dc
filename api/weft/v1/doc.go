// Package v1 is network.weft.dev/v1: Weft's own objects, which no system that Weft replaces has.
//
// It holds types and the rules that the API server enforces (written as markers and generated into the
// CustomResourceDefinitions). It holds no logic.
//
// +kubebuilder:object:generate=true
// +groupName=network.weft.dev
package v1

//go:generate go tool -modfile=../../../tools/go.mod controller-gen object crd paths=. output:crd:artifacts:config=../../../deploy/crds
