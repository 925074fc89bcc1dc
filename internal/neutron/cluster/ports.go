package cluster

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/events"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllerutil"

	stackubev1 "weft.dev/weft/api/stackube/v1"
	weftv1 "weft.dev/weft/api/weft/v1"
	"weft.dev/weft/internal/cluster"
	"weft.dev/weft/internal/neutron/ahead"
	"weft.dev/weft/internal/neutron/cloud"
	"weft.dev/weft/internal/neutron/cluster/pace"
	"weft.dev/weft/internal/neutron/cluster/view"
	"weft.dev/weft/internal/neutron/objects"
)

// portReconciler keeps ports in OpenStack, and the NeutronPorts of nodes' agents, in step with pods. Several Networks are reconciled
// concurrently, but each Network by one call at a time.
type portReconciler struct {
	client   client.Client
	live     client.Reader
	cloud    *connection
	reserved *reservedReader
	events   events.EventRecorder
	log      *slog.Logger
	now      func() time.Time

	mu sync.Mutex
	// known is the state of each Network in OpenStack, as last read and as changed since.
	known map[types.NamespacedName]*known
	// claimed are addresses of ports whose NeutronPorts may not be in the cache yet.
	claimed map[types.NamespacedName]map[view.NodeAddress]bool
	// rounds counts the Networks that have bulk requests under way.
	rounds atomic.Int32
	// pace is how OpenStack makes plugged ports ACTIVE, of all Networks.
	pace pace.Pace
}

// known is the state of a Network in OpenStack.
type known struct {
	at      time.Time
	took    time.Duration // how long the last read of the ports took
	network *cloud.HeldNetwork
	ports   []cloud.HeldPort
	project string
	group   string
	// observed is the generation of the Network that OpenStack had then.
	observed int64
	// waiting counts the plugged ports that are not ACTIVE yet; since is when that number last changed.
	waiting int
	since   time.Time
	// changed is when it first changed after the last read; zero: it has not.
	changed time.Time
	// inactive has, for each of them, when a round first saw it plugged and not ACTIVE.
	inactive map[string]time.Time
	// described is the read whose subnets the NeutronPorts have.
	described time.Time
	problem   string // that an event reported
	// foreign is the first of the ports that have Weft's mark and that Weft did not create.
	foreign string
	// refused are the addresses of requests that OpenStack refused because it had assigned one of them. Neutron 21 keeps the addresses before
	// that one (allocate_ips_for_ports of its ML2 plugin), so that no port can have them.
	refused map[netip.Addr]bool
}

// round is one reconciliation of a Network's ports, with the state in the API server and in OpenStack.
type round struct {
	*portReconciler

	os *session
	v  *view.View
	k  *known
	// rules for ports' addresses on nodes, and on any node (""), as read in this round.
	rules map[string]*objects.Rules
}

// Limits of how often OpenStack is polled for ports to become ACTIVE.
const (
	soonest = 250 * time.Millisecond
	latest  = 30 * time.Second
	// readPause is the pause after a read of all ports, in times of its own length: Neutron creates ports and serves others meanwhile. With
	// OVN no pod waits for a read.
	readPause = 4
)

// Reconcile brings the ports of one Network into step.
func (r *portReconciler) Reconcile(ctx context.Context, req ctrl.Request) (ctrl.Result, error) {
	v, err := view.Read(ctx, r.client, req.NamespacedName)
	if err != nil {
		return ctrl.Result{}, err
	}
	idle := len(v.Ports) == 0 && len(v.Demand) == 0
	if idle && (v.Gone() || v.Network.Status.NetworkID == "") {
		r.forget(req.NamespacedName)
		return ctrl.Result{}, nil
	}
	os, err := r.cloud.get(ctx)
	if err != nil {
		r.pace.Away(r.now())
		return settle(ctrl.Result{}, err)
	}
	result, err := r.step(ctx, os, v)
	r.cloud.failed(os, err)
	if _, failed := cluster.Settle(err); failed != nil { // a conflict in the API server says nothing about OpenStack
		r.stale(req.NamespacedName)
		r.log.WarnContext(ctx, "ports not in step", "network", req.String(), "error", failed)
	}
	return settle(result, err)
}

