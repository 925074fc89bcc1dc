// Package remotes decides which remote hosts of the overlay are usable, and compiles their flows and rules. It keeps its own state under
// its own lock, and does no I/O: it returns fragments, and the caller programs them.
package remotes

import (
	"cmp"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"sync"

	"weft.dev/weft/internal/clusternetwork"
	"weft.dev/weft/internal/nft"
	"weft.dev/weft/internal/overlay/feature"
	"weft.dev/weft/internal/overlay/host"
	"weft.dev/weft/internal/overlay/pipeline"
	"weft.dev/weft/internal/reconcile"
)

// Fragments are what remote hosts contribute to the engines, by owner; empty for hosts that are gone.
type Fragments struct {
	Rules map[reconcile.Owner]map[nft.Key]nft.Item
	Flows feature.Flows
}

// Hosts are the remote hosts of a node. Its methods may be called concurrently.
type Hosts struct {
	mu sync.RWMutex
	// names are the names of all remote hosts.
	names map[reconcile.Owner]string
	// usable are the remote hosts that have fragments; leftOut has the reasons why the others have none.
	usable  map[reconcile.Owner]pipeline.Remote
	leftOut map[reconcile.Owner]string
}

// New returns Hosts without any host.
func New() *Hosts {
	return &Hosts{names: map[reconcile.Owner]string{}, usable: map[reconcile.Owner]pipeline.Remote{}, leftOut: map[reconcile.Owner]string{}}
}

// remote returns a remote host as the pipeline needs it.
func remote(subnet *clusternetwork.HostSubnet) pipeline.Remote {
	return pipeline.Remote{UID: string(subnet.UID), Name: subnet.Host, NodeIP: subnet.HostIP, Subnet: subnet.Subnet, FixedVNID: subnet.VNID}
}

// Config compiles the flows and the rules of remote hosts.
type Config struct {
	Pipeline *pipeline.Config
	Host     *host.Config
	// All compiles all hosts, not only those that changed.
	All bool
	// Log gets why hosts are left out. Required.
	Log *slog.Logger
}

// Update replaces the remote hosts. It returns the fragments of those that differ from before, and whether any usable one does. If the
// subnets of two overlap, only the first gets a fragment; otherwise chance would decide which of them receives a packet.
func (h *Hosts) Update(c Config, hosts []clusternetwork.HostSubnet) (f Fragments, changed bool) {
	f, changed, failures := h.replace(&c, hosts)
	for _, err := range failures {
		c.Log.Error("remote host left out", "error", err)
	}
	return f, changed
}

// replace is Update without its logging. It also returns why hosts are left out that were not before, or for another reason.
func (h *Hosts) replace(c *Config, hosts []clusternetwork.HostSubnet) (f Fragments, changed bool, failures []error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	f = Fragments{Rules: map[reconcile.Owner]map[nft.Key]nft.Item{}, Flows: feature.Flows{}}
	usable, failures := h.check(c, hosts)
	h.names = make(map[reconcile.Owner]string, len(hosts))
	for i := range hosts {
		h.names[remote(&hosts[i]).Owner()] = hosts[i].Host
	}
	for o := range h.usable {
		if _, still := usable[o]; !still {
			f.Flows[o], f.Rules[o] = nil, nil
		}
	}
	for o, r := range usable {
		if was, known := h.usable[o]; c.All || !known || was != r {
			f.Flows[o], f.Rules[o] = c.Pipeline.Remote(r), c.Host.RemoteRules(r.NodeIP)
		}
	}
	changed = !maps.Equal(h.usable, usable)
	h.usable = usable
	return f, changed, failures
}

// check returns the remote hosts that fragments can be compiled from, and why others are left out, once for each. The caller holds mu.
func (h *Hosts) check(c *Config, hosts []clusternetwork.HostSubnet) (usable map[reconcile.Owner]pipeline.Remote, failures []error) {
	ordered := slices.Clone(hosts)
	slices.SortFunc(ordered, precedence)
	var taken []pipeline.Remote
	usable = make(map[reconcile.Owner]pipeline.Remote, len(hosts))
	leftOut := map[reconcile.Owner]string{}
	for i := range ordered {
		r := remote(&ordered[i])
		err := c.Pipeline.CheckRemote(r)
		if err == nil {
			taken, err = take(taken, r)
		}
		if err == nil {
			usable[r.Owner()] = r
			continue
		}
		leftOut[r.Owner()] = err.Error()
		if h.leftOut[r.Owner()] != err.Error() {
			failures = append(failures, err)
		}
	}
	h.leftOut = leftOut
	return usable, failures
}

// precedence orders remote hosts. The cluster's nodes come first: their subnets were assigned to them, and an object written for another
// host must not take one away. The order is the same on all nodes.
func precedence(a, b clusternetwork.HostSubnet) int {
	made := func(h clusternetwork.HostSubnet) int {
		if h.NodeUID != "" {
			return 0
		}
		return 1
	}
	return cmp.Or(cmp.Compare(made(a), made(b)), cmp.Compare(a.UID, b.UID))
}

// take adds a remote host to taken unless it overlaps one of them. taken is ordered by subnet and has no overlaps.
func take(taken []pipeline.Remote, r pipeline.Remote) ([]pipeline.Remote, error) {
	at, _ := slices.BinarySearchFunc(taken, r, func(a, b pipeline.Remote) int {
		return a.Subnet.Addr().Compare(b.Subnet.Addr())
	})
	for _, other := range taken[max(0, at-1):min(at+1, len(taken))] {
		if other.Subnet.Overlaps(r.Subnet) {
			return taken, fmt.Errorf("HostSubnet %s: subnet %s overlaps %s of HostSubnet %s", r.Name, r.Subnet, other.Subnet, other.Name)
		}
	}
	return slices.Insert(taken, at, r), nil
}

// Name returns the name of the HostSubnet that owns fragments; "" if there is none.
func (h *Hosts) Name(o reconcile.Owner) string {
	h.mu.RLock()
	defer h.mu.RUnlock()
	return h.names[o]
}

// Usable returns the remote hosts that have fragments. They must not be changed.
func (h *Hosts) Usable() map[reconcile.Owner]pipeline.Remote {
	h.mu.RLock()
	defer h.mu.RUnlock()
	return h.usable
}

// LeftOut returns why remote hosts have no fragments.
func (h *Hosts) LeftOut() map[reconcile.Owner]string {
	h.mu.RLock()
	defer h.mu.RUnlock()
	return maps.Clone(h.leftOut)
}
