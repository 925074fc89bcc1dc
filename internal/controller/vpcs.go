package controller

import (
	"context"
	"fmt"

	"weft.dev/weft/internal/ovn"
	vpccluster "weft.dev/weft/internal/vpc/cluster"
)

// openVPCs opens OVN's northbound database for the part for VPCs, if VPCs are served, and returns a function that closes it.
func openVPCs(ctx context.Context, options *Options) (closeVPCs func(), err error) {
	if len(options.Northbound.Endpoints) == 0 {
		return func() {}, nil
	}
	drift := make(chan struct{}, 1)
	config := options.Northbound
	config.Logger = options.Logger
	config.Changed = func() {
		select {
		case drift <- struct{}{}:
		default:
		}
	}
	engine, err := ovn.Open(ctx, config)
	if err != nil {
		return nil, fmt.Errorf("VPCs: %w", err)
	}
	options.vpcs = &vpccluster.Options{
		Northbound: engine, Drift: drift, Term: vpccluster.LeaseTerm(options.LeaseNamespace, options.LeaseName, options.identity),
		Loaded: options.Loaded, Inspector: &vpccluster.Inspector{},
	}
	return engine.Close, nil
}
