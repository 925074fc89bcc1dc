package supervisor

import (
	"context"
	"fmt"
	"log/slog"
	"net/netip"
	"slices"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/dynamic/dynamicinformer"
	"k8s.io/client-go/tools/cache"

	"weft.dev/weft/lab/ground"
	"weft.dev/weft/lab/plan"
)

// routed are the objects that show which node has which pods: HostSubnets for the overlay, Nodes for flannel.
func routed(n plan.Network) []schema.GroupVersionResource {
	subnets := schema.GroupVersionResource{Group: "network.openshift.io", Version: "v1", Resource: "hostsubnets"}
	nodes := schema.GroupVersionResource{Version: "v1", Resource: "nodes"}
	switch n {
	case plan.NetworkFlannel:
		return []schema.GroupVersionResource{nodes}
	case plan.NetworkBoth:
		return []schema.GroupVersionResource{subnets, nodes}
	default:
		return []schema.GroupVersionResource{subnets}
	}
}

// podRoutes returns the control plane's routes to pods: each node's subnet, by the node's address. Objects of other hosts, and invalid
// objects, give none. Of two objects with one subnet, the first by name counts.
func podRoutes(l plan.Lab, objects []*unstructured.Unstructured) map[netip.Prefix]netip.Addr {
	nodes := map[netip.Addr]bool{}
	byName := map[string]netip.Addr{}
	for _, n := range l.AllNodes() {
		nodes[n.IP], byName[n.Name] = true, n.IP
	}
	objects = slices.Clone(objects)
	slices.SortFunc(objects, func(a, b *unstructured.Unstructured) int { return strings.Compare(a.GetName(), b.GetName()) })
	routes := map[netip.Prefix]netip.Addr{}
	for _, o := range objects {
		text, _, _ := unstructured.NestedString(o.Object, "subnet")
		host, _, _ := unstructured.NestedString(o.Object, "hostIP")
		via, err := netip.ParseAddr(host)
		if o.GetKind() == "Node" {
			text, _, _ = unstructured.NestedString(o.Object, "spec", "podCIDR")
			via, err = byName[o.GetName()], nil
		}
		subnet, bad := netip.ParsePrefix(text)
		if err != nil || bad != nil || !nodes[via] || !subnet.Addr().Is4() || subnet.Overlaps(l.Underlay) || subnet.Bits() == 0 {
			continue
		}
		if _, taken := routes[subnet.Masked()]; !taken {
			routes[subnet.Masked()] = via
		}
	}
	return routes
}

// podRouter keeps the control plane's routes to the pods of all nodes until the lab ends. The API server needs them for webhooks,
// aggregated APIs and its proxy.
type podRouter struct {
	lab     plan.Lab
	control ground.Space // the control plane's
	log     *slog.Logger
	down    <-chan struct{} // closed when the lab must end
}

// start starts to watch.
func (r podRouter) start() error {
	config, err := restConfig(r.lab)
	if err != nil {
		return err
	}
	client, err := dynamic.NewForConfig(config)
	if err != nil {
		return fmt.Errorf("connect to the lab's API server: %w", err)
	}
	factory := dynamicinformer.NewDynamicSharedInformerFactory(client, 0)
	changed := make(chan struct{}, 1)
	notify := func(any) {
		select {
		case changed <- struct{}{}:
		default:
		}
	}
	var stores []cache.Store
	for _, resource := range routed(r.lab.Network) {
		informer := factory.ForResource(resource).Informer()
		_, err := informer.AddEventHandler(cache.ResourceEventHandlerFuncs{
			AddFunc: notify, UpdateFunc: func(any, any) { notify(nil) }, DeleteFunc: notify,
		})
		if err != nil {
			return fmt.Errorf("watch %s: %w", resource.Resource, err)
		}
		stores = append(stores, informer.GetStore())
	}
	ctx, stop := context.WithCancel(context.Background()) // it outlives the start
	factory.Start(ctx.Done())
	go func() {
		defer stop()
		r.follow(stores, changed)
	}()
	return nil
}

// follow sets the routes after every change, and again every second while one fails.
func (r podRouter) follow(stores []cache.Store, changed <-chan struct{}) {
	var again <-chan time.Time
	for {
		select {
		case <-r.down:
			return
		case <-changed:
		case <-again:
		}
		var objects []*unstructured.Unstructured
		for _, store := range stores {
			for _, item := range store.List() {
				if o, ok := item.(*unstructured.Unstructured); ok {
					objects = append(objects, o)
				}
			}
		}
		again = nil
		err := r.control.SetRoutes(podRoutes(r.lab, objects))
		if err != nil {
			r.log.Warn("no route from the control plane to some pods; trying again", "err", err)
			again = time.After(time.Second)
		}
	}
}
