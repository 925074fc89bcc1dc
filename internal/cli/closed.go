package cli

import (
	"fmt"
	"net/netip"
	"strconv"

	"github.com/spf13/cobra"

	"weft.dev/weft/internal/agent"
)

// closedFlags are the flags for addresses and ports outside the pod network that pods cannot reach.
type closedFlags struct{ metadata, ports []string }

func (f *closedFlags) register(cmd *cobra.Command) {
	flags := cmd.Flags()
	flags.StringSliceVar(&f.metadata, "metadata-addresses", []string{"169.254.169.254"}, "addresses of the cloud's metadata service, of which pods reach port 53 only; empty: pods reach them")
	flags.StringSliceVar(&f.ports, "closed-node-ports", []string{"22623", "22624"}, "TCP ports of nodes that pods don't reach, those of OpenShift's machine configuration server; empty: pods reach all")
}

// parse sets the agent's options from the flags.
func (f *closedFlags) parse(opts *agent.Options) error {
	const portBits = 16
	for _, text := range f.metadata {
		addr, err := netip.ParseAddr(text)
		if err != nil {
			return fmt.Errorf("--metadata-addresses: %w", err)
		}
		opts.MetadataAddresses = append(opts.MetadataAddresses, addr)
	}
	for _, text := range f.ports {
		port, err := strconv.ParseUint(text, 10, portBits)
		if err != nil || port == 0 {
			return fmt.Errorf("--closed-node-ports: %q is not a port: use numbers from 1 to 65535", text)
		}
		opts.ClosedNodePorts = append(opts.ClosedNodePorts, uint16(port))
	}
	return nil
}