func (r *portReconciler) step(ctx context.Context, os *session, v *view.View) (ctrl.Result, error) {
	if v.Gone() || v.Network.Status.NetworkID == "" {
		return ctrl.Result{}, r.end(ctx, os, v)
	}
	k, err := r.read(ctx, os, v)
	if errors.Is(err, errUse) { // the Network's status says why
		return ctrl.Result{RequeueAfter: reread}, r.end(ctx, os, v)
	}
	if err != nil {
		return ctrl.Result{}, err
	}
	now := &round{portReconciler: r, os: os, v: v, k: k}
	errs := []error{now.finish(ctx), now.adopt(ctx), now.report(ctx)}
	next, err := now.plan(ctx)
	errs = append(errs, err)
	return ctrl.Result{RequeueAfter: min(next, max(r.untilRead(k), time.Millisecond))}, errors.Join(errs...)
}

// end deletes the ports of a Network that has no network in OpenStack, except those to which pods are attached.
func (r *portReconciler) end(ctx context.Context, os *session, v *view.View) error {
	r.forget(v.Key)
	last := &round{portReconciler: r, os: os, v: v, k: &known{}}
	return errors.Join(last.deleteObjects(ctx), last.finish(ctx))
}

func (r *portReconciler) forget(key types.NamespacedName) {
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.known, key)
	delete(r.claimed, key)
}

// stale makes the next round read OpenStack again: the effect of a failed call is unknown.
func (r *portReconciler) stale(key types.NamespacedName) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if k := r.known[key]; k != nil {
		k.at = time.Time{}
	}
}

// untilRead returns when OpenStack is read again, from now on: soon after a change if plugged ports are not ACTIVE yet, and then less and less
// often. A read delays Neutron's own work: it is not made at the moment when a port was plugged, which cannot be ACTIVE yet.
func (r *portReconciler) untilRead(k *known) time.Duration {
	now := r.now()
	if k.waiting == 0 {
		return k.at.Add(reread).Sub(now)
	}
	due := k.at.Add(min(max(soonest, readPause*k.took, now.Sub(k.since)/2), latest))
	if first := k.changed.Add(soonest); due.Before(first) {
		due = first
	}
	return due.Sub(now)
}

// read returns the state in OpenStack, from memory unless a new read is due.
func (r *portReconciler) read(ctx context.Context, os *session, v *view.View) (*known, error) {
	r.mu.Lock()
	k := r.known[v.Key]
	r.mu.Unlock()
	now := r.now()
	if k == nil || k.network.ID != v.Network.Status.NetworkID {
		k = &known{refused: map[netip.Addr]bool{}}
	}
	r.pace.Saw(k.see(v, now), now)
	observed := observedGeneration(v.Network)
	if !k.at.IsZero() && r.untilRead(k) > 0 && k.observed == observed {
		return k, nil
	}
	if k.network == nil || k.observed != observed || now.Sub(k.at) >= reread {
		if err := r.readNetwork(ctx, os, v, k); err != nil {
			return nil, err
		}
	}
	began := r.now()
	held, err := os.Ports(ctx, k.network.ID)
	if err != nil {
		r.pace.Away(r.now())
		return nil, err
	}
	k.ports, k.at, k.changed, k.observed = held, r.now(), time.Time{}, observed
	k.took = k.at.Sub(began)
	r.mu.Lock()
	r.known[v.Key] = k
	r.mu.Unlock()
	return k, nil
}

// see updates what is known of plugged ports that are not ACTIVE. It returns since when those were plugged that have become ACTIVE.
func (k *known) see(v *view.View, now time.Time) (active []time.Time) {
	inactive := map[string]time.Time{}
	for i := range v.Ports {
		p := &v.Ports[i]
		if !v.Current(p) || !p.Status.Plugged {
			continue
		}
		since, waited := k.inactive[p.Name]
		switch {
		case !p.Spec.Active:
			inactive[p.Name] = cmp.Or(since, now)
		case waited:
			active = append(active, since)
		}
	}
	k.inactive = inactive
	if waiting := len(inactive); waiting != k.waiting {
		k.waiting, k.since = waiting, now
		k.changed = cmp.Or(k.changed, now)
	}
	return active
}

// observedGeneration is the generation of a Network that OpenStack has.
func observedGeneration(n *stackubev1.Network) int64 {
	if ready := meta.FindStatusCondition(n.Status.Conditions, stackubev1.ConditionReady); ready != nil {
		return ready.ObservedGeneration
	}
	return 0
}

