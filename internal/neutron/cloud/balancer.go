package cloud

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/netip"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"github.com/gophercloud/gophercloud/v2/openstack/loadbalancer/v2/listeners"
	"github.com/gophercloud/gophercloud/v2/openstack/loadbalancer/v2/loadbalancers"
	"github.com/gophercloud/gophercloud/v2/openstack/loadbalancer/v2/pools"

	"weft.dev/weft/internal/neutron/conf"
	"weft.dev/weft/internal/neutron/openstack"
)

// balancers makes the requests about load balancers, with their listeners, pools and members.
type balancers struct {
	marks

	client   *openstack.Client
	config   conf.LoadBalancer
	floating floatingIPs
	// provider is the provider of the load balancer that was read last, a string: Octavia's default, unless kubestack.conf names one.
	provider atomic.Value
}

// Balancer is the desired state of a load balancer.
type Balancer struct {
	Owner   string
	Name    string
	Project string
	Subnet  string // id of the subnet of its virtual address
	// Listeners have different pairs of protocol and port.
	Listeners []Listener
	// SourceAffinity sends a client's connections to one member. Octavia's OVN provider accepts it without effect.
	SourceAffinity bool
	// FloatingIP is the external address, or the zero value for none.
	FloatingIP netip.Addr
	// MakeFloating creates FloatingIP if it does not exist, with the credentials' rights: only administrators may choose an address in
	// Neutron. Otherwise the address has to be one of the project.
	MakeFloating bool
	// AnyFloating assigns an address of the external network if FloatingIP is zero and there is an external network.
	AnyFloating bool
	// ByName uses the project's load balancer with the name, as KubeStack does. Otherwise only one with Owner's mark counts.
	ByName bool
}

// Listener is a port of a load balancer.
type Listener struct {
	Protocol string // TCP, UDP or SCTP
	Port     int
	Members  []Member
}

func (l Listener) name() string { return fmt.Sprintf("%s-%d", l.Protocol, l.Port) }

// Member is a destination of a listener's traffic.
type Member struct {
	Addr netip.Addr
	Port int
}

// HeldBalancer is a load balancer in Octavia.
type HeldBalancer struct {
	loadbalancers.LoadBalancer

	Listeners []HeldListener
	// FloatingIP is its external address, if EnsureBalancer had to assign one.
	FloatingIP netip.Addr
}

// HeldListener is a listener with its default pool.
type HeldListener struct {
	listeners.Listener

	Pool    *pools.Pool    // nil: none
	Members []pools.Member // only from FindBalancer
}

// pending reports whether a change of a part is in progress.
func (h *HeldBalancer) pending() bool {
	return slices.ContainsFunc(h.Listeners, func(l HeldListener) bool {
		return strings.HasPrefix(l.ProvisioningStatus, "PENDING_") || l.Pool != nil && strings.HasPrefix(l.Pool.ProvisioningStatus, "PENDING_")
	})
}

// Errors of load balancers.
var (
	ErrNoOctavia = errors.New("the catalogue of Keystone has no load-balancer service")
	ErrBalancer  = errors.New("provisioning_status is ERROR in Octavia")
)

// Progress is the result of AdvanceBalancer.
type Progress int

// Progress of a load balancer.
const (
	// InStep means that nothing is left to change.
	InStep Progress = iota
	// Pending means that an earlier change is in progress in Octavia, which accepts no other meanwhile.
	Pending
	// Changed means that a change was requested. There may be more to change.
	Changed
	// Created means that the load balancer itself was requested.
	Created
)

// FindBalancer looks a load balancer up by name, with all its parts; project "" means any. It returns ErrNotFound and ErrMultiple.
func (b *balancers) FindBalancer(ctx context.Context, project, name string) (*HeldBalancer, error) {
	one, err := b.named(ctx, project, name)
	if err != nil {
		return nil, err
	}
	held := &HeldBalancer{LoadBalancer: *one}
	if err := b.readListeners(ctx, held); err != nil {
		return nil, err
	}
	for i := range held.Listeners {
		if h := &held.Listeners[i]; h.Pool != nil {
			if h.Members, err = b.membersOf(ctx, held, h.Pool); err != nil {
				return nil, err
			}
		}
	}
	return held, nil
}

// named looks a load balancer up by name, without its parts.
func (b *balancers) named(ctx context.Context, project, name string) (*loadbalancers.LoadBalancer, error) {
	what := fmt.Sprintf("load balancer %q", name)
	if b.client.LoadBalancer == nil {
		return nil, ErrNoOctavia
	}
	found, err := list(ctx, loadbalancers.List(b.client.LoadBalancer, loadbalancers.ListOpts{Name: name, ProjectID: project}),
		loadbalancers.ExtractLoadBalancers)
	one, err := only(what, found, err)
	if err == nil && one == nil {
		err = fmt.Errorf("%s: %w", what, ErrNotFound)
	}
	return one, err
}

