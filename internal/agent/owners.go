package agent

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"weft.dev/weft/internal/admin"
	"weft.dev/weft/internal/openflow"
	"weft.dev/weft/internal/overlay/host"
	"weft.dev/weft/internal/overlay/pipeline"
	"weft.dev/weft/internal/overlay/pipeline/cookies"
	"weft.dev/weft/internal/policy"
	"weft.dev/weft/internal/reconcile"
)

// ownersOf returns the owners of a bridge's flows.
func (r *reports) ownersOf(q admin.OwnersQuery) (admin.Owners, error) {
	if q.Bridge == "" || q.Bridge == host.Bridge {
		return r.owners(q.Policy)
	}
	e := r.engines.Load()
	if e == nil {
		return admin.Owners{}, noBridge(q.Bridge)
	}
	bridge, flows, ok := e.Switch.Bridge(q.Bridge)
	if !ok {
		return admin.Owners{}, noBridge(q.Bridge)
	}
	all := admin.Owners{Node: r.node}
	if bridge.Tables != nil {
		all.Tables = bridge.Tables()
	}
	items, owners := flows.Loop.Desired()
	known := map[uint64]bool{}
	for key, item := range items {
		flow, is := item.(*openflow.Flow)
		if !is || len(owners[key]) == 0 || known[flow.Cookie] {
			continue
		}
		known[flow.Cookie] = true
		all.Owners = append(all.Owners, admin.Owner{Cookie: fmt.Sprintf("%#x", flow.Cookie), Owner: string(owners[key][0])})
	}
	slices.SortFunc(all.Owners, func(x, y admin.Owner) int { return cmp.Compare(x.Owner, y.Owner) })
	r.namePods(func(pod func(owner string) string) {
		for i := range all.Owners {
			o := &all.Owners[i]
			if namespace, name, is := strings.Cut(pod(o.Owner), "/"); is {
				o.Objects = []admin.Object{{Kind: "Pod", Namespace: namespace, Name: name}}
			} else if bridge.Object != nil {
				if kind, namespace, name := bridge.Object(reconcile.Owner(o.Owner)); kind != "" {
					o.Objects = []admin.Object{{Kind: kind, Namespace: namespace, Name: name}}
				}
			}
		}
	})
	return all, nil
}

func noBridge(name string) error {
	return fmt.Errorf("bridge %.15q is none of a network of this node", name)
}

// owners returns the owners of the overlay's flows.
func (r *reports) owners(first string) (admin.Owners, error) {
	run := r.running.Load()
	if run == nil {
		return admin.Owners{}, fmt.Errorf("the agent has not read all objects of the cluster yet: %s", r.waiting.get())
	}
	if err := run.network.Ready(); err != nil {
		return admin.Owners{}, fmt.Errorf("the agent has not read all objects of the cluster yet: %w", err)
	}
	var asked policy.Key
	asked.Namespace, asked.Name, _ = strings.Cut(first, "/")
	all := admin.Owners{Node: r.node}
	for _, origin := range run.network.Origins(append(run.engines.Switch.Flows().Owners(), pipeline.OwnerState), asked) {
		owner := admin.Owner{
			Cookie: fmt.Sprintf("%#x", cookies.Of(origin.Owner)), Owner: string(origin.Owner), MoreObjects: origin.More,
		}
		for _, o := range origin.Objects {
			owner.Objects = append(owner.Objects, admin.Object{Kind: o.Kind, Namespace: o.Namespace, Name: o.Name})
		}
		if origin.Pod.Name != "" {
			owner.Pod = origin.Pod.String()
		}
		all.Owners = append(all.Owners, owner)
	}
	return all, nil
}
