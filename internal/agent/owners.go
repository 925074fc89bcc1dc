package agent

import (
	"fmt"
	"strings"

	"weft.dev/weft/internal/admin"
	"weft.dev/weft/internal/overlay/pipeline"
	"weft.dev/weft/internal/policy"
)

// owners returns whose the switch's flows are.
func (a *agent) owners(first string) (admin.Owners, error) {
	r := a.running.Load()
	if r == nil {
		return admin.Owners{}, fmt.Errorf("the agent has not read all objects of the cluster yet: %s", a.waiting.get())
	}
	if err := r.network.Ready(); err != nil {
		return admin.Owners{}, fmt.Errorf("the agent has not read all objects of the cluster yet: %w", err)
	}
	var asked policy.Key
	asked.Namespace, asked.Name, _ = strings.Cut(first, "/")
	all := admin.Owners{Node: a.opts.Node}
	for _, origin := range r.network.Origins(append(r.engines.flowLoop.Owners(), pipeline.OwnerState), asked) {
		owner := admin.Owner{
			Cookie: fmt.Sprintf("%#x", pipeline.Cookie(origin.Owner)), Owner: string(origin.Owner), MoreObjects: origin.More,
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
