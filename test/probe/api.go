package probe

import (
	"context"

	"weft.dev/weft/lab"
)

// CutAPI makes the API server unreachable for the nodes, and returns what brings it back. Connections that are open end.
func CutAPI(ctx context.Context, c *lab.Cluster) (back func(context.Context) error, err error) {
	st, err := lab.Inspect(ctx, c.Name())
	if err != nil {
		return nil, err
	}
	nft := func(ctx context.Context, command string) error {
		_, err := Run(ctx, []string{"nsenter", "--net=" + st.ControlNS, "--", "nft", command})
		return err
	}
	const cut = `table inet wtaway { chain input { type filter hook input priority 0; policy accept; iifname "eth0" tcp dport 6443 reject with tcp reset; }; }`
	if err := nft(ctx, cut); err != nil {
		return nil, err
	}
	return func(ctx context.Context) error { return nft(ctx, "delete table inet wtaway") }, nil
}
