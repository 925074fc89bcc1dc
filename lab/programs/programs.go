// Package programs builds Weft's programs for labs, with the flags of `make build`, so that a test run compiles nothing twice.
package programs

import (
	"context"
	"fmt"
	"os"
	"os/exec"
)

// FolderVariable is the environment variable with the directory of programs that are already built. build/test sets it.
const FolderVariable = "WEFT_LAB_BIN"

// All returns the names of the programs that a lab runs.
func All() []string { return []string{"weft", "weft-cni", "weft-flannel", "weft-provider", "weft-lab"} }

// Build builds the named programs of the source tree at root into dir.
func Build(ctx context.Context, root, dir string, names ...string) error {
	args := []string{"build", "-trimpath", "-buildvcs=false", "-tags", "grpcnotrace", "-ldflags", "-s -w", "-o", dir + "/"}
	for _, name := range names {
		args = append(args, "./cmd/"+name)
	}
	cmd := exec.CommandContext(ctx, "go", args...)
	cmd.Dir, cmd.Env = root, append(os.Environ(), "CGO_ENABLED=0")
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("build %v in %s: %w\n%s", names, root, err, out)
	}
	return nil
}

// Folder returns a directory with all programs of the source tree at root: the one in FolderVariable, else dir, into which it builds
// them.
func Folder(ctx context.Context, root, dir string) (string, error) {
	if built := os.Getenv(FolderVariable); built != "" { //nolint:forbidigo // one folder for every test of a run
		return built, nil
	}
	return dir, Build(ctx, root, dir, All()...)
}
