package tenant

import (
	"context"
	"errors"
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/labels"
	"sigs.k8s.io/controller-runtime/pkg/client"

	networkv1 "weft.dev/weft/api/openshift/v1"
	"weft.dev/weft/internal/clusternetwork"
)

// Request is a change of some namespaces. Make one with Join, Isolate or Global.
type Request struct {
	annotation string
	to         string
	// Namespaces are the namespaces to change. Set either this or Selector.
	Namespaces []string
	// Selector selects the namespaces to change by their labels.
	Selector labels.Selector
}

// Join requests that namespaces share the network of another one.
func Join(to string) Request { return Request{annotation: networkv1.ChangeJoinPrefix + to, to: to} }

// Isolate requests a network of its own for each namespace.
func Isolate() Request { return Request{annotation: networkv1.ChangeIsolate} }

// Global requests that namespaces reach all others, and are reached by them.
func Global() Request { return Request{annotation: networkv1.ChangeGlobal} }

// names returns the namespaces of a request, sorted.
func (c *Client) names(ctx context.Context, r *Request) ([]string, error) {
	switch {
	case len(r.Namespaces) > 0 && r.Selector != nil:
		return nil, errors.New("give either namespaces or a selector, not both")
	case len(r.Namespaces) > 0:
		return slices.Compact(slices.Sorted(slices.Values(r.Namespaces))), nil
	case r.Selector == nil || r.Selector.Empty():
		return nil, errors.New("give the namespaces that change, or a selector of their labels")
	}
	var list corev1.NamespaceList
	if err := c.objects.List(ctx, &list, client.MatchingLabelsSelector{Selector: r.Selector}); err != nil {
		return nil, fmt.Errorf("listing Namespaces: %w", err)
	}
	var names []string
	for i := range list.Items {
		if name := list.Items[i].Name; name != r.to { // the namespace to join may have the label as well
			names = append(names, name)
		}
	}
	if len(names) == 0 {
		return nil, fmt.Errorf("no namespace has labels that %q selects", r.Selector)
	}
	slices.Sort(names)
	return names, nil
}

// check validates a request before anything is changed. have are all NetNamespaces.
func (r *Request) check(names []string, have map[string]*networkv1.NetNamespace) error {
	var errs []error
	missing := func(name string) {
		errs = append(errs, fmt.Errorf("namespace %s: there is no NetNamespace of that name; the controller makes one for each Namespace", name))
	}
	for _, name := range names {
		switch {
		case have[name] == nil:
			missing(name)
		case name == networkv1.NamespaceDefault && r.annotation != networkv1.ChangeGlobal:
			errs = append(errs, fmt.Errorf("namespace %s stays global", name))
		case name == r.to:
			errs = append(errs, fmt.Errorf("namespace %s: it cannot join itself", name))
		}
	}
	if r.to != "" && have[r.to] == nil {
		missing(r.to)
	}
	return errors.Join(errs...)
}

// checkMode returns an error unless pods are isolated by VNID.
func (c *Client) checkMode(ctx context.Context) error {
	var network networkv1.ClusterNetwork
	if err := c.objects.Get(ctx, client.ObjectKey{Name: networkv1.ClusterNetworkDefault}, &network); err != nil {
		return fmt.Errorf("ClusterNetwork %s: %w", networkv1.ClusterNetworkDefault, err)
	}
	config, err := clusternetwork.Parse(&network)
	if err != nil {
		return err
	}
	if config.Mode != clusternetwork.ModeMultitenant {
		return fmt.Errorf("ClusterNetwork %s: pluginName is %q: namespaces are joined and isolated with %s only",
			networkv1.ClusterNetworkDefault, network.PluginName, networkv1.PluginMultitenant)
	}
	return nil
}
