package main

import (
	"errors"

	"github.com/spf13/cobra"

	"weft.dev/weft/lab"
	"weft.dev/weft/lab/neutronmatrix"
)

var errNeutronMatrix = errors.New("the matrix is not as it must be: see the rows marked WRONG")

func neutronMatrixCmd(name *string) *cobra.Command {
	return &cobra.Command{
		Use: "neutron-matrix", Short: "Measure which pods of deploy/examples/neutron reach what, with the source seen there", Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			c, err := lab.Open(cmd.Context(), *name)
			if err != nil {
				return err
			}
			r, err := neutronmatrix.Run(cmd.Context(), c)
			if err != nil {
				return err
			}
			if err := r.Table(cmd.OutOrStdout()); err != nil {
				return err
			}
			if !r.OK() {
				return errNeutronMatrix
			}
			return nil
		},
	}
}

func openStackCmd(name *string) *cobra.Command {
	return &cobra.Command{
		Use: "openstack", Short: "Print the ports, routers, load balancers and floating IPs of the lab's OpenStack", Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			c, err := lab.Open(cmd.Context(), *name)
			if err != nil {
				return err
			}
			found, err := neutronmatrix.Read(cmd.Context(), c)
			if err != nil {
				return err
			}
			return found.Table(cmd.OutOrStdout())
		},
	}
}
