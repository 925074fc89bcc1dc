package cli

import (
	"context"
	"fmt"
	"time"

	"github.com/spf13/cobra"

	"weft.dev/weft/internal/admin"
)

// answerTimeout is how long an agent may take for an answer that needs no reading back of engines.
const answerTimeout = 5 * time.Second

// adminFlags are the flags for the connection to an agent's admin socket.
type adminFlags struct {
	socket string
}

func (f *adminFlags) register(cmd *cobra.Command) {
	cmd.Flags().StringVar(&f.socket, "socket", admin.DefaultSocket, "the agent's admin socket")
}

func (f *adminFlags) client() *admin.Client { return &admin.Client{Socket: f.socket} }

func logLevelCommand() *cobra.Command {
	var flags adminFlags
	cmd := &cobra.Command{
		Use:   "log-level [debug|info|warn|error]",
		Short: "Show or change the log level of this node's agent",
		Long: "Shows or changes the least severe level that the agent of this node logs. The change lasts until the\n" +
			"agent's end; it starts with --log-level again. It needs root on the node, or in the agent's pod.",
		Example: "  # The log level of this node's agent\n  weft log-level\n\n" +
			"  # Log everything on one node of a cluster, and go back\n" +
			"  kubectl -n weft exec weft-agent-x7k2p -- /weft log-level debug\n" +
			"  kubectl -n weft exec weft-agent-x7k2p -- /weft log-level info",
		Args: cobra.MatchAll(cobra.MaximumNArgs(1), func(_ *cobra.Command, args []string) error {
			if len(args) == 0 {
				return nil
			}
			_, err := admin.ParseLevel(args[0])
			return err
		}),
		ValidArgs: []string{"debug", "info", "warn", "error"},
		RunE: func(cmd *cobra.Command, args []string) error {
			ctx, cancel := context.WithTimeout(cmd.Context(), answerTimeout)
			defer cancel()
			var level string
			var err error
			if len(args) == 0 {
				level, err = flags.client().LogLevel(ctx)
			} else {
				level, err = flags.client().SetLogLevel(ctx, args[0])
			}
			if err != nil {
				return err
			}
			_, err = fmt.Fprintln(cmd.OutOrStdout(), level)
			return err
		},
	}
	flags.register(cmd)
	return cmd
}
