package openstack

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"text/template"

	"github.com/gophercloud/gophercloud/v2/openstack/networking/v2/extensions/agents"

	"weft.dev/weft/lab/plan"
	"weft.dev/weft/lab/process"
)

// The programs of Neutron on nodes, with ML2/OVS.
const (
	switchAgent = "neutron-openvswitch-agent"
	routerAgent = "neutron-l3-agent"
)

// Agents returns the names of Neutron's programs on nodes, without the node's.
func Agents() []string { return []string{switchAgent, routerAgent} }

// host is a node with Neutron's agents.
type host struct {
	stack *Stack
	HostConfig
}

// start runs Neutron's agents on a node with a switch, and waits until Neutron has them: no port can be bound to the node before. One node
// has the routers.
func (h host) start(ctx context.Context, prepare []string) error {
	if _, err := h.Group.Run(ctx, "", h.Space.Enter(append([]string{"ovs-vsctl", "--timeout=60"}, prepare...)...)...); err != nil {
		return err
	}
	file, err := h.write()
	if err != nil {
		return err
	}
	const firstNode = 1
	if err := h.Group.Start(ctx, h.agent(file, switchAgent, "Open vSwitch agent", "neutron.cmd.eventlet.plugins.ovs_neutron_agent")); err != nil {
		return err
	}
	if h.Node.Index != firstNode {
		return nil
	}
	return h.Group.Start(ctx, h.agent(file, routerAgent, "L3 agent", "neutron.cmd.eventlet.agents.l3"))
}

// agent describes one of Neutron's agents. kind is its type in Neutron, module has its function main: python3-neutron has no programs.
// It runs in a PID namespace of its own, because it leaves its privileged helpers behind when it is killed. It looks for its processes in
// /proc, which is that namespace's therefore.
func (h host) agent(file, name, kind, module string) process.Program {
	run := fmt.Sprintf(`import sys; sys.argv[0]=%q; from %s import main; main()`, name, module)
	return process.Program{
		Name: h.Node.Name + "/" + name,
		Argv: h.Space.Enter("unshare", "--pid", "--fork", "--mount-proc", "--propagation=slave", "--kill-child=KILL", "--", python, "-c", run, "--config-file", file),
		Env:  environment("TMPDIR=" + h.folder()), // of the helpers' sockets
		Ready: func(ctx context.Context) error {
			return h.reported(ctx, kind)
		},
	}
}

var errAbsent = errors.New("no report of it in Neutron yet")

// reported reports whether Neutron has an agent's report.
func (h host) reported(ctx context.Context, kind string) error {
	c, err := networkClient(ctx, h.stack.HTTP())
	if err != nil {
		return err
	}
	alive := true
	found, err := all(ctx, agents.List(c, agents.ListOpts{Host: h.Node.Name, AgentType: kind, Alive: &alive}), agents.ExtractAgents)
	if err != nil {
		return fmt.Errorf("%s of %s: %w", kind, h.Node.Name, err)
	}
	if len(found) == 0 {
		return fmt.Errorf("%s of %s: %w", kind, h.Node.Name, errAbsent)
	}
	return nil
}

func (h host) folder() string { return filepath.Join(h.stack.Dir, "hosts", h.Node.Name) }

// write renders the configuration of a node's agents.
func (h host) write() (string, error) {
	dir := h.folder()
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return "", fmt.Errorf("make the folder of Neutron's agents on %s: %w", h.Node.Name, err)
	}
	page, err := template.ParseFS(files, "host/agent.ini")
	if err != nil {
		return "", fmt.Errorf("parse the configuration of Neutron's agents: %w", err)
	}
	var text bytes.Buffer
	if err := page.Execute(&text, hostView{view{h.stack}, h}); err != nil {
		return "", fmt.Errorf("render the configuration of Neutron's agents: %w", err)
	}
	file := filepath.Join(dir, "agent.ini")
	if err := os.WriteFile(file, text.Bytes(), 0o600); err != nil {
		return "", fmt.Errorf("write the configuration of Neutron's agents on %s: %w", h.Node.Name, err)
	}
	return file, nil
}

// hostView has the values for the template of a node's agents.
type hostView struct {
	view
	host host
}

// Host is the node as Neutron has it.
func (v hostView) Host() string { return v.host.Node.Name }

// IP is the address of the node's tunnels.
func (v hostView) IP() netip.Addr { return v.host.Node.IP }

// Datapath is the type of the bridges' datapath.
func (v hostView) Datapath() plan.Datapath { return v.host.Datapath }

// Directory is the agents' own.
func (v hostView) Directory() string { return v.host.folder() }

// Broker is RabbitMQ's address for nodes.
func (v hostView) Broker() string { return brokerURL(v.Addr) }

// External is the bridge that PhysicalNetwork is mapped to.
func (v hostView) External() string { return external }
