package main

import (
	"errors"
	"fmt"
	"net/netip"

	"github.com/spf13/cobra"

	"weft.dev/weft/lab"
	"weft.dev/weft/lab/vpcmatrix"
)

var errVPCMatrix = errors.New("the matrix is not as it must be: see the rows marked WRONG")

func vpcMatrixCmd(name *string) *cobra.Command {
	var snat, floating string
	cmd := &cobra.Command{
		Use: "vpc-matrix", Short: "Measure which pods of deploy/examples/vpc reach what, with the source seen there", Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			var o vpcmatrix.Options
			for _, flag := range []struct {
				name, text string
				into       *netip.Addr
			}{{"snat", snat, &o.SNAT}, {"floating-ip", floating, &o.FloatingIP}} {
				if flag.text == "" {
					continue
				}
				var err error
				if *flag.into, err = netip.ParseAddr(flag.text); err != nil {
					return fmt.Errorf("--%s: %w", flag.name, err)
				}
			}
			c, err := lab.Open(cmd.Context(), *name)
			if err != nil {
				return err
			}
			r, err := vpcmatrix.Run(cmd.Context(), c, o)
			if err != nil {
				return err
			}
			if err := r.Table(cmd.OutOrStdout()); err != nil {
				return err
			}
			if !r.OK() {
				return errVPCMatrix
			}
			return nil
		},
	}
	cmd.Flags().StringVar(&snat, "snat", "", "address that the outside must see of ns1/vpc1-pod; empty: it must reach nothing outside")
	cmd.Flags().StringVar(&floating, "floating-ip", "", "floating IP of ns1/vpc1-other; empty: the rows of the floating IP are left out")
	return cmd
}
