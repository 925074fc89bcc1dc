// Package flannelbuild builds the original flanneld and flannel's CNI plugin from their Go modules on first use and caches them.
package flannelbuild

import (
	"context"
	"fmt"
	"os"
	"path/filepath"

	"weft.dev/weft/lab/kubebuild"
)

// Program is one of the original programs.
type Program struct {
	file   string // in the cache; it includes the version
	module string // the folder of the module that requires it, below lab
	pkg    string
	cgo    string
}

// Flanneld is the original flanneld. Its backend udp is written in C.
func Flanneld() Program {
	return Program{file: "flanneld-v0.28.9", module: "flanneld", pkg: "github.com/flannel-io/flannel", cgo: "CGO_ENABLED=1"}
}

// Plugin is the original CNI plugin of flannel.
func Plugin() Program {
	return Program{file: "flannel-plugin-v0.9.1", module: "flannelcni", pkg: "github.com/containernetworking/plugins/plugins/meta/flannel", cgo: "CGO_ENABLED=0"}
}

// Path returns the program's path in the cache.
func (p Program) Path() string { return filepath.Join(kubebuild.Cache(), "flannel", p.file) }

// String returns the program's name with its version.
func (p Program) String() string { return p.file }

// Missing reports whether the program has not been built yet.
func (p Program) Missing() bool {
	_, err := os.Stat(p.Path())
	return err != nil
}

// Run runs a command to its end.
type Run func(ctx context.Context, stdin string, argv ...string) (string, error)

// Ensure builds the program if it is missing. modules is the folder of the laboratory's modules, lab in the sources. The program gets its
// name only when it is complete, so any number of processes may build it at the same time.
func (p Program) Ensure(ctx context.Context, modules string, run Run) error {
	if !p.Missing() {
		return nil
	}
	path := p.Path()
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return fmt.Errorf("make the cache of flannel's programs: %w", err)
	}
	partial := fmt.Sprintf("%s.%d", path, os.Getpid())
	if _, err := run(ctx, "", "env", "-C", filepath.Join(modules, p.module), p.cgo, "GOWORK=off", "go", "build", "-o", partial, p.pkg); err != nil {
		return fmt.Errorf("build %s: %w", p, err)
	}
	if err := os.Rename(partial, path); err != nil {
		return fmt.Errorf("keep %s: %w", p, err)
	}
	return nil
}
