package process

import (
	"context"
	"fmt"
	"os"
	"os/signal"
	"strconv"
	"time"

	"golang.org/x/sys/unix"

	"weft.dev/weft/lab/machine"
)

// Adopt makes the calling process the subreaper of orphans below it, and reaps them until the context ends: shims and their containers,
// daemons whose parents have ended.
func (g *Group) Adopt(ctx context.Context) error {
	if err := unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0); err != nil {
		return fmt.Errorf("become the reaper of the lab's processes: %w", err)
	}
	ended := make(chan os.Signal, 1)
	signal.Notify(ended, unix.SIGCHLD)
	go func() {
		defer signal.Stop(ended)
		for {
			select {
			case <-ctx.Done():
				return
			case <-ended:
			case <-time.After(5 * time.Second): // one signal may stand for several ended processes
			}
			g.reap()
		}
	}()
	return nil
}

// reap reaps ended children that are not the group's; those of the group are waited for by their own goroutines.
func (g *Group) reap() {
	entries, err := os.ReadDir("/proc")
	if err != nil {
		return
	}
	self := os.Getpid()
	for _, e := range entries {
		pid, err := strconv.Atoi(e.Name())
		if err != nil {
			continue
		}
		s, err := machine.Stat(pid)
		if err != nil || s.Parent != self || s.State != 'Z' {
			continue
		}
		g.reapOne(pid)
	}
}

func (g *Group) reapOne(pid int) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if !g.pids[pid] {
		_, _ = unix.Wait4(pid, nil, unix.WNOHANG, nil)
	}
}
