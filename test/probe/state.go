package probe

import (
	"context"
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"weft.dev/weft/internal/attach"
	"weft.dev/weft/internal/link"
	"weft.dev/weft/internal/link/podlink"
	"weft.dev/weft/lab"
)

// State is all that the agent keeps on a node, as the tools of the node print it: sorted lines, by subject.
type State map[string]string

// questions are what a state is made of.
func questions() map[string][]string {
	return map[string][]string{
		"flows":  {"ovs-ofctl", "-O", "OpenFlow15", "--no-stats", "--no-names", "dump-flows", "br0"},
		"groups": {"ovs-ofctl", "-O", "OpenFlow15", "dump-groups", "br0"},
		"ports": {
			"ovs-vsctl", "--columns=name,ofport,type,options,error,external_ids", "--format=csv", "--no-headings", "find", "Interface",
			"ofport!=65534",
		},
		"bridge":    {"ovs-vsctl", "--columns=name,datapath_type,fail_mode,protocols,controller,other_config", "find", "Bridge", "name=br0"},
		"addresses": {"ip", "-4", "-o", "addr", "show", "tun0"},
		"egress":    {"ip", "-4", "-o", "addr", "show", "label", link.AddressLabel},
		"link":      {"ip", "-o", "link", "show", "tun0"},
		"routes":    {"ip", "-4", "route", "show", "dev", "tun0"},
		"inet weft": {"nft", "-s", "list", "table", "inet", "weft"},
		"arp weft":  {"nft", "-s", "list", "table", "arp", "weft"},
	}
}

// volatile is what differs between two states that are the same: numbers that the kernel gives, names of handles, and digests that have them.
var volatile = regexp.MustCompile( //nolint:gochecknoglobals // a constant
	`(?m)^\d+: |valid_lft \S+ preferred_lft \S+|qlen \d+|state \S+| # handle \d+| rules [0-9a-f]{32}`)

// StateOf reads a node's state; what cannot be read is part of it.
func StateOf(ctx context.Context, n lab.Node) State {
	s := State{}
	var mu sync.Mutex
	var group sync.WaitGroup
	for name := range questions() {
		group.Go(func() {
			said := StateIn(ctx, n, name)
			mu.Lock()
			defer mu.Unlock()
			s[name] = said
		})
	}
	group.Wait()
	return s
}

// StateIn reads one subject of a node's state, such as "flows"; an error takes its place.
func StateIn(ctx context.Context, n lab.Node, subject string) string {
	out, err := Run(ctx, n.Enter(questions()[subject]...))
	if err != nil {
		out = err.Error()
	}
	out = volatile.ReplaceAllString(out, "")
	return strings.Join(slices.Sorted(strings.Lines(out)), "")
}

// TunnelsAt returns an error that says what a node's ports are, unless its tunnels are at a UDP port.
func TunnelsAt(ctx context.Context, n lab.Node, port int) error {
	if ports := StateIn(ctx, n, "ports"); !strings.Contains(ports, fmt.Sprintf(`dst_port=""%d""`, port)) {
		return fmt.Errorf("the ports of %s: %s", n.Name, ports)
	}
	return nil
}

// Differs returns an error that names what differs from a state, line by line.
func (s State) Differs(want State) error {
	var errs []error
	for name := range questions() {
		if s[name] == want[name] {
			continue
		}
		have, wanted := slices.Collect(strings.Lines(s[name])), slices.Collect(strings.Lines(want[name]))
		if name == "ports" && len(have)-len(s.notFree(have)) <= mostFree {
			have, wanted = s.notFree(have), want.notFree(wanted)
		}
		missing, further := without(wanted, have), without(have, wanted)
		if len(missing)+len(further) == 0 {
			continue
		}
		errs = append(errs, fmt.Errorf("%s: %d lines missing, %d extra:\n- %s+ %s", name, len(missing), len(further),
			strings.Join(missing[:min(5, len(missing))], "- "), strings.Join(further[:min(5, len(further))], "+ ")))
	}
	return errors.Join(errs...)
}

// inPort is how flows name a port.
var inPort = regexp.MustCompile(`in_port=(\d+)`) //nolint:gochecknoglobals // a constant

// notFree returns ports but for complete pre-plugged ports that no flow of the state names: their number changes.
func (s State) notFree(ports []string) []string {
	used := map[string]bool{}
	for _, flow := range inPort.FindAllStringSubmatch(s["flows"], -1) {
		used[flow[1]] = true
	}
	return slices.DeleteFunc(slices.Clone(ports), func(port string) bool {
		name, _, _ := strings.Cut(port, ",")
		ofport, ok := attach.PortNumber(name)
		free := fmt.Sprintf(`%s,%d,"""""",{},[],"{""weft.dev/owner""=""%s""}"`, name, ofport, podlink.PrepluggedOwner(name))
		return ok && strings.TrimSpace(port) == free && !used[strconv.FormatUint(uint64(ofport), 10)]
	})
}

// without returns the lines that are left once each of taken has taken one.
func without(lines, taken []string) []string {
	count := map[string]int{}
	for _, line := range taken {
		count[line]++
	}
	return slices.DeleteFunc(slices.Clone(lines), func(line string) bool {
		count[line]--
		return count[line] >= 0
	})
}

// SettledState returns a node's state once it is the same twice in a row: nothing is being made or removed any more.
func SettledState(ctx context.Context, n lab.Node) (State, error) {
	var last State
	_, err := Await(ctx, Patience, n.Name+" settled", func(ctx context.Context) error {
		before := last
		last = nil
		if last = StateOf(ctx, n); before == nil {
			return errors.New("the state still changes")
		}
		return last.Differs(before)
	})
	return last, err
}

// AwaitState waits until a node is as it was, and returns how long that took.
func AwaitState(ctx context.Context, n lab.Node, want State, after string) (time.Duration, error) {
	return Await(ctx, Patience, n.Name+" in its former state, after: "+after, func(ctx context.Context) error {
		return StateOf(ctx, n).Differs(want)
	})
}
