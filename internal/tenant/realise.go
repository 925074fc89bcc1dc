package tenant

import (
	"context"
	"fmt"

	networkv1 "weft.dev/weft/api/openshift/v1"
	"weft.dev/weft/internal/realised"
)

// judge returns a function that reports whether a change of VNIDs is in effect on a node: its pods have then taken all steps of the move.
func judge(version uint64) func(*networkv1.HostSubnet) realised.Verdict {
	return func(hs *networkv1.HostSubnet) realised.Verdict {
		done, err := realised.Version(hs.Status.VNIDsVersion)
		return realised.Verdict{Realised: version == 0 || err == nil && done >= version}
	}
}

// realise waits until a change of VNIDs is in effect on all nodes.
func (c *Client) realise(ctx context.Context, report *Report, version uint64, progress func(string)) error {
	reported, last := -1, realised.Count{}
	err := realised.Follow(ctx, c.objects, realised.NewTally(judge(version)), func(count realised.Count) bool {
		last = count
		report.Nodes, report.Realised, report.Behind = count.Nodes, count.Realised, nil
		for _, node := range count.Not {
			report.Behind = append(report.Behind, node.Name)
		}
		if !count.All() && count.Realised != reported {
			reported = count.Realised
			progress(fmt.Sprintf("in effect on %d of %d nodes", count.Realised, count.Nodes))
		}
		return count.All()
	})
	switch {
	case err == nil:
		return nil
	case last.All(): // the nodes were not even read
		return err
	}
	return fmt.Errorf("the change is made, and not in effect yet on %s: %w", last.Names(), err)
}
