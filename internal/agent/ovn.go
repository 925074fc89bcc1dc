package agent

import (
	"context"
	"fmt"
	"path/filepath"
	"time"

	weftv1 "weft.dev/weft/api/weft/v1"
	"weft.dev/weft/internal/ovnd"
)

// database returns the endpoint of the node's Open vSwitch.
func (o *Options) database() string { return "unix:" + filepath.Join(o.Paths.OVSRunDir, "db.sock") }

// joinOVN returns a function that makes the node a chassis of Weft's OVN; nil if other programs do so.
func joinOVN(opts *Options) func(context.Context, string, func(weftv1.VPCNode, error)) error {
	if opts.OVNNamespace == "" {
		return nil
	}
	member := ovnd.MemberOptions{
		Config: opts.Config, Namespace: opts.OVNNamespace, Node: opts.Node, Dir: filepath.Join(opts.Paths.StateDir, "ovn"), Endpoint: opts.database(), Log: opts.Log,
	}
	return func(ctx context.Context, datapath string, report func(weftv1.VPCNode, error)) error {
		member.Datapath, member.Report = datapath, report
		m, err := ovnd.NewMember(member, time.Now())
		if err != nil {
			return fmt.Errorf("join OVN: %w", err)
		}
		return m.Run(ctx) //nolint:wrapcheck // it says what failed
	}
}
