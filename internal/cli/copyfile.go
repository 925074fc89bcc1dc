package cli

import (
	"errors"
	"fmt"

	"weft.dev/weft/internal/agent/cniconf"

	"github.com/spf13/cobra"

	"weft.dev/weft/internal/command"
)

// Programs that the init containers of flannel's manifest run. In Weft's image, these names are links to weft.
const (
	copyProgram        = "cp"
	installConfProgram = "install-conf"
)

// copyCommand copies one file in the two forms that the init containers of flannel's manifest use: cp -f FROM TO, install-conf FROM TO.
func copyCommand(program string) *cobra.Command {
	var force bool
	cmd := &cobra.Command{
		Use:   program + " FROM TO",
		Short: "Copy a file atomically, for the init containers of flannel's manifest",
		Args: func(_ *cobra.Command, args []string) error {
			const fromAndTo = 2
			if len(args) != fromAndTo {
				return command.Refuse(nil, fmt.Errorf("%s: %d arguments: it copies one file, and takes its path and that of the copy", program, len(args)))
			}
			return nil
		},
		SilenceUsage: true, SilenceErrors: true,
		RunE: func(_ *cobra.Command, args []string) error { return cniconf.CopyFile(args[0], args[1]) },
	}
	if program == copyProgram {
		cmd.Flags().BoolVarP(&force, "force", "f", false, "replace the copy; it is always replaced")
	}
	cmd.SetFlagErrorFunc(func(_ *cobra.Command, err error) error {
		return command.Refuse(nil, errors.Join(fmt.Errorf("%s copies one file", program), err))
	})
	return cmd
}
