// Package program stops and kills the programs of a lab, and waits until they serve again.
package program

import (
	"context"
	"errors"
	"fmt"
	"syscall"
	"time"

	"weft.dev/weft/lab"
	"weft.dev/weft/test/probe"
)

// Agent returns the name of a node's agent.
func Agent(n lab.Node) string { return n.Name + "/weft-agent" }

// Switch returns the name of a node's ovs-vswitchd.
func Switch(n lab.Node) string { return n.Name + "/ovs-vswitchd" }

// Database returns the name of a node's ovsdb-server.
func Database(n lab.Node) string { return n.Name + "/ovsdb-server" }

// RecoveryTime is the time limit for recovery from a fault. It is long: the loops retry after up to 10 s.
const RecoveryTime = time.Minute

// Hang stops a program for a while, during which f runs, and then continues it.
func Hang(ctx context.Context, c *lab.Cluster, name string, length time.Duration, f func() error) (err error) {
	if _, err := probe.Signal(ctx, c, name, syscall.SIGSTOP); err != nil {
		return err
	}
	defer func() {
		_, contErr := probe.Signal(context.WithoutCancel(ctx), c, name, syscall.SIGCONT)
		err = errors.Join(err, contErr)
	}()
	over := time.After(length)
	err = f()
	select {
	case <-over:
	case <-ctx.Done():
	}
	return err
}

// WhileAway runs f while a node has no agent: the agent is stopped first, so that it processes nothing, and killed afterwards.
func WhileAway(ctx context.Context, c *lab.Cluster, n lab.Node, f func() error) error {
	old, err := probe.Signal(ctx, c, Agent(n), syscall.SIGSTOP)
	if err != nil {
		return err
	}
	err = f()
	if killErr := syscall.Kill(old, syscall.SIGKILL); killErr != nil {
		return errors.Join(err, killErr)
	}
	return errors.Join(err, AwaitAgent(ctx, c, n, old))
}

// AwaitAgent waits until a node's agent has another PID than old, and serves.
func AwaitAgent(ctx context.Context, c *lab.Cluster, n lab.Node, old int) error {
	_, err := probe.Await(ctx, probe.Patience, "the agent of "+n.Name+" serving again", func(ctx context.Context) error {
		now, err := probe.Program(ctx, c, Agent(n))
		if err != nil {
			return err
		}
		if now.Pid == old {
			return fmt.Errorf("it still has the process ID %d", old)
		}
		return probe.Ready(ctx, n)
	})
	return err
}
