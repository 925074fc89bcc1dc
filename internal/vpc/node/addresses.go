package node

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"sync"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/client-go/tools/cache"
	ctrlcache "sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"

	kubeovn "weft.dev/weft/api/kubeovn/v1"
	"weft.dev/weft/internal/vpc/objects"
)

// ipObjects are the addresses that the controller gave the pods of this node: IP objects, watched.
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
	name := objects.IPName(namespace, pod)
	for {
		changed := a.next()
		var ip kubeovn.IP
		err := a.objects.Get(ctx, client.ObjectKey{Name: name}, &ip)
		switch {
		case err == nil && ip.Spec.PodUID == uid && ip.DeletionTimestamp == nil:
			return addressOf(&ip)
		case err == nil:
			err = fmt.Errorf("IP %s is of a former pod of this name, with UID %.64q", name, ip.Spec.PodUID)
		case apierrors.IsNotFound(err):
			err = fmt.Errorf("there is no IP %s; the controller makes it", name)
		default:
			return Address{}, fmt.Errorf("read IP %s: %w", name, err)
		}
		select {
		case <-ctx.Done():
			return Address{}, err
		case <-changed:
		}
	}
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