// readNetwork reads the network, and what its ports need besides.
func (r *portReconciler) readNetwork(ctx context.Context, os *session, v *view.View, k *known) error {
	project := "" // ports stay together with the network, whatever becomes of the Tenant
	if v.Network.Spec.NetworkID != "" {
		var err error
		if project, err = projectOf(ctx, r.client, os, v.Network); err != nil {
			return err
		}
	}
	held, err := os.usable(ctx, v.Network, project, v.Network.Status.NetworkID)
	if err != nil {
		return err
	}
	k.project = cmp.Or(project, held.ProjectID)
	if k.group, err = os.group(ctx, k.project, v.Network.Spec.IPv6CIDR != ""); err != nil {
		return err
	}
	k.network = held
	return nil
}

// finish deletes ports in OpenStack whose objects are being deleted and whose nodes have unplugged them, or do not exist.
func (r *round) finish(ctx context.Context) error {
	var errs []error
	for i := range r.v.Ports {
		p := &r.v.Ports[i]
		if p.DeletionTimestamp.IsZero() || !controllerutil.ContainsFinalizer(p, weftv1.NeutronPortFinalizer) {
			continue
		}
		errs = append(errs, r.finishPort(ctx, p.Name))
	}
	return errors.Join(errs...)
}

func (r *round) finishPort(ctx context.Context, id string) error {
	p := &weftv1.NeutronPort{}
	if err := r.live.Get(ctx, client.ObjectKey{Name: id}, p); err != nil { // the cache may be behind the agent's report
		return client.IgnoreNotFound(err)
	}
	if _, there := r.v.Hosts[p.Spec.Node]; there && (p.Status.Plugged || p.Status.Pod != nil) {
		return nil
	}
	if err := r.os.RemovePort(ctx, id); err != nil {
		return err
	}
	r.k.drop(id)
	controllerutil.RemoveFinalizer(p, weftv1.NeutronPortFinalizer)
	if err := r.client.Update(ctx, p); client.IgnoreNotFound(err) != nil {
		return fmt.Errorf("remove the finalizer of NeutronPort %s: %w", id, err)
	}
	return nil
}

// neutrons are the ports that belong to a subnet: those of routers, and those that serve DHCP.
func (k *known) neutrons() []cloud.HeldPort {
	var all []cloud.HeldPort
	for i := range k.ports {
		if p := &k.ports[i]; p.IsRouter() || p.IsDHCP() {
			all = append(all, *p)
		}
	}
	return all
}

func (k *known) drop(id string) {
	for i := range k.ports {
		if k.ports[i].ID == id {
			k.ports = append(k.ports[:i:i], k.ports[i+1:]...)
			return
		}
	}
}

// deleteObjects deletes the NeutronPorts of a Network, except those to which pods are attached.
func (r *round) deleteObjects(ctx context.Context) error {
	var errs []error
	for i := range r.v.Ports {
		if p := &r.v.Ports[i]; p.Status.Pod == nil {
			errs = append(errs, r.deleteObject(ctx, p))
		}
	}
	return errors.Join(errs...)
}

func (r *portReconciler) deleteObject(ctx context.Context, p *weftv1.NeutronPort) error {
	if !p.DeletionTimestamp.IsZero() {
		return nil
	}
	if err := r.client.Delete(ctx, p, client.Preconditions{UID: new(p.UID), ResourceVersion: new(p.ResourceVersion)}); client.IgnoreNotFound(err) != nil {
		return fmt.Errorf("delete NeutronPort %s: %w", p.Name, err)
	}
	return nil
}

// adopt writes the NeutronPorts of ports in OpenStack that have none: just created, or created before a controller ended. A port that Weft
// created and that cannot serve a pod is deleted.
func (r *round) adopt(ctx context.Context) error {
	has := map[string]bool{}
	for i := range r.v.Ports {
		has[r.v.Ports[i].Name] = true
	}
	claims := map[view.NodeAddress]bool{}
	foreign := ""
	var without []cloud.HeldPort
	nodes := map[string]string{} // by a port's id
	for _, port := range r.k.ports {
		at, marked := placeOf(r.os, &port)
		if !marked || at.Network != string(r.v.Network.UID) {
			continue
		}
		addr, ours := r.created(&port)
		if !ours {
			if foreign == "" || port.ID < foreign {
				foreign = port.ID
			}
			continue
		}
		claims[view.NodeAddress{Node: at.Node, Addr: addr}] = true
		if !has[port.ID] {
			without = append(without, port)
			nodes[port.ID] = at.Node
		}
	}
	r.foreign(foreign)
	r.mu.Lock()
	r.claimed[r.v.Key] = claims
	r.mu.Unlock()
	return r.adoptPorts(ctx, without, func(port *cloud.HeldPort) string { return nodes[port.ID] })
}

