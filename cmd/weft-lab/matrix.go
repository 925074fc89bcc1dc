package main

import (
	"encoding/json"
	"errors"

	"github.com/spf13/cobra"

	"weft.dev/weft/lab"
	"weft.dev/weft/lab/matrix"
)

var errMatrix = errors.New("the matrix is not as it must be: see the rows marked WRONG")

func matrixCmd(name *string) *cobra.Command {
	var o matrix.Options
	var output string
	cmd := &cobra.Command{
		Use: "matrix", Short: "Measure which pods and hosts reach each other, and prove that a pod cannot spoof", Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			c, err := lab.Open(cmd.Context(), *name)
			if err != nil {
				return err
			}
			r, err := matrix.Run(cmd.Context(), c, o)
			if err != nil {
				return err
			}
			if output == "json" {
				enc := json.NewEncoder(cmd.OutOrStdout())
				enc.SetIndent("", "  ")
				err = enc.Encode(r)
			} else {
				err = r.Table(cmd.OutOrStdout())
			}
			if err == nil && !r.AsItMust {
				err = errMatrix
			}
			return err
		},
	}
	f := cmd.Flags()
	f.StringVarP(&output, "output", "o", "table", "table or json")
	f.StringVarP(&o.Namespace, "namespace", "n", "quickstart", "the pods' namespace, in a lab of runtime kubelet")
	f.StringVarP(&o.Selector, "selector", "l", "", "labels of the pods to take (default all that are ready)")
	f.IntVar(&o.Exchanges, "exchanges", 20, "number of measurements of each path")
	return cmd
}
