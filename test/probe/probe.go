// Package probe looks at a lab from outside, as its nodes' own tools show it: what is programmed, what there is how many
// of, who runs. Suites judge by it what a fault, or a crowd of pods, has left.
package probe

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"slices"
	"strings"
	"syscall"
	"time"

	"weft.dev/weft/internal/admin"
	"weft.dev/weft/lab"
	"weft.dev/weft/lab/process"
	"weft.dev/weft/test/traffic"
)

// Patience is how long suites wait for what happens by itself: long, for it may happen in a virtual machine whose
// processor is emulated, on a machine with other work.
const Patience = 2 * time.Minute

// look is how often Await looks again.
const look = 10 * time.Millisecond

// Await waits until f returns nil, at most for limit, and returns how long that took. Its error is what f body last.
func Await(ctx context.Context, limit time.Duration, what string, f func(context.Context) error) (time.Duration, error) {
	begin := time.Now()
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	ticker := time.NewTicker(look)
	defer ticker.Stop()
	var err error
	for {
		now := f(ctx)
		if now == nil {
			return time.Since(begin), nil
		}
		if err == nil || ctx.Err() == nil { // else it was the end of the wait that failed
			err = now
		}
		select {
		case <-ctx.Done():
			return time.Since(begin), fmt.Errorf("%s: not within %s: %w", what, limit, err)
		case <-ticker.C:
		}
	}
}

// Run runs a command and returns its output. What it complains of is in the error, if there is one: a switch's tools warn
// on a machine that is slow, and are right all the same.
func Run(ctx context.Context, argv []string) (string, error) {
	var complaint strings.Builder
	cmd := exec.CommandContext(ctx, argv[0], argv[1:]...)
	cmd.Stderr = &complaint
	out, err := cmd.Output()
	if err != nil {
		return string(out), fmt.Errorf("%s: %w: %s%s", strings.Join(argv, " "), err, out, &complaint)
	}
	return string(out), nil
}

// Output runs a command and returns its output, as Run does, without the space around it.
func Output(ctx context.Context, argv ...string) (string, error) {
	out, err := Run(ctx, argv)
	return strings.TrimSpace(out), err
}

// Ready asks a node's agent whether it serves, as its readiness probe does.
func Ready(ctx context.Context, n lab.Node) error {
	_, err := AskAgent(ctx, n, "/readyz")
	return err
}

// AgentState returns the state of a node's agent, as its admin socket reports it.
func AgentState(ctx context.Context, n lab.Node) (admin.State, error) {
	client := admin.Client{Socket: n.Root(admin.DefaultSocket)}
	return client.State(ctx)
}

// AskAgent gets a page of an agent's health endpoint. A page that is not well is an error.
func AskAgent(ctx context.Context, n lab.Node, page string) (string, error) {
	return ask(ctx, n, "127.0.0.1:9469", page)
}

// AskController gets a page of the health endpoint of the controller that the chart runs on a node.
func AskController(ctx context.Context, n lab.Node, page string) (string, error) {
	return ask(ctx, n, "127.0.0.1:9479", page)
}

// answerTime bounds one request for a page: a busy program may take seconds.
const answerTime = 10 * time.Second

func ask(ctx context.Context, n lab.Node, at, page string) (string, error) {
	client := &http.Client{Timeout: answerTime, Transport: &http.Transport{
		DisableKeepAlives: true,
		DialContext: func(_ context.Context, protocol, address string) (conn net.Conn, err error) {
			err = traffic.In(n.Netns, func() (err error) {
				conn, err = net.DialTimeout(protocol, address, answerTime)
				return err
			})
			return conn, err
		},
	}}
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+at+page, nil)
	if err != nil {
		return "", err
	}
	response, err := client.Do(request)
	if err != nil {
		return "", err
	}
	defer func() { _ = response.Body.Close() }()
	body, err := io.ReadAll(response.Body)
	if err == nil && response.StatusCode != http.StatusOK {
		err = fmt.Errorf("%s: %s", response.Status, body)
	}
	return string(body), err
}

// errNotRunning is the error for a program that is not running at the moment.
var errNotRunning = errors.New("the program does not run")

// Program returns what is known of one of the lab's programs, which runs.
func Program(ctx context.Context, c *lab.Cluster, name string) (process.Status, error) {
	all, err := c.Programs(ctx)
	if err != nil {
		return process.Status{}, err
	}
	i := slices.IndexFunc(all, func(s process.Status) bool { return s.Name == name })
	if i < 0 || all[i].Pid == 0 {
		return process.Status{}, fmt.Errorf("%s: %w", name, errNotRunning)
	}
	return all[i], nil
}

// Signal sends a signal to one of the lab's programs, once it runs, and returns its number.
func Signal(ctx context.Context, c *lab.Cluster, name string, signal syscall.Signal) (pid int, err error) {
	_, err = Await(ctx, Patience, name+" running", func(ctx context.Context) error {
		status, err := Program(ctx, c, name)
		pid = status.Pid
		return err
	})
	if err != nil {
		return 0, err
	}
	if err := syscall.Kill(pid, signal); err != nil {
		return 0, fmt.Errorf("%s: %w", name, err)
	}
	return pid, nil
}

// Kill sends a signal to one of the lab's programs, which its supervisor then starts again, and waits until that has
// happened.
func Kill(ctx context.Context, c *lab.Cluster, name string, signal syscall.Signal) error {
	old, err := Signal(ctx, c, name, signal)
	if err != nil {
		return err
	}
	_, err = Await(ctx, Patience, name+" running again", func(ctx context.Context) error {
		now, err := Program(ctx, c, name)
		if err == nil && now.Pid == old {
			return fmt.Errorf("%s still has the process ID %d", name, old)
		}
		return err
	})
	return err
}

// Log returns what one of the lab's programs has logged.
func Log(ctx context.Context, c *lab.Cluster, name string) (string, error) {
	status, err := Program(ctx, c, name)
	if err != nil {
		return "", err
	}
	raw, err := os.ReadFile(status.Log)
	if err != nil {
		return "", fmt.Errorf("the log of %s: %w", name, err)
	}
	return string(raw), nil
}