func placeOf(os *session, port *cloud.HeldPort) (ahead.Place, bool) {
	owner, ours := os.OwnerOf(port.Description)
	if !ours {
		return ahead.Place{}, false
	}
	return objects.PlaceOf(owner)
}

// created returns the IPv4 address of a port that has everything that CreatePorts sets: project, bound host, device owner, one IPv4
// address, and the MAC address derived from it. The mark alone proves nothing, because every owner of a port in OpenStack can write its
// description.
func (r *round) created(port *cloud.HeldPort) (addr netip.Addr, ours bool) {
	if r.k.project == "" || port.ProjectID != r.k.project || !port.Hosted() {
		return addr, false
	}
	for _, ip := range port.FixedIPs {
		one, err := netip.ParseAddr(ip.IPAddress)
		if err != nil || one.Is4() && addr.IsValid() {
			return addr, false
		}
		if one.Is4() {
			addr = one
		}
	}
	return addr, addr.IsValid() && strings.EqualFold(port.MACAddress, cloud.MAC(addr))
}

// foreign sends an event about ports with Weft's mark that Weft did not create, once while the first of them is the same.
func (r *round) foreign(id string) {
	if id != "" && id != r.k.foreign {
		r.events.Eventf(r.v.Network, nil, corev1.EventTypeWarning, "ForeignPort", "AdoptPorts",
			"port %s has the description of Weft's ports, and a project, host, device owner or address that Weft did not give: it is left alone", id)
	}
	r.k.foreign = id
}

// writesAtOnce is the number of NeutronPorts that are created at the same time.
const writesAtOnce = 8

// adoptPorts writes the NeutronPorts of ports that Weft created, or deletes those that cannot serve a pod. nodeOf returns a port's node. A
// port of a node that has not reported its name in Neutron waits.
func (r *round) adoptPorts(ctx context.Context, all []cloud.HeldPort, nodeOf func(*cloud.HeldPort) string) error {
	errs := make([]error, 2*len(all))
	var writes errgroup.Group
	writes.SetLimit(writesAtOnce)
	for i := range all {
		object, err := r.objectOf(ctx, &all[i], nodeOf(&all[i]))
		errs[2*i] = err
		if object == nil {
			continue
		}
		writes.Go(func() error {
			if err := r.client.Create(ctx, object); err != nil && !apierrors.IsAlreadyExists(err) {
				errs[2*i+1] = fmt.Errorf("create NeutronPort %s: %w", object.Name, err)
			}
			return nil
		})
	}
	return errors.Join(append(errs, writes.Wait())...)
}

// objectOf compiles the NeutronPort of a port that Weft created. If the port cannot serve a pod, it is deleted. It returns nil without a
// NeutronPort to be created.
func (r *round) objectOf(ctx context.Context, port *cloud.HeldPort, node string) (*weftv1.NeutronPort, error) {
	host, there := r.v.Hosts[node]
	if there && host == "" {
		return nil, nil
	}
	object, err := objects.Port(r.v.Network, r.k.network, r.k.ports, port, node)
	serves := err == nil && there && port.Bound() && port.HostID == host && !r.clashes(object)
	if serves {
		if serves, err = r.allowed(ctx, port, node); err != nil {
			return nil, err
		}
	}
	if serves {
		return object, nil
	}
	if removeErr := r.os.RemovePort(ctx, port.ID); removeErr != nil {
		return nil, removeErr
	}
	r.k.drop(port.ID)
	if !port.Bound() && there {
		r.problem(fmt.Sprintf("port on node %s: %s (host %q)", node, cloud.ErrBinding, port.HostID))
		return nil, fmt.Errorf("port %s on node %s: %w", port.ID, node, cloud.ErrBinding)
	}
	return nil, err
}

// rulesOf returns the rules for ports' addresses on a node.
func (r *round) rulesOf(ctx context.Context, node string) (*objects.Rules, error) {
	if rules := r.rules[node]; rules != nil {
		return rules, nil
	}
	if r.rules == nil {
		all, err := r.reserved.read(ctx, r.os)
		if err != nil {
			return nil, err
		}
		r.rules = map[string]*objects.Rules{"": all}
	}
	rules, err := r.reserved.ofNode(ctx, r.rules[""], node)
	if err != nil {
		return nil, err
	}
	r.rules[node] = rules
	return rules, nil
}

