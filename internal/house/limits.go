package house

import (
	"bytes"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
)

// Sizes are the sizes that the house limits. Types are named by package and name ("internal/agent.Options"), packages by their folders
// below the root.
type Sizes struct {
	Methods map[string]int // of each type
	Fields  map[string]int // of each struct, embedded types included
	Lines   map[string]int // of each package: code, comments and blank lines
}

// Measure returns the sizes of the code in the folder root. Generated files are not counted, nor folders of test data. Lines and fields of
// test files are not counted either; methods are, because a test's scene grows like any other type. A struct whose fields all have JSON tags
// is the form of a record or a message, which its format decides: its fields are not counted, nor are those of the API's types in api/.
func Measure(root string) (Sizes, error) {
	sizes := Sizes{Methods: map[string]int{}, Fields: map[string]int{}, Lines: map[string]int{}}
	err := filepath.WalkDir(root, func(path string, entry fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case entry.IsDir() && path != root && (entry.Name() == "testdata" || entry.Name() == "bin" || strings.HasPrefix(entry.Name(), ".")):
			return fs.SkipDir
		case entry.IsDir() || !strings.HasSuffix(path, ".go"):
			return nil
		}
		folder, err := filepath.Rel(root, filepath.Dir(path))
		if err != nil {
			return err
		}
		return sizes.add(path, filepath.ToSlash(folder))
	})
	return sizes, err
}

// add counts one file of the package in folder.
func (s Sizes) add(path, folder string) error {
	text, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	file, err := parser.ParseFile(token.NewFileSet(), path, text, parser.ParseComments|parser.SkipObjectResolution)
	if err != nil {
		return fmt.Errorf("sizes: %w", err)
	}
	if ast.IsGenerated(file) {
		return nil
	}
	test := strings.HasSuffix(path, "_test.go")
	if !test {
		s.Lines[folder] += bytes.Count(text, []byte("\n"))
	}
	pkg := folder
	if test && strings.HasSuffix(file.Name.Name, "_test") {
		pkg += "_test"
	}
	for _, declaration := range file.Decls {
		switch d := declaration.(type) {
		case *ast.FuncDecl:
			if d.Recv != nil {
				s.Methods[pkg+"."+receiver(d.Recv.List[0].Type)]++
			}
		case *ast.GenDecl:
			if !test && !strings.HasPrefix(folder, "api/") {
				s.addFields(d, pkg)
			}
		}
	}
	return nil
}

// addFields counts the fields of the structs that d declares.
func (s Sizes) addFields(d *ast.GenDecl, pkg string) {
	for _, spec := range d.Specs {
		named, ok := spec.(*ast.TypeSpec)
		if !ok {
			continue
		}
		if structure, ok := named.Type.(*ast.StructType); ok && !isRecord(structure) {
			s.Fields[pkg+"."+named.Name.Name] = structure.Fields.NumFields()
		}
	}
}

// receiver returns the name of a receiver's type, without pointer and type parameters.
func receiver(expr ast.Expr) string {
	switch e := expr.(type) {
	case *ast.Ident:
		return e.Name
	case *ast.StarExpr:
		return receiver(e.X)
	case *ast.ParenExpr:
		return receiver(e.X)
	case *ast.IndexExpr:
		return receiver(e.X)
	case *ast.IndexListExpr:
		return receiver(e.X)
	default:
		return "?"
	}
}

// isRecord reports whether all fields of a struct have JSON tags.
func isRecord(structure *ast.StructType) bool {
	for _, field := range structure.Fields.List {
		if field.Tag == nil || !strings.Contains(field.Tag.Value, `json:"`) {
			return false
		}
	}
	return structure.Fields.NumFields() > 0
}
