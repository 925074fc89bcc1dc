// Package render turns Weft's Helm chart into manifests, with Helm's own library.
package render

import (
	"bytes"
	"fmt"
	"maps"
	"path"
	"slices"
	"strings"

	"helm.sh/helm/v3/pkg/chart"
	"helm.sh/helm/v3/pkg/chart/loader"
	"helm.sh/helm/v3/pkg/chartutil"
	"helm.sh/helm/v3/pkg/engine"
)

// Namespace is where the manifest installs Weft.
const Namespace = "weft"

const head = `# Weft, as the chart in deploy/chart renders it with %s: make generate. Do not change it here.
# Apply deploy/crds first; docs/install.md says how, and how to name an image of your own.
`

// Variant is a manifest in deploy.
type Variant struct {
	// File is its name, and With says in words which values it is rendered with.
	File, With string
	// Values are over the chart's.
	Values map[string]any
}

// Variants returns the manifests in deploy.
func Variants() []Variant {
	enabled := map[string]any{"enabled": true}
	return []Variant{
		{File: "weft.yaml", With: "its default values"},
		{File: "weft-flannel.yaml", With: "flannel.enabled, without Open vSwitch", Values: map[string]any{"flannel": enabled, "ovs": map[string]any{"enabled": false}}},
		{File: "weft-vpc.yaml", With: "vpc.enabled", Values: map[string]any{"vpc": enabled}},
		{
			File: "weft-vpc-three.yaml", With: "vpc.enabled and vpc.ovn.replicas=3",
			Values: map[string]any{"vpc": map[string]any{"enabled": true, "ovn": map[string]any{"replicas": 3}}},
		},
		{File: "weft-neutron.yaml", With: "neutron.enabled", Values: map[string]any{"neutron": enabled}},
	}
}

// order is that of the templates in the manifest: what others need comes first.
var order = []string{"namespace.yaml", "admission.yaml", "agent-rbac.yaml", "controller-rbac.yaml", "vpc-rbac.yaml", "neutron-rbac.yaml"} //nolint:gochecknoglobals // a constant table

// Manifest renders the chart in a folder, namespace and all.
func Manifest(dir string, variant Variant) ([]byte, error) {
	values := map[string]any{"createNamespace": true}
	maps.Copy(values, variant.Values)
	files, err := Files(dir, values)
	if err != nil {
		return nil, err
	}
	out := bytes.NewBufferString(fmt.Sprintf(head, variant.With))
	for _, name := range sorted(files) {
		for _, document := range documents(files[name]) {
			fmt.Fprintf(out, "---\n%s\n", document)
		}
	}
	return out.Bytes(), nil
}

// Files renders each template of the chart in a folder, by its name, with values over the default ones.
func Files(dir string, values map[string]any) (map[string]string, error) {
	c, err := Load(dir)
	if err != nil {
		return nil, err
	}
	release := chartutil.ReleaseOptions{Name: "weft", Namespace: Namespace, Revision: 1, IsInstall: true}
	all, err := chartutil.ToRenderValues(c, values, release, chartutil.DefaultCapabilities.Copy())
	if err != nil {
		return nil, fmt.Errorf("values of the chart in %s: %w", dir, err)
	}
	rendered, err := engine.Engine{Strict: true}.Render(c, all)
	if err != nil {
		return nil, fmt.Errorf("render the chart in %s: %w", dir, err)
	}
	files := map[string]string{}
	for name, text := range rendered {
		if path.Ext(name) == ".yaml" && strings.TrimSpace(text) != "" {
			files[path.Base(name)] = text
		}
	}
	return files, nil
}

// Load reads the chart in a folder.
func Load(dir string) (*chart.Chart, error) {
	c, err := loader.LoadDir(dir)
	if err != nil {
		return nil, fmt.Errorf("chart in %s: %w", dir, err)
	}
	return c, nil
}

func sorted(files map[string]string) []string {
	names := make([]string, 0, len(files))
	for name := range files {
		names = append(names, name)
	}
	rank := func(name string) int {
		if at := slices.Index(order, name); at >= 0 {
			return at
		}
		return len(order)
	}
	slices.SortFunc(names, func(a, b string) int {
		if d := rank(a) - rank(b); d != 0 {
			return d
		}
		return strings.Compare(a, b)
	})
	return names
}

// documents splits a rendered file, and takes the blank lines away that templates leave.
func documents(text string) []string {
	var all []string
	for document := range strings.SplitSeq(text, "\n---\n") {
		var kept []string
		for line := range strings.Lines(document) {
			if line = strings.TrimRight(line, " \n"); line != "" {
				kept = append(kept, line)
			}
		}
		if len(kept) > 0 {
			all = append(all, strings.Join(kept, "\n"))
		}
	}
	return all
}