// allowed reports whether a port's IPv4 address is in the pods' subnet, and the node may route it to a pod.
func (r *round) allowed(ctx context.Context, port *cloud.HeldPort, node string) (bool, error) {
	subnet, _, err := objects.PodSubnet(r.v.Network, r.k.network)
	if err != nil {
		return false, err
	}
	rules, err := r.rulesOf(ctx, node)
	if err != nil {
		return false, err
	}
	for _, ip := range port.FixedIPs {
		addr, err := netip.ParseAddr(ip.IPAddress)
		if err != nil || addr.Is4() && (ip.SubnetID != subnet || linkLocal.Contains(addr) || rules.Refuses(addr)) {
			return false, nil //nolint:nilerr // such a port serves no pod
		}
	}
	return true, nil
}

// clashes reports whether another network's port on the node has an address of the port.
func (r *round) clashes(object *weftv1.NeutronPort) bool {
	for _, a := range object.Spec.Addresses {
		prefix, err := netip.ParsePrefix(a.Address)
		if err != nil {
			return true
		}
		if of, taken := r.v.Taken[view.NodeAddress{Node: object.Spec.Node, Addr: prefix.Addr()}]; taken && of != r.v.Key && prefix.Addr().Is4() {
			return true // nodes route no IPv6 addresses
		}
	}
	return false
}

// report writes to NeutronPorts whether their ports are ACTIVE, and what their subnets have now. A NeutronPort without a
// pod is deleted if no pod can use its port any more.
func (r *round) report(ctx context.Context) error {
	held := map[string]*cloud.HeldPort{}
	for i := range r.k.ports {
		held[r.k.ports[i].ID] = &r.k.ports[i]
	}
	neutrons := r.k.neutrons()
	var errs []error
	subnet6 := objects.PodSubnet6(r.v.Network, r.k.network)
	for i := range r.v.Ports {
		p := &r.v.Ports[i]
		if !r.v.Current(p) {
			if p.Status.Pod == nil {
				errs = append(errs, r.deleteObject(ctx, p))
			}
			continue
		}
		port := held[p.Name]
		if p.Status.Pod == nil && !objects.Fits(p, port, r.v.Hosts[p.Spec.Node], subnet6) {
			errs = append(errs, r.deleteObject(ctx, p))
			continue
		}
		want := r.specOf(p, port, neutrons)
		if equality.Semantic.DeepEqual(want, &p.Spec) {
			continue
		}
		if err := r.writeSpec(ctx, p, want); err != nil {
			errs = append(errs, err)
		}
	}
	err := errors.Join(errs...)
	if err == nil {
		r.k.described = r.k.at
	}
	return err
}

// writeSpec writes what differs in a NeutronPort's spec. Only the controller writes these fields, and the node's agent writes the status at the
// same time: no version is compared. The view keeps its status: the number of pods that wait was counted with it.
func (r *round) writeSpec(ctx context.Context, p *weftv1.NeutronPort, want *weftv1.NeutronPortSpec) error {
	written := p.DeepCopy()
	written.Spec = *want
	if err := r.client.Patch(ctx, written, client.MergeFrom(p)); client.IgnoreNotFound(err) != nil {
		return fmt.Errorf("update NeutronPort %s: %w", p.Name, err)
	}
	p.Spec = *want
	return nil
}

// specOf returns the spec of a NeutronPort with the state of its port, and with what the port's subnets have now: gateways, name servers,
// routes and the MTU. What cannot change in a spec stays, even if the port was changed in OpenStack. port is nil if it does not exist there.
func (r *round) specOf(p *weftv1.NeutronPort, port *cloud.HeldPort, neutrons []cloud.HeldPort) *weftv1.NeutronPortSpec {
	spec := p.Spec.DeepCopy()
	spec.Active = port != nil && port.Active()
	if port == nil || r.k.described.Equal(r.k.at) {
		return spec
	}
	now, err := objects.Port(r.v.Network, r.k.network, neutrons, port, spec.Node)
	if err != nil || now.Spec.MAC != spec.MAC || now.Spec.Network != spec.Network {
		return spec
	}
	same := func(a, b weftv1.NeutronPortAddress) bool { return a.Address == b.Address }
	if !slices.EqualFunc(now.Spec.Addresses, spec.Addresses, same) {
		return spec
	}
	return &now.Spec
}

// problem sends an event about a Network, once while the problem lasts.
func (r *round) problem(what string) {
	if r.k.problem != what && what != "" {
		r.events.Eventf(r.v.Network, nil, corev1.EventTypeWarning, "Ports", "CreatePorts", "%s", cluster.Note(what))
	}
	r.k.problem = what
}
