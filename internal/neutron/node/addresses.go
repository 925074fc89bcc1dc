package node

import (
	"context"
	"fmt"
	"net/netip"
	"sync"

	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"weft.dev/weft/internal/neutron/host"
	"weft.dev/weft/internal/reconcile"
)

// serviceOwner starts the owners of Services' addresses in the node's rules.
const serviceOwner = "neutron/service/"

// addresses keeps the addresses of all Services in the node's rules, so that none leads to a host port. It uses the Services and not their
// range, which depends on the default network, and to which the API server can add ranges.
type addresses struct {
	objects client.Reader
	// set hands rules over to the loop, and does not wait for it.
	set func(rules)

	// mu keeps handovers in the order of the events. Until started nothing is handed over.
	mu      sync.Mutex
	started bool
}

// start hands over the addresses of all Services in the cache.
func (a *addresses) start(ctx context.Context) error {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.started = true
	var list corev1.ServiceList
	if err := a.objects.List(ctx, &list, client.UnsafeDisableDeepCopy); err != nil {
		return fmt.Errorf("read Services: %w", err)
	}
	all := rules{}
	for i := range list.Items {
		owner, items := addressRules(&list.Items[i])
		all[owner] = items
	}
	a.set(all)
	return nil
}

// changed hands over the addresses of a Service that has changed, or is gone.
func (a *addresses) changed(object *corev1.Service, gone bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if !a.started {
		return
	}
	owner, items := addressRules(object)
	if gone {
		items = nil
	}
	a.set(rules{owner: items})
}

func addressRules(object *corev1.Service) (reconcile.Owner, ruleItems) {
	var found []netip.Addr
	for _, text := range append([]string{object.Spec.ClusterIP}, object.Spec.ClusterIPs...) {
		if a, err := netip.ParseAddr(text); err == nil { // headless Services have none
			found = append(found, a)
		}
	}
	return reconcile.Owner(serviceOwner + object.Namespace + "/" + object.Name), host.Service(found)
}
