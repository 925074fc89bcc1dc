package cli

import (
	"fmt"
	"os"
	"path/filepath"

	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"

	"weft.dev/weft/internal/neutron/provider/serve"
)

// providerCommand returns `weft provider`, which becomes the program weft-provider. The flags are checked before.
func providerCommand() *cobra.Command {
	cmd := serve.Describe("provider")
	cmd.Long += "\n\nIt is the program weft-provider, which is installed in the same directory as weft and can be run by itself."
	cmd.Example = "  weft provider --config /etc/kubestack.conf --listen 127.0.0.1:4237"
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		self, err := os.Executable()
		if err != nil {
			return fmt.Errorf("find this program's directory: %w", err)
		}
		program := filepath.Join(filepath.Dir(self), serve.Program)
		environment := os.Environ() //nolint:forbidigo // the program gets it unchanged
		if err := unix.Exec(program, append([]string{serve.Program}, serve.Arguments(cmd.Flags())...), environment); err != nil {
			return fmt.Errorf("run %s, which has to be installed in the same directory as weft: %w", program, err)
		}
		return nil
	}
	return cmd
}