// OwnBalancer looks up the load balancer that Weft created for an object, in any project, by its mark, because names are not unique and can change. It
// returns ErrNotFound, and ErrForeign if only one that Weft did not create has the name in the project; project "" has none. Of several, it
// deletes all but the first one that has listeners.
func (b *balancers) OwnBalancer(ctx context.Context, project, owner, name string) (*loadbalancers.LoadBalancer, error) {
	what := fmt.Sprintf("load balancer %q", name)
	if b.client.LoadBalancer == nil {
		return nil, ErrNoOctavia
	}
	mark := b.mark(owner)
	own, err := list(ctx, loadbalancers.List(b.client.LoadBalancer, loadbalancers.ListOpts{Description: mark}), loadbalancers.ExtractLoadBalancers)
	if err != nil {
		return nil, fmt.Errorf("look for %s: %w", what, err)
	}
	own = slices.DeleteFunc(own, func(lb loadbalancers.LoadBalancer) bool { return lb.Description != mark })
	own = within(project, own, func(lb *loadbalancers.LoadBalancer) string { return lb.ProjectID })
	slices.SortFunc(own, func(x, y loadbalancers.LoadBalancer) int {
		return cmp.Or(cmp.Compare(len(y.Listeners), len(x.Listeners)), x.CreatedAt.Compare(y.CreatedAt), strings.Compare(x.ID, y.ID))
	})
	one, err := keepOne(what, own, func(lb *loadbalancers.LoadBalancer) error {
		return loadbalancers.Delete(ctx, b.client.LoadBalancer, lb.ID, loadbalancers.DeleteOpts{Cascade: true}).ExtractErr()
	})
	if err != nil || one != nil {
		return one, err
	}
	var named []loadbalancers.LoadBalancer
	if project != "" {
		named, err = list(ctx, loadbalancers.List(b.client.LoadBalancer, loadbalancers.ListOpts{Name: name, ProjectID: project}),
			loadbalancers.ExtractLoadBalancers)
	}
	switch {
	case err != nil:
		return nil, fmt.Errorf("look for %s: %w", what, err)
	case slices.ContainsFunc(named, func(lb loadbalancers.LoadBalancer) bool { return !b.marked(lb.Description) }):
		return nil, fmt.Errorf("%s: %w", what, ErrForeign)
	}
	return nil, fmt.Errorf("%s: %w", what, ErrNotFound)
}

// EnsureBalancer creates what is missing of a load balancer, updates its members, and removes listeners that are not desired. It waits for
// each change. If it fails, a load balancer that this call created is removed.
func (b *balancers) EnsureBalancer(ctx context.Context, want Balancer) (held *HeldBalancer, err error) {
	made := ""
	defer func() {
		if err != nil && made != "" {
			undone := undo{func(ctx context.Context) error { return b.removeBalancer(ctx, made) }}
			err = errors.Join(err, undone.run(ctx))
		}
	}()
	for progress := Pending; progress != InStep; {
		if held, progress, err = b.nextChange(ctx, want); err != nil {
			return nil, err
		}
		if progress == Created {
			made = held.ID
		}
	}
	return held, nil
}

// settleLimit limits how long Octavia may take for one change.
const settleLimit = 2 * time.Minute

// nextChange waits until Octavia accepts the next change, and requests it.
func (b *balancers) nextChange(ctx context.Context, want Balancer) (held *HeldBalancer, progress Progress, err error) {
	ctx, cancel := context.WithTimeout(ctx, settleLimit)
	defer cancel()
	err = await(ctx, fmt.Sprintf("load balancer %q to become ACTIVE", want.Name), func(ctx context.Context) (bool, error) {
		held, progress, err = b.AdvanceBalancer(ctx, want)
		return progress != Pending, err
	})
	return held, progress, err
}

