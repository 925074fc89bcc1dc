package extension_test

import (
	"errors"
	"log/slog"
	"maps"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"weft.dev/weft/internal/flannel/extension"
	"weft.dev/weft/internal/flannel/lease"
	"weft.dev/weft/internal/flannel/netconf"
	"weft.dev/weft/internal/reconcile"
)

// script writes a program that appends its words, its variables and its input to a file, and returns the paths of both.
func script(t *testing.T) (program, log string) {
	t.Helper()
	dir := t.TempDir()
	program, log = filepath.Join(dir, "connect"), filepath.Join(dir, "log")
	text := "#!/bin/sh\necho \"$@ | $SUBNET $IPV6SUBNET $PUBLIC_IP $PUBLIC_IPV6 $NETWORK | $(cat)\" >>" + log + "\ncase $SUBNET in *.66.0/24) echo no way; exit 3;; esac\n"
	if err := os.WriteFile(program, []byte(text), 0o700); err != nil { //nolint:gosec // a program
		t.Fatal(err)
	}
	return program, log
}

func peer(n string, output string) lease.Lease {
	return lease.Lease{
		Subnet: netip.MustParsePrefix("10.5." + n + ".0/24"), PublicIP: netip.MustParseAddr("192.0.2." + n), Backend: "extension",
		Data: lease.Extension{Output: output},
	}
}

func read(t *testing.T, path string) string {
	t.Helper()
	text, err := os.ReadFile(path)
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		t.Fatal(err)
	}
	return string(text)
}

// TestCommands: a lease's data is input, never a word or something that a shell interprets; a failing command is named, and does not affect
// the others.
func TestCommands(t *testing.T) {
	program, log := script(t)
	b := netconf.Extension{SubnetAdd: program + " add ${SUBNET} via $PUBLIC_IP", SubnetRemove: program + " remove $SUBNET"}
	hostile := "$(touch /nowhere) `id`; $SUBNET"
	set := map[extension.Key]extension.Item{}
	for _, l := range []lease.Lease{peer("7", hostile), peer("66", "x")} {
		maps.Copy(set, extension.Compile(b, l))
	}
	if len(set) != 2 {
		t.Fatal(set)
	}
	e := extension.NewEngine(slog.New(slog.DiscardHandler))
	err := e.Commit(t.Context(), reconcile.Change[extension.Key, extension.Item]{Set: set})
	var partial *reconcile.PartialError[extension.Key]
	if !errors.As(err, &partial) || len(partial.Failed) != 1 {
		t.Fatalf("error %v", err)
	}
	for key, failure := range partial.Failed {
		if key.Subnet.String() != "10.5.66.0/24" || !strings.Contains(failure.Error(), "Backend.SubnetAddCommand for 10.5.66.0/24") ||
			!strings.Contains(failure.Error(), "exit status 3: no way") {
			t.Error(failure)
		}
	}
	if want := "add 10.5.7.0/24 via 192.0.2.7 | 10.5.7.0/24  192.0.2.7   | " + hostile + "\n"; !strings.Contains(read(t, log), want) {
		t.Errorf("got %s want in it %s", read(t, log), want)
	}
	done, err := e.Read(t.Context())
	if err != nil || len(done) != 1 {
		t.Errorf("%v %v", done, err)
	}
	if err := e.Commit(t.Context(), reconcile.Change[extension.Key, extension.Item]{Delete: done}); err != nil {
		t.Fatal(err)
	}
	if want := "remove 10.5.7.0/24 | 10.5.7.0/24"; !strings.Contains(read(t, log), want) {
		t.Errorf("got %s want in it %s", read(t, log), want)
	}
	if done, err := e.Read(t.Context()); err != nil || len(done) != 0 {
		t.Errorf("%v %v", done, err)
	}
}

// TestCompile: other backends' leases have no commands.
func TestCompile(t *testing.T) {
	l := peer("7", "")
	l.Backend = "vxlan"
	if got := extension.Compile(netconf.Extension{SubnetAdd: "true"}, l); len(got) != 0 {
		t.Errorf("%v", got)
	}
}

// TestStart: the output of the first command is data for other nodes, and the second command has the node's subnet.
func TestStart(t *testing.T) {
	program, log := script(t)
	b := netconf.Extension{PreStartup: "echo  of this   node", PostStartup: program + " up $NETWORK"}
	output, err := extension.Before(t.Context(), b)
	if output != "of this node" || err != nil {
		t.Errorf("%q %v", output, err)
	}
	if err := extension.After(t.Context(), b, netip.MustParsePrefix("10.5.0.0/16"), peer("1", "")); err != nil {
		t.Error(err)
	}
	if want := "up 10.5.0.0/16 | 10.5.1.0/24  192.0.2.1  10.5.0.0/16 | \n"; read(t, log) != want {
		t.Errorf("got %q want %q", read(t, log), want)
	}
	if _, err := extension.Before(t.Context(), netconf.Extension{PreStartup: "/nonexistent x"}); err == nil || !strings.Contains(err.Error(), "Backend.PreStartupCommand: /nonexistent x") {
		t.Error(err)
	}
}
