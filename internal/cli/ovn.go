package cli

import (
	"github.com/spf13/cobra"

	"weft.dev/weft/internal/ovn"
)

// ovnFlags say how OVN's northbound database is reached.
type ovnFlags struct{ endpoints []string }

func (f *ovnFlags) register(cmd *cobra.Command) {
	cmd.Flags().StringSliceVar(&f.endpoints, "ovn-northbound", nil,
		"OVN's northbound database: unix:PATH, tcp:ADDRESS:PORT or ssl:ADDRESS:PORT, of a cluster all of its servers; empty: VPCs are not served")
}

// config returns how the database is reached; without endpoints VPCs are not served.
func (f *ovnFlags) config() (ovn.Config, error) { return ovn.Config{Endpoints: f.endpoints}, nil }
