package cli

import (
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/spf13/cobra"
)

// docsCommands returns the arguments of each command of weft on a page: in code blocks, and between backquotes.
func docsCommands(page string) [][]string {
	call, end := regexp.MustCompile(`(?:^|-- |sudo )(?:\S*/)?weft ([a-z-].*)$`), regexp.MustCompile(`\s*(?:[|;>&#\\]|: ).*$`)
	var all [][]string
	for _, text := range []string{`(?m)^(?:    |\t)(?:[$#] )?(.*)$`, "`([^`\n]+)`"} {
		pattern := regexp.MustCompile(text)
		for _, line := range pattern.FindAllStringSubmatch(page, -1) {
			found := call.FindStringSubmatch(strings.TrimSpace(line[1]))
			if found == nil {
				continue
			}
			if words := strings.Fields(end.ReplaceAllString(found[1], "")); len(words) > 0 {
				all = append(all, words)
			}
		}
	}
	return all
}

// Every weft command on a page of the documentation exists, with valid flags and arguments.
func TestDocsCommandsParse(t *testing.T) {
	pages, err := filepath.Glob(filepath.Join("..", "..", "docs", "*.md"))
	if err != nil {
		t.Fatal(err)
	}
	for _, wrong := range []string{"nonsense", "status --nonsense", "flows --node", "tenant nonsense", "diff nonsense"} {
		if parses(strings.Fields(wrong)) == nil {
			t.Errorf("weft %s is taken for a command", wrong)
		}
	}
	parsed := 0
	for _, page := range append(pages, filepath.Join("..", "..", "README.md")) {
		text, err := os.ReadFile(page)
		if err != nil {
			t.Fatal(err)
		}
		for _, args := range docsCommands(string(text)) {
			if err := parses(args); err != nil {
				t.Errorf("%s: weft %s: %v", filepath.Base(page), strings.Join(args, " "), err)
			}
			parsed++
		}
	}
	if parsed < 40 {
		t.Errorf("only %d commands were found", parsed)
	}
}

// parses returns the error with which weft would refuse the arguments before it runs a command.
func parses(args []string) error {
	root := Weft(Environment{})
	root.InitDefaultHelpCmd()
	command, rest, err := root.Find(args)
	if err != nil {
		return err
	}
	if err := command.ParseFlags(rest); err != nil {
		return err
	}
	values := command.Flags().Args()
	if command.HasSubCommands() && len(values) > 0 {
		return cobra.NoArgs(command, values)
	}
	if len(values) == 0 { // between backquotes, a command's name
		return nil
	}
	if slices.ContainsFunc(values, func(v string) bool { return strings.Trim(v, "[]|.ABCDEFGHIJKLMNOPQRSTUVWXYZ/") == "" }) {
		return nil // placeholders
	}
	return command.ValidateArgs(values)
}
