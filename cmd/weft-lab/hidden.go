package main

import (
	"github.com/spf13/cobra"

	"weft.dev/weft/lab/ground"
	"weft.dev/weft/lab/podruntime"
	"weft.dev/weft/lab/reporter"
	"weft.dev/weft/lab/supervisor"
)

// Commands that the lab itself starts.

func supervise() *cobra.Command {
	return &cobra.Command{
		Use: "supervise NAME", Hidden: true, Args: cobra.ExactArgs(1),
		RunE: func(_ *cobra.Command, args []string) error { return supervisor.Run(args[0]) },
	}
}

func hold() *cobra.Command {
	return &cobra.Command{
		Use: "hold CONFIG", Hidden: true, Args: cobra.ExactArgs(1),
		RunE: func(_ *cobra.Command, args []string) error { return ground.RunHold(args[0]) },
	}
}

func reporterCmd() *cobra.Command {
	return &cobra.Command{
		Use: "reporter ADDRESS", Hidden: true, Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error { return reporter.Run(cmd.Context(), args[0]) },
	}
}

func pods() *cobra.Command {
	return &cobra.Command{
		Use: "pods", Hidden: true, Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return podruntime.Run(cmd.Context()) },
	}
}
