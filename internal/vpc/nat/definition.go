package nat

import (
	"strings"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"weft.dev/weft/internal/vpc/objects"
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

// TrimDefinition reduces a cached NetworkAttachmentDefinition to its names and its configuration, of which it keeps at most one byte more
// than ParseDefinition accepts: others' definitions are for other plugins, and may be long.
func TrimDefinition(object any) (any, error) {
	whole, is := object.(*unstructured.Unstructured)
	if !is {
		return object, nil
	}
	trimmed := Definition()
	trimmed.SetNamespace(whole.GetNamespace())
	trimmed.SetName(whole.GetName())
	trimmed.SetUID(whole.GetUID())
	trimmed.SetResourceVersion(whole.GetResourceVersion())
	config, there, err := unstructured.NestedString(whole.Object, "spec", "config")
	if err != nil || !there {
		return trimmed, nil //nolint:nilerr // what is no text is no configuration
	}
	config = strings.Clone(config[:min(len(config), objects.MaxDefinition+1)])
	if err := unstructured.SetNestedField(trimmed.Object, config, "spec", "config"); err != nil {
		return nil, err
	}
	return trimmed, nil
}
