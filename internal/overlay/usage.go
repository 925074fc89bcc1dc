package overlay

import (
	"errors"
	"math"
	"slices"

	"weft.dev/weft/internal/attach"
	"weft.dev/weft/internal/ipam"
)

// Usage counts what the node's pods use.
type Usage struct {
	// Attachments is the number of pods' interfaces on this network, including those that are being created or removed.
	Attachments int
	// Used of Total pod addresses are in use. Total is 0 until the first Update.
	Used, Total int
}

// Usage returns what the node's pods use now.
func (n *Network) Usage() Usage {
	var u Usage
	s := n.pods.settings.Load()
	for _, rec := range n.store.List() {
		if rec.Network != NetworkName {
			continue
		}
		u.Attachments++
		for _, address := range rec.Addresses {
			if s != nil && s.View.Local.Subnet.Contains(address.Addr()) {
				u.Used++
			}
		}
	}
	if s == nil {
		return u
	}
	if pool, err := ipam.NewPool(s.View.Local.Subnet); err == nil { // it was valid before
		u.Total = int(min(pool.Capacity(), math.MaxInt32)) //nolint:gosec // bounded
	}
	return u
}

// WithPods returns the namespaces that have pods on this node. Only their egress firewalls are needed here.
func (n *Network) WithPods() map[string]struct{} {
	names := map[string]struct{}{}
	for _, rec := range n.store.List() {
		if rec.Network == NetworkName && rec.BootID == n.opts.BootID && rec.State != attach.Closing {
			names[rec.PodNamespace] = struct{}{}
		}
	}
	return names
}

// WithoutVNID returns the namespaces of attached pods that have no VNID, sorted. In a mode with VNIDs their pods are closed.
func (n *Network) WithoutVNID() []string {
	var names []string
	for _, rec := range n.store.List() {
		if rec.Network != NetworkName || rec.State != attach.Attached || rec.BootID != n.opts.BootID {
			continue
		}
		if _, _, has := n.Projects.VNIDs(rec.PodNamespace); !has {
			names = append(names, rec.PodNamespace)
		}
	}
	slices.Sort(names)
	return slices.Compact(names)
}

// Addresses returns how many pod addresses of the node's subnet are in use, and how many there are.
func (n *Network) Addresses() (used, all uint64) { return n.ports.Numbers.Usage() }

// Limits returns why state that every pod needs from the node is not in effect. It implements network.Limiter.
func (n *Network) Limits() error {
	return errors.Join(
		n.engines.Rules.Failure(ownerCluster), n.engines.Rows.Failure(ownerCluster),
		n.engines.Links.Failure(ownerCluster), n.engines.Flows.Failure(ownerCluster),
	)
}
