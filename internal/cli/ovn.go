package cli

import (
	"fmt"
	"os"
	"slices"
	"time"

	"github.com/spf13/cobra"
	"k8s.io/client-go/rest"

	"weft.dev/weft/internal/ovn"
	"weft.dev/weft/internal/ovnd"
)

// fromConfigMap is the value of --ovn-northbound for the database that the ConfigMap weft-ovn names.
const fromConfigMap = "configmap"

// ovnFlags are the flags for the connection to OVN's northbound database.
type ovnFlags struct{ endpoints []string }

func (f *ovnFlags) register(cmd *cobra.Command) {
	cmd.Flags().StringSliceVar(&f.endpoints, "ovn-northbound", nil,
		"OVN's northbound database: unix:PATH, tcp:ADDRESS:PORT, of a cluster all of its servers; configmap: Weft's own, which ConfigMap weft-ovn "+
			"in --namespace names; empty: VPCs are not served")
}

// config returns the configuration of the connection to the database. Without endpoints, VPCs are not served.
func (f *ovnFlags) config(api *rest.Config, namespace string) (ovn.Config, error) {
	if !slices.Contains(f.endpoints, fromConfigMap) {
		return ovn.Config{Endpoints: f.endpoints}, nil
	}
	if len(f.endpoints) != 1 {
		return ovn.Config{}, fmt.Errorf("--ovn-northbound: %s cannot be combined with addresses: give it alone", fromConfigMap)
	}
	host, err := os.Hostname()
	if err != nil {
		return ovn.Config{}, fmt.Errorf("name of this host: %w", err)
	}
	northbound, err := ovnd.NewNorthbound(api, namespace, host, time.Now())
	if err != nil {
		return ovn.Config{}, err //nolint:wrapcheck // it says what failed
	}
	return ovn.Config{Endpoints: f.endpoints, Locate: northbound.Locate}, nil
}
