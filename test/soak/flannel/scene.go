package flannel

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"path/filepath"
	"regexp"
	"slices"
	"strings"

	"golang.org/x/sync/errgroup"

	"weft.dev/weft/lab"
	"weft.dev/weft/test/probe"
	"weft.dev/weft/test/traffic"
)

// echoPort is the port where pods answer.
const echoPort = 7777

// scene is the lab with its permanent pods.
type scene struct {
	cluster *lab.Cluster
	nodes   []lab.Node // those with Weft's agent
	pods    map[string]*lab.Pod
	echoes  []*traffic.Echo
	pairs   []traffic.Pair
}

// newScene starts the pods. Close what it returns, also with an error.
func newScene(ctx context.Context, c *lab.Cluster) (*scene, error) {
	s := &scene{cluster: c, pods: map[string]*lab.Pod{}}
	for _, n := range c.Nodes() {
		if n.Name != original {
			s.nodes = append(s.nodes, n)
		}
		for _, name := range []string{"a", "b"} {
			p, err := probe.AddPod(ctx, c, lab.PodSpec{Node: n.Name, Name: name + "-" + n.Name})
			if err != nil {
				return s, err
			}
			s.pods[p.Name] = p
			echo, err := traffic.NewEcho(p.Netns, netip.AddrPortFrom(p.IPs[0], echoPort))
			if err != nil {
				return s, err
			}
			s.echoes = append(s.echoes, echo)
		}
	}
	for _, way := range []string{"n1 to n1", "n1 to n2", "n2 to n1", "n2 to n2", "n1 to n3", "n3 to n1", "n2 to n3"} {
		from, to, _ := strings.Cut(way, " to ")
		s.pairs = append(s.pairs, traffic.Pair{Name: way, From: s.pods["a-"+from].Netns, To: s.at("b-" + to)})
	}
	return s, s.reach(ctx)
}

func (s *scene) at(pod string) netip.AddrPort {
	return netip.AddrPortFrom(s.pods[pod].IPs[0], echoPort)
}

// close ends the echoes; the pods are removed with the lab.
func (s *scene) close() error {
	var errs []error
	for _, e := range s.echoes {
		errs = append(errs, e.Close())
	}
	return errors.Join(errs...)
}

// reach waits until every pair exchanges packets, and nodes reach pods.
func (s *scene) reach(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, probe.Patience)
	defer cancel()
	ways := slices.Clone(s.pairs)
	for _, way := range [][2]string{{"n1", "a-n1"}, {"n1", "a-n2"}, {"n2", "a-n1"}, {"n3", "a-n1"}} {
		n, err := s.cluster.NodeNamed(way[0])
		if err != nil {
			return err
		}
		ways = append(ways, traffic.Pair{Name: "node " + way[0] + " to pod " + way[1], From: n.Netns, To: s.at(way[1])})
	}
	var g errgroup.Group
	for _, way := range ways {
		g.Go(func() error {
			if _, err := traffic.Ping(ctx, way.From, way.To); err != nil {
				return fmt.Errorf("%s: %w", way.Name, err)
			}
			return nil
		})
	}
	return g.Wait()
}

// fresh adds a pod on a node, has pods of another node and of this one reach it, and deletes it.
func (s *scene) fresh(ctx context.Context, node string) (err error) {
	ctx, cancel := context.WithTimeout(ctx, probe.Patience)
	defer cancel()
	p, err := probe.AddPod(ctx, s.cluster, lab.PodSpec{Node: node, Name: "fresh-" + node})
	if p != nil {
		defer func() {
			ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), probe.Patience)
			defer cancel()
			err = errors.Join(err, probe.Detach(ctx, p), s.cluster.DelPod(ctx, p))
		}()
	}
	if err != nil {
		return fmt.Errorf("a new pod on %s: %w", node, err)
	}
	at := netip.AddrPortFrom(p.IPs[0], echoPort)
	echo, err := traffic.NewEcho(p.Netns, at)
	if err != nil {
		return err
	}
	defer func() { _ = echo.Close() }()
	for _, from := range []string{"a-n1", "a-n2", "a-n3"} {
		if _, err := traffic.Ping(ctx, s.pods[from].Netns, at); err != nil {
			return fmt.Errorf("pod %s to a new pod on %s: %w", from, node, err)
		}
	}
	return nil
}

// scope says which pairs must lose no packet in a fault.
type scope string

// Scopes. The faults concern n1.
const (
	all    scope = "all"
	within scope = "within nodes"
	beside scope = "not n1"
	none   scope = "none"
)

// covers reports whether a pair must lose nothing.
func (s scope) covers(pair string) bool {
	switch s {
	case all:
		return true
	case within:
		from, to, _ := strings.Cut(pair, " to ")
		return from == to
	case beside:
		return !strings.Contains(pair, "n1")
	}
	return false
}

