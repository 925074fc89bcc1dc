// Package crds holds the CustomResourceDefinitions of what users write, as they are applied to a cluster. They are
// generated from the types in package api (go generate ./api/...).
package crds

import (
	"embed"
	"fmt"
	"io/fs"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"sigs.k8s.io/yaml"

	"weft.dev/weft/deploy/stackube"
)

//go:embed *.yaml
var manifests embed.FS

// All returns the definitions that every installation has, in the order of their file names.
func All() ([]*apiextensionsv1.CustomResourceDefinition, error) { return read(manifests) }

// Neutron returns the definitions of stackube's objects, which are installed together with OpenStack's networks.
func Neutron() ([]*apiextensionsv1.CustomResourceDefinition, error) { return read(stackube.Files()) }

func read(folder fs.FS) ([]*apiextensionsv1.CustomResourceDefinition, error) {
	names, err := fs.Glob(folder, "*.yaml")
	if err != nil {
		return nil, fmt.Errorf("list the definitions: %w", err)
	}
	all := make([]*apiextensionsv1.CustomResourceDefinition, 0, len(names))
	for _, name := range names {
		text, err := fs.ReadFile(folder, name)
		if err != nil {
			return nil, fmt.Errorf("read %s: %w", name, err)
		}
		crd := &apiextensionsv1.CustomResourceDefinition{}
		if err := yaml.UnmarshalStrict(text, crd); err != nil {
			return nil, fmt.Errorf("parse %s: %w", name, err)
		}
		all = append(all, crd)
	}
	return all, nil
}
