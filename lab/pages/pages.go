// Package pages reads the commands on the pages of the documentation, so that tests can run them.
//
// A code block that begins with a command has a comment above it that says where it runs:
//
//	<!-- run: quickstart -->       on the machine, against the lab of that name
//	<!-- run: quickstart n1 -->    on a node of that lab; n1,n2: on each of these
//	<!-- not run: REASON -->
//
// A block of lines that begin with "$ ", between which output is shown, has only those as commands. Any other block is one script.
package pages

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
)

// Block is a code block that begins with a command.
type Block struct {
	Page string // the file's name
	Line int    // of the block's first line, from 1
	Text string // the commands, without the output
	// Lab is the kind of lab that the block runs in, and Nodes the nodes of it, none for the machine. Without a lab, the block is not run, for
	// Reason.
	Lab, Reason string
	Nodes       []string
}

// Marked reports whether the page says where the block runs, or why it is not run.
func (b Block) Marked() bool { return b.Lab != "" || b.Reason != "" }

// String is where the block is.
func (b Block) String() string { return fmt.Sprintf("%s:%d", b.Page, b.Line) }

var ( //nolint:gochecknoglobals // constants
	command = regexp.MustCompile(`^(\$ )?([A-Z_]+=\S+ )*(apt-get|bin/\S+|conntrack|ctr|curl|etcdctl|eval|go|helm|ip|kubectl|make|nft|nsenter|oc|openstack|ovn-\S+|ovs-\S+|rm|sed|skopeo|weft|weft-\w+) `)
	runMark = regexp.MustCompile(`^<!-- run: ([a-z0-9-]+)(?: (\S+))? -->$`)
	notMark = regexp.MustCompile(`^<!-- not run: (.+) -->$`)
)

// All reads README.md and the pages in docs below a directory.
func All(root string) ([]Block, error) {
	files, err := filepath.Glob(filepath.Join(root, "docs", "*.md"))
	if err != nil {
		return nil, fmt.Errorf("list the documentation: %w", err)
	}
	var all []Block
	for _, file := range append(files, filepath.Join(root, "README.md")) {
		text, err := os.ReadFile(file)
		if err != nil {
			return nil, fmt.Errorf("read the documentation: %w", err)
		}
		all = append(all, Read(filepath.Base(file), string(text))...)
	}
	return all, nil
}

// Read returns the blocks of a page, in order.
func Read(page, text string) []Block {
	var blocks []Block
	var block []string
	first, mark, fenced := 0, "", false
	end := func() {
		if len(block) > 0 {
			if b := (Block{Page: page, Line: first}); b.read(block, mark) {
				blocks = append(blocks, b)
			}
			mark = ""
		}
		block = nil
	}
	for i, line := range strings.Split(text, "\n") {
		inner, indented := strings.CutPrefix(line, "    ")
		switch {
		case strings.HasPrefix(line, "```"):
			end()
			fenced = !fenced
		case fenced || indented:
			if len(block) == 0 {
				first = i + 1
			}
			if fenced {
				inner = line
			}
			block = append(block, inner)
		case line == "" && len(block) > 0 && nextIndented(text, i):
			block = append(block, "")
		default:
			end()
			if line != "" {
				mark = line
			}
		}
	}
	end()
	return blocks
}

// nextIndented reports whether the line after the given one continues a code block.
func nextIndented(text string, index int) bool {
	lines := strings.Split(text, "\n")
	return index+1 < len(lines) && strings.HasPrefix(lines[index+1], "    ")
}

// read extracts the commands of a code block, and reports whether it begins with one.
func (b *Block) read(lines []string, mark string) bool {
	if !command.MatchString(lines[0] + " ") {
		return false
	}
	b.Text = strings.Join(lines, "\n") + "\n"
	if strings.HasPrefix(lines[0], "$ ") {
		b.Text = ""
		for _, line := range lines {
			if typed, is := strings.CutPrefix(line, "$ "); is {
				b.Text += typed + "\n"
			}
		}
	}
	if run := runMark.FindStringSubmatch(mark); run != nil {
		b.Lab = run[1]
		if run[2] != "" {
			b.Nodes = strings.Split(run[2], ",")
		}
	} else if not := notMark.FindStringSubmatch(mark); not != nil {
		b.Reason = not[1]
	}
	return true
}