// AdvanceBalancer requests from Octavia the next change towards the desired load balancer, without waiting: while a change is in progress,
// Octavia refuses every other. It returns the load balancer as read from Octavia, without members, also together with ErrBalancer if
// Octavia failed; its floating IP is set last.
func (b *balancers) AdvanceBalancer(ctx context.Context, want Balancer) (*HeldBalancer, Progress, error) {
	one, created, err := b.ensureBalancer(ctx, want)
	if err != nil {
		return nil, Pending, err
	}
	held := &HeldBalancer{LoadBalancer: *one}
	if one.Provider != "" {
		b.provider.Store(one.Provider)
	}
	switch {
	case created:
		return held, Created, nil
	case one.ProvisioningStatus == "ERROR":
		return held, InStep, fmt.Errorf("load balancer %q: %w", want.Name, ErrBalancer)
	case one.ProvisioningStatus != "ACTIVE":
		return held, Pending, nil
	}
	if err := b.readListeners(ctx, held); err != nil {
		return held, InStep, err
	}
	if held.pending() { // parts of a load balancer that was created with them
		return held, Pending, nil
	}
	for _, l := range want.Listeners {
		if changed, err := b.advanceListener(ctx, want, l, held); changed || err != nil {
			return held, Changed, err
		}
	}
	if changed, err := b.prune(ctx, want, held); changed || err != nil {
		return held, Changed, err
	}
	held.FloatingIP = want.FloatingIP
	switch {
	case want.FloatingIP.IsValid():
		err = b.floating.ensure(ctx, want, held.VipPortID)
	case want.AnyFloating && b.floating.external != "":
		held.FloatingIP, err = b.floating.ensureAny(ctx, want, held.VipPortID)
	}
	return held, InStep, err
}

func (b *balancers) ensureBalancer(ctx context.Context, want Balancer) (*loadbalancers.LoadBalancer, bool, error) {
	if b.client.LoadBalancer == nil {
		return nil, false, ErrNoOctavia
	}
	what := fmt.Sprintf("load balancer %q", want.Name)
	return makeOnce(ctx, what, func(lb *loadbalancers.LoadBalancer) string { return lb.ID },
		func(ctx context.Context) (one *loadbalancers.LoadBalancer, err error) {
			if want.ByName {
				one, err = b.named(ctx, want.Project, want.Name)
			} else {
				one, err = b.OwnBalancer(ctx, want.Project, want.Owner, want.Name)
			}
			if errors.Is(err, ErrNotFound) {
				return nil, nil //nolint:nilnil // it is to be made
			}
			return one, err
		},
		func(ctx context.Context) (*loadbalancers.LoadBalancer, error) {
			opts := loadbalancers.CreateOpts{
				Name: want.Name, Description: b.mark(want.Owner), ProjectID: want.Project, VipSubnetID: want.Subnet,
				Provider: b.config.Provider, AdminStateUp: yes(), Listeners: b.populated(want),
			}
			one, err := loadbalancers.Create(ctx, b.client.LoadBalancer, opts).Extract()
			if err != nil && len(opts.Listeners) > 0 && !openstack.Unknown(err) {
				// A part is refused, for instance by a quota. With each such request Octavia leaves a port in Neutron. Without parts the load
				// balancer is created, and the part is refused alone.
				opts.Listeners = nil
				one, err = loadbalancers.Create(ctx, b.client.LoadBalancer, opts).Extract()
			}
			return one, err
		})
}

// RemoveBalancer removes a load balancer with all its parts, and its floating IP if Weft created it. It waits until the load balancer is
// removed.
func (b *balancers) RemoveBalancer(ctx context.Context, held *loadbalancers.LoadBalancer) error {
	if err := b.floating.release(ctx, held.VipPortID); err != nil {
		return err
	}
	return b.removeBalancer(ctx, held.ID)
}

func (b *balancers) removeBalancer(ctx context.Context, id string) error {
	ctx, cancel := context.WithTimeout(ctx, settleLimit)
	defer cancel()
	return await(ctx, "load balancer "+id+" to be deleted", func(ctx context.Context) (bool, error) { return b.withdrawBalancer(ctx, id) })
}

// WithdrawBalancer is RemoveBalancer without waiting. It reports whether the load balancer is removed; until then it has to be called
// again.
func (b *balancers) WithdrawBalancer(ctx context.Context, held *loadbalancers.LoadBalancer) (bool, error) {
	if err := b.floating.release(ctx, held.VipPortID); err != nil {
		return false, err
	}
	return b.withdrawBalancer(ctx, held.ID)
}

func (b *balancers) withdrawBalancer(ctx context.Context, id string) (bool, error) {
	err := loadbalancers.Delete(ctx, b.client.LoadBalancer, id, loadbalancers.DeleteOpts{Cascade: true}).ExtractErr()
	switch {
	case openstack.NotFound(err):
		return true, nil
	case err != nil && !openstack.Is(err, http.StatusConflict): // 409: a change of it is under way
		return false, fmt.Errorf("delete load balancer %s: %w", id, openstack.Explain(err))
	}
	_, err = loadbalancers.Get(ctx, b.client.LoadBalancer, id).Extract()
	return openstack.NotFound(err), nil
}
