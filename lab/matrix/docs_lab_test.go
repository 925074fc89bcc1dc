//go:build lab

package matrix

import (
	"bufio"
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// docCommands returns the commands of a page of the documentation from a heading on: indented lines that begin with one of the programs that the
// page has the reader run. A backslash at a line's end goes on with the next.
func docCommands(t *testing.T, page, heading string) []string {
	t.Helper()
	file, err := os.Open(page)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = file.Close() }()
	var commands []string
	inside, open := false, false
	for lines := bufio.NewScanner(file); lines.Scan(); {
		line := lines.Text()
		text, indented := strings.CutPrefix(line, "    ")
		switch {
		case strings.HasPrefix(line, heading):
			inside = true
		case !inside || !indented:
			open = false
		case open:
			commands[len(commands)-1] += "\n" + text
			open = strings.HasSuffix(text, `\`)
		case strings.HasPrefix(text, "kubectl ") || strings.HasPrefix(text, "bin/"):
			commands = append(commands, text)
			open = strings.HasSuffix(text, `\`)
		}
	}
	return commands
}

// followTour runs each command of the tour that a reader runs while the quick start's cluster is up. own is the lab's name.
func followTour(ctx context.Context, t *testing.T, own string) {
	t.Helper()
	root, err := filepath.Abs("../..")
	if err != nil {
		t.Fatal(err)
	}
	commands := docCommands(t, filepath.Join(root, "docs/start.md"), "## Look around")
	if len(commands) < 15 {
		t.Fatalf("docs/start.md has %d commands", len(commands))
	}
	for _, command := range commands {
		command = strings.ReplaceAll(command, "--name quickstart ", "--name "+own+" ")
		stop, cancel := context.WithTimeout(ctx, 2*time.Minute)
		cmd := exec.CommandContext(stop, "bash", "-c", `eval "$(bin/weft-lab --name `+own+` env)"; `+command)
		cmd.Dir = root
		out, err := cmd.CombinedOutput()
		cancel()
		if err != nil {
			t.Errorf("docs/start.md: %s\n%v\n%s", command, err, out)
		}
	}
}
