package probe

import (
	"encoding/json"
	"fmt"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/dynamic"

	networkv1 "weft.dev/weft/api/openshift/v1"
	"weft.dev/weft/lab"
)

// Objects leads to the resources of one kind, as the administrator.
func Objects(c *lab.Cluster, group, resource string) (dynamic.ResourceInterface, error) {
	config, err := c.RESTConfig()
	if err != nil {
		return nil, err
	}
	client, err := dynamic.NewForConfig(config)
	if err != nil {
		return nil, fmt.Errorf("%s.%s: %w", resource, group, err)
	}
	return client.Resource(schema.GroupVersionResource{Group: group, Version: "v1", Resource: resource}), nil
}

// HostSubnet returns an object for a host, which need not be a node.
func HostSubnet(name, host, hostIP, subnet string, annotations map[string]string) *unstructured.Unstructured {
	raw, _ := json.Marshal(map[string]any{ //nolint:errchkjson // strings only
		"apiVersion": networkv1.GroupVersion().String(), "kind": "HostSubnet", "metadata": map[string]any{"name": name, "annotations": annotations},
		"host": host, "hostIP": hostIP, "subnet": subnet,
	})
	object := &unstructured.Unstructured{}
	_ = object.UnmarshalJSON(raw) // never fails
	return object
}
