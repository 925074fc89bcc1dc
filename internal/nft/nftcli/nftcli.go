// Package nftcli runs nft(8) in a network namespace, and reads its errors.
package nftcli

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"regexp"
	"strconv"
	"strings"

	"weft.dev/weft/internal/link/netns"
	"weft.dev/weft/internal/nft"
	"weft.dev/weft/internal/nft/nfnetlink"
)

// Namespace is a network namespace whose nftables nft(8) reads and changes.
type Namespace struct {
	home *netns.Namespace
	// program is the path of nft.
	program string
}

// Open opens the namespace at path; "" is the calling thread's. It fails if there is no nft, or no such namespace.
func Open(path string) (n Namespace, err error) {
	if path == "" {
		n.home, err = netns.Home()
	} else {
		n.home, err = netns.Open(path)
	}
	if err != nil {
		return n, fmt.Errorf("nft engine: network namespace: %w", err)
	}
	if n.program, err = exec.LookPath("nft"); err != nil {
		n.home.Close()
		return n, fmt.Errorf("nft engine: %w", err)
	}
	return n, nil
}

// Close releases the namespace.
func (n Namespace) Close() { n.home.Close() }

// Inside runs work on a thread in the namespace; processes that it starts are in it too.
func (n Namespace) Inside(work func() error) error { return netns.OnThread(n.home, work) }

// Generation returns the namespace's generation of nftables, which every transaction increments by one.
func (n Namespace) Generation() (id uint32, err error) {
	err = n.Inside(func() (err error) {
		id, err = nfnetlink.Generation()
		return err
	})
	return id, err
}

// Run runs nft in the namespace, for reading. Changes are made by change.
func (n Namespace) Run(ctx context.Context, args ...string) ([]byte, error) {
	return n.RunStarted(ctx, (*exec.Cmd).Start, "", args...)
}

// RunStarted runs nft in the namespace, with an input. start starts the process.
func (n Namespace) RunStarted(ctx context.Context, start func(*exec.Cmd) error, input string, args ...string) ([]byte, error) {
	var out, words bytes.Buffer
	err := n.Inside(func() error {
		command := exec.CommandContext(ctx, n.program, args...)
		command.Stdin, command.Stdout, command.Stderr = strings.NewReader(input), &out, &words
		command.Env = append(os.Environ(), "LC_ALL=C")
		if err := start(command); err != nil {
			return err
		}
		return command.Wait()
	})
	if err == nil {
		return out.Bytes(), nil
	}
	var exit *exec.ExitError
	if ctx.Err() == nil && errors.As(err, &exit) {
		return nil, parseError(words.String())
	}
	return nil, fmt.Errorf("running nft: %w", errors.Join(err, ctx.Err()))
}

// Error is an error message of nft.
type Error struct {
	Words string
	// Line is the line of the input, from 1; 0 when unknown.
	Line int
}

//nolint:gochecknoglobals // a constant pattern
var errorPattern = regexp.MustCompile(`(?m)^(?:/dev/stdin:(\d+):\d+-\d+: )?Error: (.*)$`)

// parseError parses nft's messages: "/dev/stdin:2:17-23: Error: words", the line, and carets under it.
func parseError(text string) *Error {
	match := errorPattern.FindStringSubmatch(text)
	if match == nil {
		return &Error{Words: strings.TrimSpace(text)}
	}
	line, _ := strconv.Atoi(match[1])
	return &Error{Words: match[2], Line: line}
}

// Error implements error.
func (e *Error) Error() string { return "nft: " + e.Words }

// Unwrap lets errors.Is find nft.ErrRefused, and nft.ErrMissing if that is the reason.
func (e *Error) Unwrap() []error {
	if strings.Contains(e.Words, "No such file or directory") {
		return []error{nft.ErrRefused, nft.ErrMissing}
	}
	return []error{nft.ErrRefused}
}
