// Select prints the package patterns of the lab's test suites that the change since a revision can reach, one a line.
//
// Usage: go run ./test/suites/select [-base REVISION]      without a revision: all suites
package main

import (
	"context"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"slices"
	"strings"

	"weft.dev/weft/test/suites"
)

const module = "weft.dev/weft/"

func main() {
	base := flag.String("base", "", "revision before the change; empty selects all suites")
	flag.Parse()
	if err := run(context.Background(), *base); err != nil {
		fmt.Fprintln(os.Stderr, "select suites:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, base string) error {
	all := suites.All()
	var names []string
	for _, suite := range all {
		names = append(names, suite.Name)
	}
	if base != "" {
		changed, err := lines(ctx, "git", "diff", "--name-only", base)
		if err != nil {
			return err
		}
		imports := map[string][]string{}
		for _, suite := range all {
			if imports[suite.Name], err = importsOf(ctx, suite); err != nil {
				return err
			}
		}
		names = suites.Select(all, changed, imports)
	}
	for _, suite := range all {
		if !slices.Contains(names, suite.Name) {
			continue
		}
		for _, pattern := range suite.Tests {
			folder := strings.TrimSuffix(strings.TrimPrefix(pattern, "./"), "/...")
			if _, err := os.Stat(folder); err == nil {
				_, _ = fmt.Fprintln(os.Stdout, pattern)
			}
		}
	}
	return nil
}

// importsOf returns the folders of the module's packages that a suite's roof imports.
func importsOf(ctx context.Context, suite suites.Suite) ([]string, error) {
	argv := []string{"go", "list", "-deps", "-f", "{{.ImportPath}}"}
	for _, roof := range suite.Roof {
		if _, err := os.Stat(roof); err == nil && !strings.HasPrefix(roof, "test/") && !strings.HasPrefix(roof, "lab/") {
			argv = append(argv, "./"+roof+"/...")
		}
	}
	if len(argv) == 5 {
		return nil, nil
	}
	packages, err := lines(ctx, argv...)
	if err != nil {
		return nil, err
	}
	var folders []string
	for _, p := range packages {
		if folder, ours := strings.CutPrefix(p, module); ours {
			folders = append(folders, folder)
		}
	}
	return folders, nil
}

func lines(ctx context.Context, argv ...string) ([]string, error) {
	cmd := exec.CommandContext(ctx, argv[0], argv[1:]...)
	cmd.Stderr = os.Stderr
	out, err := cmd.Output()
	if err != nil {
		return nil, fmt.Errorf("%s: %w", strings.Join(argv, " "), err)
	}
	return strings.Fields(string(out)), nil
}
