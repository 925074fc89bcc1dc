// Package extension is the engine of flannel's extension backend: the administrator's commands connect the nodes. Commands run without a
// shell: words are separated by white space, and $NAME or ${NAME} in a word is replaced by a variable of the environment. Data of other
// nodes reaches a command only by variables, as parsed addresses, and by its input, never as a word.
package extension

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net/netip"
	"os"
	"os/exec"
	"strings"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	"weft.dev/weft/internal/flannel/lease"
	"weft.dev/weft/internal/flannel/netconf"
	"weft.dev/weft/internal/reconcile"
)

// Key names another node's subnets.
type Key struct{ Subnet, Subnet6 netip.Prefix }

// Item is another node, with the commands that connect and disconnect it.
type Item struct {
	Key
	// Public and Public6 are the node's addresses, Input is the output of its start command.
	Public, Public6 netip.Addr
	Input           string
	// Add and Remove are command lines; empty: no command.
	Add, Remove string
}

// Equal implements reconcile.Value.
func (i Item) Equal(other Item) bool { return i == other }

// Compile returns the items of another node's lease.
func Compile(b netconf.Extension, l lease.Lease) map[Key]Item {
	if l.Backend != b.Type() || (!l.Subnet.IsValid() && !l.Subnet6.IsValid()) {
		return nil
	}
	i := Item{
		Key: Key{l.Subnet, l.Subnet6}, Public: l.PublicIP, Public6: l.PublicIP6, Add: b.SubnetAdd, Remove: b.SubnetRemove,
	}
	if data, ok := l.Data.(lease.Extension); ok {
		i.Input = data.Output
	}
	return map[Key]Item{i.Key: i}
}

func (i Item) variables() []string {
	return []string{
		"SUBNET=" + text(i.Subnet), "IPV6SUBNET=" + text(i.Subnet6), "PUBLIC_IP=" + text(i.Public), "PUBLIC_IPV6=" + text(i.Public6),
	}
}

// text is empty for an invalid address or range.
func text(v interface {
	IsValid() bool
	String() string
},
) string {
	if !v.IsValid() {
		return ""
	}
	return v.String()
}

// Before runs the command that precedes the lease and returns its output: other nodes' commands get it as input.
func Before(ctx context.Context, b netconf.Extension) (string, error) {
	if b.PreStartup == "" {
		return "", nil
	}
	output, err := run(ctx, b.PreStartup, nil, "")
	if err != nil {
		return "", fmt.Errorf("Backend.PreStartupCommand: %w", err) //nolint:revive,staticcheck // begins with a key
	}
	if _, err := json.Marshal(output); err != nil {
		return "", fmt.Errorf("Backend.PreStartupCommand: its output is no text: %w", err) //nolint:revive,staticcheck // begins with a key
	}
	return output, nil
}

// After runs the command that follows the lease.
func After(ctx context.Context, b netconf.Extension, network netip.Prefix, own lease.Lease) error {
	if b.PostStartup == "" {
		return nil
	}
	i := Item{Key: Key{own.Subnet, own.Subnet6}, Public: own.PublicIP, Public6: own.PublicIP6}
	if _, err := run(ctx, b.PostStartup, append(i.variables(), "NETWORK="+text(network)), ""); err != nil {
		return fmt.Errorf("Backend.PostStartupCommand: %w", err) //nolint:revive,staticcheck // begins with a key
	}
	return nil
}

// Engine runs the commands of other nodes' leases. What the commands did cannot be read back: an engine records only what it ran itself.
type Engine struct {
	log *slog.Logger

	mu   sync.Mutex
	done map[Key]Item
}

// NewEngine returns an engine for which no command has run.
func NewEngine(log *slog.Logger) *Engine { return &Engine{log: log, done: map[Key]Item{}} }

// Read implements reconcile.Engine.
func (e *Engine) Read(context.Context) (map[Key]Item, error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	return maps.Clone(e.done), nil
}

// together limits how many commands run at a time.
const together = 8

// Commit implements reconcile.Engine. A command that fails, or does not end in time, is reported by its key.
func (e *Engine) Commit(ctx context.Context, change reconcile.Change[Key, Item]) error {
	failed := map[Key]error{}
	report := func(key Key, err error, done func()) {
		e.mu.Lock()
		defer e.mu.Unlock()
		if err != nil {
			failed[key] = err
			return
		}
		done()
	}
	var removals, additions errgroup.Group
	removals.SetLimit(together)
	additions.SetLimit(together)
	for key, item := range change.Delete {
		removals.Go(func() error {
			report(key, e.each(ctx, "SubnetRemoveCommand", item.Remove, item), func() { delete(e.done, key) })
			return nil
		})
	}
	_ = removals.Wait() // errors are in failed
	for key, item := range change.Set {
		additions.Go(func() error {
			report(key, e.each(ctx, "SubnetAddCommand", item.Add, item), func() { e.done[key] = item })
			return nil
		})
	}
	_ = additions.Wait()
	if len(failed) > 0 {
		return &reconcile.PartialError[Key]{Failed: failed}
	}
	return nil
}

func (e *Engine) each(ctx context.Context, name, command string, item Item) error {
	if command == "" {
		return nil
	}
	output, err := run(ctx, command, item.variables(), item.Input)
	if err != nil {
		return fmt.Errorf("command Backend.%s for %s: %w", name, strings.TrimSpace(text(item.Subnet)+" "+text(item.Subnet6)), err)
	}
	e.log.Debug("command has run", "command", name, "subnet", item.Subnet, "output", output)
	return nil
}

// patience limits the run time of a command.
const patience = 30 * time.Second

// run executes a command without a shell and returns its output.
func run(ctx context.Context, command string, variables []string, input string) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	environment := append(os.Environ(), variables...)
	words := strings.Fields(command)
	for i, word := range words {
		words[i] = os.Expand(word, func(name string) string { return value(environment, name) })
	}
	cmd := exec.CommandContext(ctx, words[0], words[1:]...) //nolint:gosec // the administrator's command
	cmd.Env = environment
	cmd.Stdin = strings.NewReader(input + "\n")
	cmd.WaitDelay = time.Second // processes that the command started may keep its output open
	var output bytes.Buffer
	cmd.Stdout, cmd.Stderr = &output, &output
	err := cmd.Run()
	if errors.Is(ctx.Err(), context.DeadlineExceeded) {
		err = fmt.Errorf("not ended after %s", patience)
	}
	printed := strings.TrimSpace(output.String())
	if err != nil {
		return "", fmt.Errorf("%s: %w: %s", command, err, printed)
	}
	return printed, nil
}

// value returns a variable; if there are two with one name, the last counts, as in the command's environment.
func value(environment []string, name string) string {
	out := ""
	for _, variable := range environment {
		if v, ok := strings.CutPrefix(variable, name+"="); ok {
			out = v
		}
	}
	return out
}
