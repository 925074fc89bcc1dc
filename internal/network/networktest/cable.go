// Package networktest has a small network for tests (a veth pair and a host route for each pod), and the suite that every network runs.
package networktest

import (
	"context"
	"errors"
	"fmt"
	"hash/fnv"
	"net/netip"
	"sync"

	types100 "github.com/containernetworking/cni/pkg/types/100"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"weft.dev/weft/internal/attach"
	"weft.dev/weft/internal/attach/plan"
	"weft.dev/weft/internal/cni"
	"weft.dev/weft/internal/link"
	"weft.dev/weft/internal/link/podlink"
	"weft.dev/weft/internal/network"
	"weft.dev/weft/internal/nft"
	"weft.dev/weft/internal/node"
	"weft.dev/weft/internal/placement"
	"weft.dev/weft/internal/reconcile"
)

// Names of the network, of its table, and of the table's set with the addresses of its pods.
const (
	Name  = "cable"
	Table = "cable"
	Pods  = "pods"
	// Part is the network's only part. Pods that name another part are refused.
	Part = "long"
)

// Subnet returns the range of the pods' addresses.
func Subnet() netip.Prefix { return netip.MustParsePrefix("10.99.0.0/24") }

// Kind describes the network to the agent's wiring. It is present if ConfigMap kube-system/cable exists.
func Kind() network.Kind {
	return network.Kind{
		Name: Name, Present: present, Presence: []client.Object{&corev1.ConfigMap{}},
		Objects: []network.Object{{Kind: &corev1.ConfigMap{}, Namespaced: true}},
		Care:    node.Care{Tables: []nft.Table{{Family: nft.FamilyInet, Name: Table}}},
		CNI: network.Conflist{Name: "20-cable.conflist", Content: func() ([]byte, error) {
			return []byte(`{"cniVersion":"1.0.0","name":"weft","plugins":[{"type":"weft"}]}` + "\n"), nil
		}},
		New: func(_ context.Context, n *node.Node, deps network.Deps) (network.Network, network.Runner, error) {
			c := New(n, deps.Records)
			c.changed = deps.Changed
			return c, c, nil
		},
	}
}

func present(ctx context.Context, objects client.Reader) (network.Presence, error) {
	var config corev1.ConfigMap
	err := objects.Get(ctx, client.ObjectKey{Namespace: "kube-system", Name: Name}, &config)
	if apierrors.IsNotFound(err) {
		return network.Presence{Why: "there is no ConfigMap kube-system/" + Name}, nil
	}
	return network.Presence{
		Present: err == nil, Why: "ConfigMap kube-system/" + Name, Cluster: true,
		Default: config.Annotations[placement.AnnotationDefault] == "true",
	}, err
}

// Cable is the network on one node.
type Cable struct {
	node    *node.Node
	records network.Records
	handed  chan struct{}
	changed func()
	// mu keeps updates of the loops in the order of Connect and Close.
	mu   sync.Mutex
	shut map[attach.Key]bool
}

// New returns the network. Nothing is changed before Run.
func New(n *node.Node, records network.Records) *Cable {
	return &Cable{node: n, records: records, handed: make(chan struct{}), changed: func() {}, shut: map[attach.Key]bool{}}
}

// Run implements network.Runner.
func (c *Cable) Run(ctx context.Context) error {
	rules := map[nft.Key]nft.Item{}
	for _, item := range []nft.Item{
		&nft.Table{Family: nft.FamilyInet, Name: Table},
		&nft.Set{Family: nft.FamilyInet, Table: Table, Name: Pods, Type: "ipv4_addr"},
	} {
		rules[item.Key()] = item
	}
	c.mu.Lock()
	for _, rec := range c.records.Attached() {
		if !c.shut[rec.Key()] {
			c.node.Rules.Set(c.rules(&rec))
			c.node.Links.Set(c.links(&rec))
		}
	}
	c.mu.Unlock()
	err := c.node.Rules.Start(ctx, map[reconcile.Owner]map[nft.Key]nft.Item{Name: rules})
	if err == nil {
		err = c.node.Links.Start(ctx, map[reconcile.Owner]map[link.Key]link.Item{Name: {}})
	}
	if err != nil {
		if ctx.Err() != nil {
			return nil //nolint:nilerr // the end of ctx is why
		}
		return err
	}
	close(c.handed)
	c.changed()
	<-ctx.Done()
	return nil
}

// HandedOver implements network.Runner.
func (c *Cable) HandedOver() <-chan struct{} { return c.handed }

// Ready implements network.Network.
func (c *Cable) Ready() error {
	select {
	case <-c.handed:
		return nil
	default:
		return errors.New("its table has not been programmed yet")
	}
}

