package nat

import (
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// DefinitionGroup is the API group of NetworkAttachmentDefinitions.
const DefinitionGroup = "k8s.cni.cncf.io"

const definitionKind = "NetworkAttachmentDefinition"

func definitionVersion() schema.GroupVersion {
	return schema.GroupVersion{Group: DefinitionGroup, Version: "v1"}
}

// Definition returns an empty NetworkAttachmentDefinition.
func Definition() *unstructured.Unstructured {
	object := &unstructured.Unstructured{}
	object.SetGroupVersionKind(definitionVersion().WithKind(definitionKind))
	return object
}

// DefinitionList returns an empty list of NetworkAttachmentDefinitions.
func DefinitionList() *unstructured.UnstructuredList {
	list := &unstructured.UnstructuredList{}
	list.SetGroupVersionKind(definitionVersion().WithKind(definitionKind + "List"))
	return list
}

// Definitions returns the configurations of NetworkAttachmentDefinitions by "<name>.<namespace>", as Objects has them.
func Definitions(list *unstructured.UnstructuredList) map[string]string {
	configs := map[string]string{}
	for i := range list.Items {
		config, _, err := unstructured.NestedString(list.Items[i].Object, "spec", "config")
		if err == nil { // what is no text is no configuration
			configs[list.Items[i].GetName()+"."+list.Items[i].GetNamespace()] = config
		}
	}
	return configs
}
