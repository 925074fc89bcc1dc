package stage

import (
	"context"
	"slices"
	"sync"

	"weft.dev/weft/lab"
	"weft.dev/weft/lab/plan"
)

// KindFlannel is the lab of a flannel network.
const KindFlannel = "n"

// Flannel is a lab of one flannel network: two nodes with Weft's agent, and two with the original flanneld and its plugin.
type Flannel struct {
	*lab.Cluster
	Ours, Peers []Node
}

// Flannel starts that lab, with portmap in the list of plugins or without it. StrikeLab removes it.
func (s *Stage) Flannel(ctx context.Context, portmap bool) (*Flannel, error) {
	const peers = "n3,n4"
	up, err := s.Lab(ctx, KindFlannel, lab.Config{Nodes: 2 * clusterNodes, Network: plan.NetworkFlannel, Flanneld: peers, NoPortmap: !portmap})
	if err != nil {
		return nil, err
	}
	f := &Flannel{Cluster: up}
	for _, n := range up.Nodes() {
		daemon, side := n.Name+"/weft-agent", &f.Ours
		if up.Config.RunsFlanneld(n.Name) {
			daemon, side = n.Name+"/flanneld", &f.Peers
		}
		*side = append(*side, Node{Node: n, objects: up.MakeObject, uids: &sync.Map{}, cpu: func(ctx context.Context) (Meter, error) {
			pids, err := programs(ctx, up, daemon, n.Name+"/pods")
			if err != nil {
				return Meter{}, err
			}
			return Meter{daemons: slices.Clone(pids[:1]), parents: pids[1:]}, nil
		}})
	}
	return f, nil
}
