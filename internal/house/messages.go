package house

import (
	"cmp"
	"go/ast"
	"go/parser"
	"slices"
	"strconv"
	"strings"
)

// printers returns the functions and methods that take a message, with the indices of the arguments that may be the message.
func printers() map[string][]int {
	return map[string][]int{
		"errors.New": {0}, "fmt.Errorf": {0}, "Errorf": {0, 1}, "Warn": {0}, "Info": {0}, "Error": {0}, "Debug": {0}, "warn": {1}, "fail": {1},
	}
}

// Messages returns the texts of errors and log lines in a folder of the module at root, by package, sorted and without duplicates. Tests
// and packages for tests are left out.
func Messages(root, folder string) (map[string][]string, error) {
	messages := map[string][]string{}
	skip := func(folder string) bool { return folder == "testdata" || strings.HasSuffix(folder, "test") }
	err := parse(root, folder, parser.SkipObjectResolution, skip, func(pkg string, file *ast.File) error {
		ast.Inspect(file, func(node ast.Node) bool {
			if call, ok := node.(*ast.CallExpr); ok {
				messages[pkg] = append(messages[pkg], texts(call)...)
			}
			return true
		})
		return nil
	})
	for pkg, all := range messages {
		slices.Sort(all)
		messages[pkg] = slices.Compact(all)
	}
	return messages, err
}

// texts returns the messages among a call's arguments.
func texts(call *ast.CallExpr) []string {
	name := ""
	switch fun := call.Fun.(type) {
	case *ast.Ident:
		name = fun.Name
	case *ast.SelectorExpr:
		name = fun.Sel.Name
		if pkg, ok := fun.X.(*ast.Ident); ok && printers()[pkg.Name+"."+name] != nil {
			name = pkg.Name + "." + name
		}
	}
	var found []string
	for _, index := range printers()[name] {
		if index >= len(call.Args) {
			continue
		}
		if text := constant(call.Args[index]); strings.Contains(text, " ") {
			found = append(found, text)
		}
	}
	return found
}

// constant returns the value of string literals joined by +; other operands count as %s.
func constant(expr ast.Expr) string {
	switch e := expr.(type) {
	case *ast.BasicLit:
		text, err := strconv.Unquote(e.Value)
		if err != nil {
			return ""
		}
		return text
	case *ast.BinaryExpr:
		left, right := constant(e.X), constant(e.Y)
		if left == "" && right == "" {
			return ""
		}
		return cmp.Or(left, "%s") + cmp.Or(right, "%s")
	}
	return ""
}
