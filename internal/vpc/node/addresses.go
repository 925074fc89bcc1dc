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
	"weft.dev/weft/internal/informer"
	"weft.dev/weft/internal/vpc/objects"
)

// ipObjects are the addresses that the controller assigned to the pods of this node: IP objects, watched.
type ipObjects struct {
	objects ctrlcache.Cache
	api     client.Reader

	mu sync.Mutex
	// ofPod are the IP objects of each pod, by objects.PodKey and their names.
	ofPod   map[string]map[string]*kubeovn.IP
	changed chan struct{} // closed at the next change
}

func newIPObjects(objects ctrlcache.Cache, api client.Reader) *ipObjects {
	return &ipObjects{objects: objects, api: api, ofPod: map[string]map[string]*kubeovn.IP{}, changed: make(chan struct{})}
}

// watch watches until ctx ends. It returns once the cache has all IP objects of the node.
func (a *ipObjects) watch(ctx context.Context) error {
	informer, err := a.objects.GetInformer(ctx, &kubeovn.IP{}, ctrlcache.BlockUntilSynced(true))
	if err != nil {
		return fmt.Errorf("watch IP objects: %w", err)
	}
	_, err = informer.AddEventHandler(cache.ResourceEventHandlerFuncs{
		AddFunc: func(ip any) { a.change(nil, ip) }, UpdateFunc: a.change, DeleteFunc: func(ip any) { a.change(ip, nil) },
	})
	if err != nil {
		return fmt.Errorf("watch IP objects: %w", err)
	}
	return nil
}

// change takes an object of the watch in place of another one; nil: there is none.
func (a *ipObjects) change(before, now any) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if ip, is := informer.LastState(before).(*kubeovn.IP); is {
		key := objects.HolderOf(ip)
		if delete(a.ofPod[key], ip.Name); len(a.ofPod[key]) == 0 {
			delete(a.ofPod, key)
		}
	}
	if ip, is := now.(*kubeovn.IP); is {
		key := objects.HolderOf(ip)
		if a.ofPod[key] == nil {
			a.ofPod[key] = map[string]*kubeovn.IP{}
		}
		a.ofPod[key][ip.Name] = ip
	}
	close(a.changed)
	a.changed = make(chan struct{})
}

// find returns the IP object of a pod, one of a former pod of its name, and a channel that is closed when there may be others.
func (a *ipObjects) find(namespace, pod, uid string) (ip, former *kubeovn.IP, changed <-chan struct{}) {
	a.mu.Lock()
	defer a.mu.Unlock()
	var own []*kubeovn.IP
	for _, one := range a.ofPod[objects.PodKey(namespace, pod)] {
		if one.Spec.PodUID == uid && one.DeletionTimestamp == nil {
			own = append(own, one)
		} else {
			former = one
		}
	}
	return objects.FirstIP(own, func(*kubeovn.IP) bool { return true }), former, a.changed
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
		ip, former, changed := a.find(namespace, pod, uid)
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

// addressOf reads an IP object.
func addressOf(ip *kubeovn.IP) (Address, error) {
	spec := &ip.Spec
	addr, errAddr := objects.AddressOf(ip)
	prefix, errPrefix := netip.ParsePrefix(spec.CIDR)
	gateway, errGateway := netip.ParseAddr(spec.Gateway)
	err := errors.Join(errAddr, errPrefix, errGateway)
	if err == nil && (!prefix.Addr().Is4() || !gateway.Is4()) {
		err = fmt.Errorf("spec.cidr %s and spec.gateway %s are not both of IPv4", prefix, gateway)
	}
	if err != nil {
		return Address{}, fmt.Errorf("IP %s: %w; delete the IP object, and the controller makes another one", ip.Name, err)
	}
	return Address{
		Subnet: spec.Subnet, SubnetUID: spec.SubnetUID, Prefix: netip.PrefixFrom(addr, prefix.Bits()), Gateway: gateway,
		MAC: spec.MacAddress, Port: spec.LogicalPort, MTU: int(spec.Mtu), NATGateway: spec.NATGateway,
	}, nil
}
