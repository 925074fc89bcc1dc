package pages

import (
	"context"
	"errors"
	"fmt"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"
)

// limit is the time limit of a block.
const limit = 5 * time.Minute

// ErrNoBlock reports that no block with the given words is left.
var ErrNoBlock = errors.New("no block that is left has these words")

// Runner runs blocks against a lab.
type Runner struct {
	// Root is the directory of the source, in which blocks on the machine run.
	Root string
	// Bin is the directory of Weft's programs.
	Bin string
	// Lab is the lab's name.
	Lab string
	// Names replaces the names on pages by the lab's; nil: none.
	Names *strings.Replacer
}

// Run runs a block as one script, which stops at its first command that fails: on the machine, or on each of the block's nodes. The error has
// the script and its output.
func (r Runner) Run(ctx context.Context, b Block) error {
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	text, self := b.Text, filepath.Join(r.Bin, "weft-lab")
	if r.Names != nil {
		text = r.Names.Replace(text)
	}
	scripts := [][]string{{"bash", "-c", `set -eu; PATH=` + r.Bin + `:$PATH; eval "$(` + self + ` --name ` + r.Lab + ` env)"; ` + "\n" + text}}
	if len(b.Nodes) > 0 {
		scripts = nil
	}
	for _, node := range b.Nodes {
		scripts = append(scripts, []string{self, "--name", r.Lab, "exec", node, "--", "bash", "-euc", "PATH=" + r.Bin + ":$PATH\n" + text})
	}
	for _, argv := range scripts {
		cmd := exec.CommandContext(ctx, argv[0], argv[1:]...)
		cmd.Dir = r.Root
		if out, err := cmd.CombinedOutput(); err != nil {
			return fmt.Errorf("%s: %w\n%s\n%s", b, err, text, out)
		}
	}
	return nil
}

// Reading is a test's way through the blocks of one kind of lab, in an order of its own.
type Reading struct {
	Runner
	left []Block
}

// Read begins a way through all blocks for a lab of that kind.
func (r Runner) Read(kind string) (*Reading, error) {
	all, err := All(r.Root)
	if err != nil {
		return nil, err
	}
	return &Reading{Runner: r, left: slices.DeleteFunc(all, func(b Block) bool { return b.Lab != kind })}, nil
}

// Run runs the first block that is left and has these words.
func (r *Reading) Run(ctx context.Context, words string) error {
	i := slices.IndexFunc(r.left, func(b Block) bool { return strings.Contains(b.Text, words) })
	if i < 0 {
		return fmt.Errorf("%w: %q", ErrNoBlock, words)
	}
	b := r.left[i]
	r.left = slices.Delete(r.left, i, i+1)
	return r.Runner.Run(ctx, b)
}

// End returns an error that names the blocks that have not run.
func (r *Reading) End() error {
	var errs []error
	for _, b := range r.left {
		errs = append(errs, fmt.Errorf("%s is marked for this lab, and the test does not run it\n%s", b, b.Text))
	}
	return errors.Join(errs...)
}

// Begin begins a test's way through all blocks for a lab of that kind. The function that it returns runs the first block that is left and has
// these words. The test fails if a block fails, or is left when the test ends.
func Begin(t testing.TB, r Runner, kind string) func(ctx context.Context, words string) {
	t.Helper()
	reading, err := r.Read(kind)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := reading.End(); err != nil && !t.Failed() {
			t.Error(err)
		}
	})
	return func(ctx context.Context, words string) {
		t.Helper()
		if err := reading.Run(ctx, words); err != nil {
			t.Fatal(err)
		}
	}
}