// state is everything that Weft programs on the nodes, by node and command: words with their numbers.
type state map[string]map[string]int

// questions are the commands that print it.
func questions() []string {
	return []string{
		"ip -d -o link show type vxlan", "ip -d -o link show type bridge", "ip -d -o link show type veth", "ip -o address show", "ip route show",
		"ip neigh show nud permanent", "bridge fdb show", "nft -s list ruleset",
	}
}

// volatile is what differs between equal states: indexes, timers, what the kernel decides, and digests that have the handles of rules.
var volatile = regexp.MustCompile( //nolint:gochecknoglobals // a constant
	`(?m)^\d+: |@[^:\s]+|link-netns\S* \S+|link-netnsid \d+|\S+_timer +\S+|(promiscuity|allmulti|fdb_n_learned|port_no|port_id|designated_port) +\S+|` +
		`valid_lft \S+|preferred_lft \S+|tentative|^(33:33|01:00):.*$|^.*scope link.*$|elements|[{},]|bridge_id \S+|designated_\w+ \S+|root_\w+ \S+| rules [0-9a-f]{32}`)

// read reads the state of the nodes with Weft.
func (s *scene) read(ctx context.Context) (state, error) {
	all := state{}
	for _, n := range s.nodes {
		for _, question := range questions() {
			out, err := probe.Run(ctx, n.Enter(strings.Fields(question)...))
			if err != nil {
				return nil, err
			}
			words := map[string]int{}
			for word := range strings.FieldsSeq(volatile.ReplaceAllString(out, " ")) {
				words[word]++
			}
			all[n.Name+": "+question] = words
		}
	}
	return all, nil
}

// settled returns the state once it is the same twice.
func (s *scene) settled(ctx context.Context) (last state, err error) {
	_, err = probe.Await(ctx, probe.Patience, "settled nodes", func(ctx context.Context) error {
		before := last
		if last, err = s.read(ctx); err != nil {
			return err
		}
		return last.differs(before)
	})
	return last, err
}

// differs reads the state, and returns an error that names the differences from a former one.
func (s *scene) differs(ctx context.Context, was state) error {
	now, err := s.read(ctx)
	if err != nil {
		return err
	}
	return now.differs(was)
}

// shown is the number of differences that an error has.
const shown = 8

func (now state) differs(was state) error {
	var errs []error
	for _, question := range slices.Sorted(maps.Keys(now)) {
		var found []string
		for word, count := range now[question] {
			if more := count - was[question][word]; more > 0 {
				found = append(found, fmt.Sprintf("+%d %s", more, word))
			}
		}
		for word, count := range was[question] {
			if fewer := count - now[question][word]; fewer > 0 {
				found = append(found, fmt.Sprintf("-%d %s", fewer, word))
			}
		}
		slices.Sort(found)
		if len(found) > 0 {
			errs = append(errs, fmt.Errorf("%s: %d differences: %s", question, len(found), strings.Join(found[:min(shown, len(found))], ", ")))
		}
	}
	return errors.Join(errs...)
}

// emptyGuard is the guard's table once the last pod that needed it is gone. Before the first one there is no table.
const emptyGuard = "table bridge weft-flannel-guard {\n}\n"

// census counts what pods could leave on each node with Weft.
func (s *scene) census(ctx context.Context) (map[string]probe.Counts, error) {
	census := map[string]probe.Counts{}
	for _, n := range s.nodes {
		counts := probe.Counts{}
		for name, command := range map[string]string{
			"links": "ip -o link show", "routes": "ip route show", "neighbours": "ip neigh show nud permanent", "forwarding entries": "bridge fdb show",
			"rules": "nft -s list ruleset",
		} {
			out, err := probe.Run(ctx, n.Enter(strings.Fields(command)...))
			if err != nil {
				return nil, err
			}
			counts[name] = len(strings.Fields(strings.Replace(out, emptyGuard, "", 1)))
		}
		for name, pattern := range map[string]string{
			"records": "/var/lib/weft/attachments*/*", "namespaces": "/run/netns/*", "host-local's files": "/var/lib/cni/networks/*/*",
			"the plugin's caches": "/var/lib/cni/flannel/*", "the runtime's results": "/var/lib/cni/results/*",
		} {
			files, err := filepath.Glob(n.Root(pattern))
			if err != nil {
				return nil, err
			}
			counts[name] = len(files)
		}
		agent, err := s.agent(ctx, n)
		if err != nil {
			return nil, err
		}
		maps.Copy(counts, agent)
		census[n.Name] = counts
	}
	return census, nil
}
