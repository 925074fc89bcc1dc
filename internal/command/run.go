package command

import (
	"context"
	"fmt"
	"os"
	"os/signal"
	"syscall"

	"github.com/spf13/cobra"
)

// Run runs a program's command until it ends, or the program is told to end. It prints the error, after the program's name, and returns the
// program's exit code.
func Run(program string, cmd *cobra.Command) int {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	err := cmd.ExecuteContext(ctx)
	if err != nil && err.Error() != "" { // empty: everything is already printed
		_, _ = fmt.Fprintf(cmd.ErrOrStderr(), "%s: %s\n", program, err)
	}
	return ExitCode(err)
}
