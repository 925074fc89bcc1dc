package neutron

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"time"

	"weft.dev/weft/lab"
	"weft.dev/weft/test/bench/measure"
	"weft.dev/weft/test/probe"
)

// Metrics of a restart of agent and controller.
const (
	// Writes is the number of writing requests to Neutron.
	Writes = "openstack-writes"
	// Rows is the number of changed rows of ports in the switch's database.
	Rows = "changed-rows"
	// Mods is the number of changed flows of br-n.
	Mods = "flow-mods"
)

// standingPorts is the number of ports of a node whose agent restarts.
const standingPorts = 100

// restarts are those of the first node's agent and of the controller while the node has many ports.
type restarts struct {
	*Scene

	// specs and uids are those of the pods that the ports are for.
	specs []lab.PodSpec
	uids  []string
}

// prepare makes the ports.
func (s *restarts) prepare(ctx context.Context) error {
	node := s.Node(1)
	for i := range standingPorts {
		spec := lab.PodSpec{Namespace: Tenant, Name: fmt.Sprintf("standing-%d", i), Node: node.Name}
		uid, err := s.object(ctx, spec)
		if err != nil {
			return err
		}
		s.specs, s.uids = append(s.specs, spec), append(s.uids, uid)
	}
	if err := s.awaitPorts(ctx, node.Name, standingPorts); err != nil {
		return err
	}
	return s.calm(ctx)
}

// calm waits until Neutron gets no writing request for some seconds: the spare ports are there.
func (s *restarts) calm(ctx context.Context) error {
	const quiet = 5 * time.Second
	last, since := -1, time.Now()
	_, err := probe.Await(ctx, limit, "no more requests to Neutron", func(context.Context) error {
		now, err := s.writes()
		if err != nil {
			return err
		}
		if now != last {
			last, since = now, time.Now()
		}
		if time.Since(since) < quiet {
			return fmt.Errorf("%d requests", now)
		}
		return nil
	})
	return err //nolint:wrapcheck // it says what was waited for
}

func (s *restarts) restart(ctx context.Context) (measure.Figures, error) {
	node := s.Node(1)
	writes, err := s.writes()
	if err != nil {
		return nil, err
	}
	rows, err := s.rows(ctx)
	if err != nil {
		return nil, err
	}
	flows, err := s.flows(ctx)
	if err != nil {
		return nil, err
	}
	for _, program := range []string{node.Name + "/weft-agent", "weft-controller"} {
		if err := probe.Kill(ctx, s.Cluster, program, syscall.SIGKILL); err != nil {
			return nil, err
		}
	}
	if _, err := probe.Await(ctx, limit, "the agent is ready", func(ctx context.Context) error { return probe.Ready(ctx, node) }); err != nil {
		return nil, err
	}
	if err := s.calm(ctx); err != nil {
		return nil, err
	}
	writesAfter, err := s.writes()
	if err != nil {
		return nil, err
	}
	rowsAfter, err := s.rows(ctx)
	if err != nil {
		return nil, err
	}
	flowsAfter, err := s.flows(ctx)
	if err != nil {
		return nil, err
	}
	return measure.Figures{
		Writes: float64(writesAfter - writes), Rows: float64(differing(rows, rowsAfter)), Mods: float64(differing(flows, flowsAfter)),
	}, nil
}

// writing matches a writing request in Neutron's log.
func writing() *regexp.Regexp { return regexp.MustCompile(`"(POST|PUT|DELETE|PATCH) /v2.0/`) }

var errLog = errors.New("it has no request")

// writes returns how many writing requests are in Neutron's log.
func (s *restarts) writes() (int, error) {
	text, err := os.ReadFile(filepath.Join(s.OpenStack.Dir, "log", "neutron.log"))
	if err != nil {
		return 0, fmt.Errorf("read Neutron's log: %w", err)
	}
	if !bytes.Contains(text, []byte(`"GET /v2.0/`)) {
		return 0, fmt.Errorf("read Neutron's log: %w", errLog)
	}
	return len(writing().FindAllIndex(text, -1)), nil
}

// rows returns the versions of the switch's ports and bridges by UUID: each change of a row gives it another version.
func (s *restarts) rows(ctx context.Context) ([]string, error) {
	var all []string
	for _, table := range []string{"Port", "Bridge"} {
		out, err := probe.Run(ctx, s.Node(1).Enter("ovsdb-client", "transact",
			`["Open_vSwitch",{"op":"select","table":"`+table+`","where":[],"columns":["_uuid","_version","name"]}]`))
		if err != nil {
			return nil, err
		}
		var answer []struct{ Rows []json.RawMessage }
		if err := json.Unmarshal([]byte(out), &answer); err != nil {
			return nil, fmt.Errorf("rows of %s: %w", table, err)
		}
		if len(answer) != 1 || len(answer[0].Rows) == 0 {
			return nil, fmt.Errorf("rows of %s: %s", table, out)
		}
		for _, row := range answer[0].Rows {
			all = append(all, string(row))
		}
	}
	return all, nil
}

// flows returns the flows of br-n with the time when each was added.
func (s *restarts) flows(ctx context.Context) ([]string, error) {
	out, err := probe.Run(ctx, s.Node(1).Enter("ovs-ofctl", "-O", "OpenFlow15", "--no-stats", "dump-flows", "br-n"))
	return strings.Split(strings.TrimSpace(out), "\n"), err
}

// differing returns how many lines are in one of the lists only.
func differing(a, b []string) int {
	count := map[string]int{}
	for _, line := range a {
		count[line]++
	}
	for _, line := range b {
		count[line]--
	}
	all := 0
	for _, n := range count {
		all += max(n, -n)
	}
	return all
}
