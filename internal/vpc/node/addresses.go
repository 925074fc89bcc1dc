package node

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"sync"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/tools/cache"
	ctrlcache "sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"

	kubeovn "weft.dev/weft/api/kubeovn/v1"
	"weft.dev/weft/internal/vpc/objects"
)

// ipObjects are the addresses that the controller assigned to the pods of this node: IP objects, watched.
type ipObjects struct {
	objects ctrlcache.Cache
	api     client.Reader

	mu      sync.Mutex
	changed chan struct{} // closed at the next change
}

func newIPObjects(objects ctrlcache.Cache, api client.Reader) *ipObjects {
	return &ipObjects{objects: objects, api: api, changed: make(chan struct{})}
}

// watch begins to watch, and returns once all IP objects of the node are known.
func (a *ipObjects) watch(ctx context.Context) error {
	informer, err := a.objects.GetInformer(ctx, &kubeovn.IP{}, ctrlcache.BlockUntilSynced(true))
	if err != nil {
		return fmt.Errorf("watch IP objects: %w", err)
	}
	_, err = informer.AddEventHandler(cache.ResourceEventHandlerFuncs{
		AddFunc: func(any) { a.signal() }, UpdateFunc: func(any, any) { a.signal() }, DeleteFunc: func(any) { a.signal() },
	})
	if err != nil {
		return fmt.Errorf("watch IP objects: %w", err)
	}
	return nil
}

func (a *ipObjects) signal() {
	a.mu.Lock()
	defer a.mu.Unlock()
	close(a.changed)
	a.changed = make(chan struct{})
}

func (a *ipObjects) next() <-chan struct{} {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.changed
}

// Of implements Addresses.
func (a *ipObjects) Of(ctx context.Context, namespace, pod, uid string) (Address, error) {
	if uid == "" { // an older runtime
		var object corev1.Pod
		if err := a.api.Get(ctx, client.ObjectKey{Namespace: namespace, Name: pod}, &object); err != nil {
			return Address{}, fmt.Errorf("read the pod: %w", err)
		}
		uid = string(object.UID)
	}
	for {
		changed := a.next()
		var here kubeovn.IPList
		if err := a.objects.List(ctx, &here, client.UnsafeDisableDeepCopy); err != nil {
			return Address{}, fmt.Errorf("list IP objects: %w", err)
		}
		ip, former := find(&here, namespace, pod, uid)
		if ip != nil {
			return addressOf(ip)
		}
		select {
		case <-ctx.Done():
			if former != nil {
				return Address{}, fmt.Errorf("IP %s is of a former pod of this name, with UID %.64q", former.Name, former.Spec.PodUID)
			}
			return Address{}, errors.New("there is no IP object of the pod; the controller makes it")
		case <-changed:
		}
	}
}

// find returns the IP object of a pod, and one of a former pod with its name.
func find(list *kubeovn.IPList, namespace, pod, uid string) (ip, former *kubeovn.IP) {
	var own []*kubeovn.IP
	for i := range list.Items {
		switch one := &list.Items[i]; {
		case one.Spec.Namespace != namespace || one.Spec.PodName != pod:
		case one.Spec.PodUID == uid && one.DeletionTimestamp == nil:
			own = append(own, one)
		default:
			former = one
		}
	}
	return objects.FirstIP(own, func(*kubeovn.IP) bool { return true }), former
}

// addressOf reads an IP object.
func addressOf(ip *kubeovn.IP) (Address, error) {
	spec := &ip.Spec
	prefix, errPrefix := netip.ParsePrefix(spec.CIDR)
	addr, errAddr := netip.ParseAddr(spec.V4IPAddress)
	gateway, errGateway := netip.ParseAddr(spec.Gateway)
	if err := errors.Join(errPrefix, errAddr, errGateway); err != nil {
		return Address{}, fmt.Errorf("IP %s: %w", ip.Name, err)
	}
	return Address{
		Subnet: spec.Subnet, SubnetUID: spec.SubnetUID, Prefix: netip.PrefixFrom(addr, prefix.Bits()), Gateway: gateway,
		MAC: spec.MacAddress, Port: spec.LogicalPort, MTU: int(spec.Mtu), NATGateway: spec.NATGateway,
	}, nil
}
