// Package deploy holds the manifests that users install Weft with. They are rendered from the chart in deploy/chart (make
// generate).
package deploy

import (
	"bytes"
	_ "embed"
	"fmt"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/yaml"
)

//go:embed weft.yaml
var manifest []byte

//go:embed weft-flannel.yaml
var flannelManifest []byte

//go:embed weft-vpc.yaml
var vpcManifest []byte

//go:embed weft-neutron.yaml
var neutronManifest []byte

// Image is the name that the manifest has for Weft's image.
const Image = "weft.local/weft:dev"

// Objects returns the manifest's objects in the order in which they are applied.
func Objects() ([]*unstructured.Unstructured, error) { return Parse(manifest) }

// FlannelObjects returns the objects of the manifest with the flannel network, in the order in which they are applied.
func FlannelObjects() ([]*unstructured.Unstructured, error) { return Parse(flannelManifest) }

// VPCObjects returns the objects of the manifest with VPCs, in the order in which they are applied.
func VPCObjects() ([]*unstructured.Unstructured, error) { return Parse(vpcManifest) }

// NeutronObjects returns the objects of the manifest with OpenStack's networks, in the order in which they are applied.
func NeutronObjects() ([]*unstructured.Unstructured, error) { return Parse(neutronManifest) }

// Parse returns the objects of a manifest in their order.
func Parse(text []byte) ([]*unstructured.Unstructured, error) {
	var all []*unstructured.Unstructured
	for document := range bytes.SplitSeq(text, []byte("\n---\n")) {
		object := &unstructured.Unstructured{}
		if err := yaml.Unmarshal(document, &object.Object); err != nil {
			return nil, fmt.Errorf("object %d of a manifest: %w", len(all), err)
		}
		if len(object.Object) > 0 {
			all = append(all, object)
		}
	}
	return all, nil
}