// Plan implements network.Network.
func (c *Cable) Plan(_ context.Context, req *cni.Request, at placement.Decision, inUse attach.InUse) (attach.Record, error) {
	if at.Part != "" && at.Part != Part {
		return attach.Record{}, cni.Errorf(cni.CodeRefused, "network %s has no part %q: it is %q", Name, at.Part, Part)
	}
	name := fnv.New32a()
	_, _ = name.Write([]byte(req.ContainerID + "/" + req.IfName))
	for address := Subnet().Addr().Next(); Subnet().Contains(address); address = address.Next() {
		claim := "address " + Name + " " + address.String()
		if _, taken := inUse.Claims[claim]; !taken {
			rec := attach.Record{
				Network: Name, Addresses: []netip.Prefix{netip.PrefixFrom(address, address.BitLen())}, Claims: []string{claim},
				HostInterface: fmt.Sprintf("cable%08x", name.Sum32()), MTU: 1500, Details: []byte(`{"reason":"test"}`),
			}
			rec.MAC = plan.MAC(rec.Addresses).String()
			return rec, nil
		}
	}
	return attach.Record{}, cni.Errorf(cni.CodeTryAgainLater, "no address of %s is free", Subnet())
}

func (c *Cable) pair(rec *attach.Record) (podlink.Pair, error) {
	pair, err := plan.Pair(rec, &plan.Settings{})
	// All destinations are on-link: the host answers for its own addresses.
	pair.PodRoutes = []link.Route{{Dst: netip.MustParsePrefix("0.0.0.0/0"), Scope: link.ScopeLink}}
	return pair, err
}

func owner(rec *attach.Record) reconcile.Owner { return reconcile.Owner(rec.Key().Owner()) }

func (c *Cable) rules(rec *attach.Record) map[reconcile.Owner]map[nft.Key]nft.Item {
	e := &nft.Element{Family: nft.FamilyInet, Table: Table, Set: Pods, Match: []string{rec.Addresses[0].Addr().String()}, Owner: string(owner(rec))}
	return map[reconcile.Owner]map[nft.Key]nft.Item{owner(rec): {e.Key(): e}}
}

func (c *Cable) links(rec *attach.Record) map[reconcile.Owner]map[link.Key]link.Item {
	r := &link.Route{Dst: rec.Addresses[0], Device: rec.HostInterface, Scope: link.ScopeLink}
	return map[reconcile.Owner]map[link.Key]link.Item{owner(rec): {r.Key(): r}}
}

// Connect implements network.Network.
func (c *Cable) Connect(ctx context.Context, rec *attach.Record) (*types100.Result, error) {
	pair, err := c.pair(rec)
	if err != nil {
		return nil, err
	}
	created, err := c.node.Pods.Create(ctx, pair)
	if err != nil {
		return nil, err
	}
	c.mu.Lock()
	delete(c.shut, rec.Key())
	c.mu.Unlock()
	if err := c.node.Links.Apply(ctx, c.links(rec)); err != nil {
		return nil, err
	}
	if err := c.node.Rules.Apply(ctx, c.rules(rec)); err != nil {
		return nil, err
	}
	return plan.Result(rec, &plan.Settings{}, created.HostMAC), nil
}

// Close implements network.Network. Without its link, the pod sends and receives nothing.
func (c *Cable) Close(ctx context.Context, rec attach.Record) error {
	c.mu.Lock()
	c.shut[rec.Key()] = true
	c.node.Links.Set(map[reconcile.Owner]map[link.Key]link.Item{owner(&rec): nil})
	c.node.Rules.Set(map[reconcile.Owner]map[nft.Key]nft.Item{owner(&rec): nil})
	c.mu.Unlock()
	return c.node.Pods.Delete(ctx, rec.HostInterface)
}

// Remove implements network.Network.
func (c *Cable) Remove(ctx context.Context, recs []attach.Record) map[attach.Key]error {
	var links []string
	routes, elements := map[reconcile.Owner]map[link.Key]link.Item{}, map[reconcile.Owner]map[nft.Key]nft.Item{}
	for i := range recs {
		links = append(links, recs[i].HostInterface)
		routes[owner(&recs[i])], elements[owner(&recs[i])] = nil, nil
	}
	err := errors.Join(c.node.Pods.Delete(ctx, links...), c.node.Links.Apply(ctx, routes), c.node.Rules.Apply(ctx, elements))
	failed := map[attach.Key]error{}
	c.mu.Lock()
	defer c.mu.Unlock()
	for i := range recs {
		if err != nil {
			failed[recs[i].Key()] = err
			continue
		}
		delete(c.shut, recs[i].Key())
	}
	return failed
}

// Check implements network.Network.
func (c *Cable) Check(ctx context.Context, rec attach.Record) error {
	pair, err := c.pair(&rec)
	if err != nil {
		return err
	}
	return errors.Join(c.node.Pods.Check(ctx, pair), c.node.Links.Failure(owner(&rec)), c.node.Rules.Failure(owner(&rec)))
}
