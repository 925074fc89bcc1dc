package main

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"time"

	"github.com/spf13/cobra"

	"weft.dev/weft/lab/kubebuild"
	"weft.dev/weft/lab/plan"
	"weft.dev/weft/lab/vm"
)

// exitCode is the exit code of a command that ran in the virtual machine and printed its own errors.
type exitCode int

func (e exitCode) Error() string { return fmt.Sprintf("exit code %d", int(e)) }

// ExitCode returns the command's exit code.
func (e exitCode) ExitCode() int { return int(e) }

func virtual() *cobra.Command {
	var limit time.Duration
	c := vm.Config{Empty: []string{plan.StateRoot}}
	cmd := &cobra.Command{
		Use: "vm -- COMMAND...", Short: "Run a command on a kernel with openvswitch.ko: a virtual machine that sees this machine's files", Args: cobra.MinimumNArgs(1),
		Long: `Runs a command as root in a virtual machine with Debian's kernel, which has Open vSwitch's module. The command sees
this machine's files; what it changes is gone with the virtual machine. There is no network and no input. Its output and
its exit code are the command's own.`,
		Example: "  weft-lab vm -- bin/weft-lab up --runtime cni --datapath system",
		RunE: func(cmd *cobra.Command, args []string) error {
			ctx, cancel := context.WithTimeoutCause(cmd.Context(), limit, fmt.Errorf("not within %s (--timeout)", limit))
			defer cancel()
			if err := completeVM(&c, args); err != nil {
				return err
			}
			c.Output = cmd.OutOrStdout()
			code, err := vm.Run(ctx, c)
			if err == nil && code != 0 {
				err = exitCode(code)
			}
			return err
		},
	}
	f := cmd.Flags()
	f.IntVar(&c.CPUs, "cpus", 2, "processors")
	f.IntVar(&c.Memory, "memory", 3072, "memory in MiB; what the command writes to files is in it")
	f.StringSliceVar(&c.Modules, "modules", []string{"openvswitch", "br_netfilter"}, "kernel modules to load first")
	f.StringVar(&c.Accel, "accel", "", "qemu's accelerator, for instance kvm (default: emulation in software, which works everywhere)")
	f.DurationVar(&limit, "timeout", 30*time.Minute, "time limit of the command")
	return cmd
}

// completeVM sets the command, the caller's working directory, and an environment with only the variables that tests and labs read.
func completeVM(c *vm.Config, args []string) error {
	program, err := exec.LookPath(args[0])
	if err != nil {
		return fmt.Errorf("find %s: %w", args[0], err)
	}
	if program, err = filepath.Abs(program); err != nil {
		return fmt.Errorf("find %s: %w", args[0], err)
	}
	c.Argv = append([]string{program}, args[1:]...)
	if c.Dir, err = os.Getwd(); err != nil {
		return fmt.Errorf("find the working directory: %w", err)
	}
	if c.Init, err = os.Executable(); err != nil {
		return fmt.Errorf("find the running program: %w", err)
	}
	cache, err := filepath.Abs(kubebuild.Cache())
	if err != nil {
		return fmt.Errorf("find the lab's cache: %w", err)
	}
	c.Cache = filepath.Join(cache, "vm")
	c.Env = []string{"PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", "HOME=/root", "WEFT_LAB_CACHE=" + cache}
	return nil
}
