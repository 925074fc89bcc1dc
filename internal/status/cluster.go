package status

import (
	"context"
	"errors"
	"fmt"

	appsv1 "k8s.io/api/apps/v1"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"

	networkv1 "weft.dev/weft/api/openshift/v1"
	weftv1 "weft.dev/weft/api/weft/v1"
)

// Cluster reads the status of one cluster.
type Cluster struct {
	config    *rest.Config
	namespace string
	scheme    *runtime.Scheme
	mapper    meta.RESTMapper
	reader    client.Client
	clock     *serverClock
	sections  []Section
}

// New returns a Cluster, and sends no request. namespace is that of the installation. Networks other than the overlay have a section each.
func New(config *rest.Config, namespace string, sections ...Section) (*Cluster, error) {
	c := &Cluster{config: rest.CopyConfig(config), namespace: namespace, scheme: runtime.NewScheme(), clock: &serverClock{}, sections: sections}
	c.config.Wrap(c.clock.wrap)
	err := errors.Join(clientgoscheme.AddToScheme(c.scheme), networkv1.AddToScheme(c.scheme), weftv1.AddToScheme(c.scheme), addToScheme(sections, c.scheme))
	if err != nil {
		return nil, fmt.Errorf("register the kinds of objects: %w", err)
	}
	c.mapper = mapper(sections)
	if c.reader, err = client.New(c.config, client.Options{Scheme: c.scheme, Mapper: c.mapper}); err != nil {
		return nil, fmt.Errorf("API server: %w", err)
	}
	return c, nil
}

// mapper returns a mapper with the kinds that are read. A mapper that queries the API server would fail for a kind that is not defined; the
// report has to show that instead.
func mapper(sections []Section) meta.RESTMapper {
	m := meta.NewDefaultRESTMapper(nil)
	add := func(version schema.GroupVersion, scope meta.RESTScope, kinds ...string) {
		for _, kind := range kinds {
			m.Add(version.WithKind(kind), scope)
		}
	}
	add(networkv1.GroupVersion(), meta.RESTScopeRoot, "ClusterNetwork", "HostSubnet")
	add(corev1.SchemeGroupVersion, meta.RESTScopeRoot, "Node")
	add(corev1.SchemeGroupVersion, meta.RESTScopeNamespace, "Pod")
	add(appsv1.SchemeGroupVersion, meta.RESTScopeNamespace, "DaemonSet", "Deployment")
	add(coordinationv1.SchemeGroupVersion, meta.RESTScopeNamespace, "Lease")
	add(definitionsVersion(), meta.RESTScopeRoot, "CustomResourceDefinition")
	add(weftv1.GroupVersion(), meta.RESTScopeRoot, "NodeNetwork")
	for _, section := range sections {
		for _, kind := range section.Kinds {
			scope := meta.RESTScopeRoot
			if kind.Namespaced {
				scope = meta.RESTScopeNamespace
			}
			add(kind.Version, scope, kind.Name)
		}
	}
	return m
}

// Report reads the objects once, and returns the report.
func (c *Cluster) Report(ctx context.Context) (Report, error) {
	facts, err := Collect(ctx, c.reader, c.namespace, c.sections...)
	if err != nil {
		return Report{}, err
	}
	facts.Now = c.clock.now()
	return Judge(facts), nil
}
