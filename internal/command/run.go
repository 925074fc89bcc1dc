package command

import (
	"context"
	"fmt"
	"os"
	"os/signal"
	"syscall"

	"github.com/spf13/cobra"
)

// Run executes cmd, whose context ends with SIGINT or SIGTERM. It prints an error with the program's name before it, and returns the exit
// code.
func Run(program string, cmd *cobra.Command) int {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	err := cmd.ExecuteContext(ctx)
	if err != nil && err.Error() != "" { // empty: everything is already printed
		_, _ = fmt.Fprintf(cmd.ErrOrStderr(), "%s: %s\n", program, err)
	}
	return ExitCode(err)
}
