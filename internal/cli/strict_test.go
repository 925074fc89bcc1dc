package cli

import (
	"strings"
	"testing"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"weft.dev/weft/internal/command"
)

// each calls do with every command below root, and with the command's path.
func each(root *cobra.Command, do func(cmd *cobra.Command, path []string)) {
	for _, cmd := range root.Commands() {
		do(cmd, strings.Fields(cmd.CommandPath())[1:])
		each(cmd, do)
	}
}

// Unexpected arguments and flags make every command exit with 2; the error names them.
func TestUnexpectedArguments(t *testing.T) {
	each(Weft(Environment{}), func(cmd *cobra.Command, path []string) {
		if cmd.HasSubCommands() || cmd.Name() == "log-level" || cmd.Parent().Name() == "tenant" || cmd.Name() == "realised" {
			return // they take arguments, or have subcommands
		}
		if _, code, err := weft(t, Environment{}, append(path, "nonsense")...); code != command.Unknown || err == nil || !strings.Contains(err.Error(), "nonsense") {
			t.Errorf("weft %s nonsense: %d %v", strings.Join(path, " "), code, err)
		}
	})
	for _, args := range []string{
		"nonsense", "tenant nonsense", "openvswitch nonsense", "log-level nonsense", "realised networkpolicy",
		"agent --nonsense", "controller --nonsense", "tenant join --nonsense", "version --nonsense", "--nonsense",
	} {
		_, code, err := weft(t, Environment{}, strings.Fields(args)...)
		if code != command.Unknown || err == nil || args != "realised networkpolicy" && !strings.Contains(err.Error(), "nonsense") {
			t.Errorf("weft %s: %d %v", args, code, err)
		}
	}
	for _, args := range []string{"log-level debug nonsense", "realised networkpolicy shop/a nonsense", "realised netnamespace shop nonsense"} {
		if _, code, err := weft(t, Environment{}, strings.Fields(args)...); code != command.Unknown || err == nil {
			t.Errorf("weft %s: %d %v", args, code, err)
		}
	}
	if _, code, err := weft(t, Environment{}, "stat"); code != command.Unknown || !strings.Contains(err.Error(), "status") {
		t.Errorf("a command that is nearly one: %d %v", code, err)
	}
	for _, args := range []string{"", "tenant", "openvswitch"} {
		if out, code, err := weft(t, Environment{}, strings.Fields(args)...); code != 0 || err != nil || !strings.Contains(out, "Available Commands") {
			t.Errorf("weft %s: %d %v %s", args, code, err, out)
		}
	}
}

// No duration flag accepts zero or a negative value.
func TestTimeoutsAreGreaterThanZero(t *testing.T) {
	found := 0
	each(Weft(Environment{}), func(cmd *cobra.Command, path []string) {
		cmd.Flags().VisitAll(func(flag *pflag.Flag) {
			if flag.Value.Type() != "duration" {
				return
			}
			found++
			for _, wrong := range []string{"0", "0s", "-1s"} {
				_, code, err := weft(t, Environment{}, append(path, "--"+flag.Name+"="+wrong)...)
				if code != command.Unknown || err == nil || !strings.Contains(err.Error(), "--"+flag.Name) || !strings.Contains(err.Error(), "more than 0") {
					t.Errorf("weft %s --%s=%s: %d %v", strings.Join(path, " "), flag.Name, wrong, code, err)
				}
			}
		})
	})
	if found < 7 { // agent, diff, flows, realised, status, and two or three of tenant
		t.Errorf("%d flags of a duration found", found)
	}
	if _, code, err := weft(t, Environment{}, "status", "--timeout=5m", "--kubeconfig=/nope"); code != command.Unknown || strings.Contains(err.Error(), "--timeout") {
		t.Errorf("a good one: %d %v", code, err)
	}
}

func TestVersion(t *testing.T) {
	out, code, err := weft(t, Environment{Version: "v1.2.3"}, "version")
	flag, _, _ := weft(t, Environment{Version: "v1.2.3"}, "--version")
	if code != 0 || err != nil || out != flag || out != "weft version v1.2.3\n" {
		t.Errorf("%q %q %d %v", out, flag, code, err)
	}
}

// Flags of the dry run without --dry-run start no agent.
func TestFlagsOfTheDryRun(t *testing.T) {
	for _, flags := range []string{"-o json", "--output=text", "--timeout=3s"} {
		_, code, err := weft(t, Environment{}, append([]string{"agent", "--node-name=n1"}, strings.Fields(flags)...)...)
		if code != command.Unknown || err == nil || !strings.Contains(err.Error(), "--dry-run") {
			t.Errorf("weft agent %s: %d %v", flags, code, err)
		}
	}
}

// Commands that need root print one line to other users. Other commands run without root.
func TestUsersThatAreNotRoot(t *testing.T) {
	user := Environment{UID: 1000}
	for _, args := range []string{
		"agent --node-name n1", "agent --node-name n1 --dry-run", "cleanup --root /nope", "diff", "flows", "log-level", "log-level debug",
		"openvswitch database --ovs-run-dir /dev/null/a --database /dev/null/b", "openvswitch switch --ovs-run-dir /dev/null/a", "install-plugin --from /nope --to /dev/null/a",
	} {
		out, code, err := weft(t, user, strings.Fields(args)...)
		if code != command.Unknown || err == nil || !strings.Contains(err.Error(), "needs root") || strings.Count(out, "\n") > 1 {
			t.Errorf("weft %s: %d %v %q", args, code, err, out)
		}
	}
	for _, args := range []string{"version", "status --kubeconfig=/nope", "flows --node n1 --kubectl /nope", "diff --controller=127.0.0.1:1", "controller --help", "agent --help", "tenant isolate a --kubeconfig=/nope"} {
		if out, _, err := weft(t, user, strings.Fields(args)...); err != nil && strings.Contains(err.Error(), "root") {
			t.Errorf("weft %s: %v %q", args, err, out)
		}
	}
}
