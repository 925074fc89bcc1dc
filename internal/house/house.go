// Package house compares the imports and the messages of the code with ARCHITECTURE.md and the documentation.
package house

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
)

const module = "weft.dev/weft/"

// Imports returns which packages of this module each package in a folder imports, without tests. Packages are named by their folders below
// root.
func Imports(root, folder string) (map[string][]string, error) {
	imports := map[string][]string{}
	skip := func(folder string) bool { return folder == "testdata" }
	err := parse(root, folder, parser.ImportsOnly, skip, func(pkg string, file *ast.File) error {
		all := imports[pkg]
		for _, spec := range file.Imports {
			name, err := strconv.Unquote(spec.Path.Value)
			if err != nil {
				return fmt.Errorf("imports of %s: %w", pkg, err)
			}
			if own, ours := strings.CutPrefix(name, module); ours && !slices.Contains(all, own) {
				all = append(all, own)
			}
		}
		imports[pkg] = all
		return nil
	})
	return imports, err
}

// parse calls visit for each source file in a folder, except for tests, and for folders whose names skip selects. pkg is the package's folder
// below root.
func parse(root, folder string, mode parser.Mode, skip func(folder string) bool, visit func(pkg string, file *ast.File) error) error {
	return filepath.WalkDir(filepath.Join(root, folder), func(path string, entry fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case entry.IsDir() && skip(entry.Name()):
			return fs.SkipDir
		case entry.IsDir() || !strings.HasSuffix(path, ".go") || strings.HasSuffix(path, "_test.go"):
			return nil
		}
		file, err := parser.ParseFile(token.NewFileSet(), path, nil, mode)
		if err != nil {
			return fmt.Errorf("parse: %w", err)
		}
		pkg, err := filepath.Rel(root, filepath.Dir(path))
		if err != nil {
			return err
		}
		return visit(pkg, file)
	})
}
