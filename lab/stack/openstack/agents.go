package openstack

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"text/template"

	"github.com/gophercloud/gophercloud/v2/openstack/networking/v2/extensions/agents"

	"weft.dev/weft/lab/process"
)

// The programs of Neutron on nodes, with ML2/OVS.
const (
	switchAgent = "neutron-openvswitch-agent"
	routerAgent = "neutron-l3-agent"
)

// Agents returns the names of Neutron's programs on nodes, without the node's.
func Agents() []string { return []string{switchAgent, routerAgent} }

// agents runs Neutron's agents on a node with a switch, and waits until Neutron has them: no port can be bound to the node before. One
// node has the routers.
func (s *Stack) agents(ctx context.Context, c HostConfig, prepare []string) error {
	if _, err := c.Group.Run(ctx, "", c.Space.Enter(append([]string{"ovs-vsctl", "--timeout=60"}, prepare...)...)...); err != nil {
		return err
	}
	file, err := s.writeAgent(c)
	if err != nil {
		return err
	}
	const firstNode = 1
	if err := c.Group.Start(ctx, s.agent(c, file, switchAgent, "Open vSwitch agent", "neutron.cmd.eventlet.plugins.ovs_neutron_agent")); err != nil {
		return err
	}
	if c.Node.Index != firstNode {
		return nil
	}
	return c.Group.Start(ctx, s.agent(c, file, routerAgent, "L3 agent", "neutron.cmd.eventlet.agents.l3"))
}

// agent describes one of Neutron's agents. kind is its type in Neutron, module has its function main: python3-neutron has no programs.
// It runs in a PID namespace of its own, because it leaves its privileged helpers behind when it is killed. It looks for its processes in
// /proc, which is that namespace's therefore.
func (s *Stack) agent(c HostConfig, file, name, kind, module string) process.Program {
	run := fmt.Sprintf(`import sys; sys.argv[0]=%q; from %s import main; main()`, name, module)
	return process.Program{
		Name: c.Node.Name + "/" + name,
		Argv: c.Space.Enter("unshare", "--pid", "--fork", "--mount-proc", "--propagation=slave", "--kill-child=KILL", "--", python, "-c", run, "--config-file", file),
		Env:  environment("TMPDIR=" + s.agentDir(c)), // of the helpers' sockets
		Ready: func(ctx context.Context) error {
			return s.reported(ctx, c.Node.Name, kind)
		},
	}
}

var errAbsent = errors.New("no report of it in Neutron yet")

// reported reports whether Neutron has an agent's report.
func (s *Stack) reported(ctx context.Context, host, kind string) error {
	c, err := s.network(ctx)
	if err != nil {
		return err
	}
	alive := true
	found, err := all(ctx, agents.List(c, agents.ListOpts{Host: host, AgentType: kind, Alive: &alive}), agents.ExtractAgents)
	if err != nil {
		return fmt.Errorf("%s of %s: %w", kind, host, err)
	}
	if len(found) == 0 {
		return fmt.Errorf("%s of %s: %w", kind, host, errAbsent)
	}
	return nil
}

func (s *Stack) agentDir(c HostConfig) string { return filepath.Join(s.Dir, "hosts", c.Node.Name) }

// writeAgent renders the configuration of a node's agents.
func (s *Stack) writeAgent(c HostConfig) (string, error) {
	dir := s.agentDir(c)
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return "", fmt.Errorf("make the folder of Neutron's agents on %s: %w", c.Node.Name, err)
	}
	page, err := template.ParseFS(files, "host/agent.ini")
	if err != nil {
		return "", fmt.Errorf("parse the configuration of Neutron's agents: %w", err)
	}
	var text bytes.Buffer
	if err := page.Execute(&text, hostView{view{s}, c}); err != nil {
		return "", fmt.Errorf("render the configuration of Neutron's agents: %w", err)
	}
	file := filepath.Join(dir, "agent.ini")
	if err := os.WriteFile(file, text.Bytes(), 0o600); err != nil {
		return "", fmt.Errorf("write the configuration of Neutron's agents on %s: %w", c.Node.Name, err)
	}
	return file, nil
}

// hostView has the values for the template of a node's agents.
type hostView struct {
	view
	HostConfig
}

// Directory is the agents' own.
func (v hostView) Directory() string { return v.agentDir(v.HostConfig) }

// Broker is RabbitMQ's address for nodes.
func (v hostView) Broker() string { return broker(v.Addr) }

// External is the bridge that PhysicalNetwork is mapped to.
func (v hostView) External() string { return external }
