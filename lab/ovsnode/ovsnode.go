// Package ovsnode starts a node's Open vSwitch: its own database server and switch, and on the userspace datapath the bridge with the
// node's own address.
package ovsnode

import (
	"context"
	"fmt"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"time"

	"weft.dev/weft/lab/ground"
	"weft.dev/weft/lab/plan"
	"weft.dev/weft/lab/process"
)

// Phy is the userspace bridge with eth0 as a port.
const Phy = "br-phy"

// schema is the schema's path in Debian's openvswitch-common.
const schema = "/usr/share/openvswitch/vswitch.ovsschema"

// Switch is a node's Open vSwitch.
type Switch struct {
	Node  plan.Node
	Space ground.Space
	Group *process.Group
	// Routes are set on the userspace datapath only, where tunnels end in the switch itself: its own routes to the other nodes.
	Routes *Routes
}

func (s Switch) db() string { return filepath.Join(s.Node.Dir, "ovs", "conf.db") }

// Start starts both daemons. They use Open vSwitch's usual paths, within the node.
func (s Switch) Start(ctx context.Context) error {
	for _, dir := range []string{filepath.Dir(s.db()), filepath.Join(s.Node.RunDir, "openvswitch")} {
		if err := os.MkdirAll(dir, 0o755); err != nil {
			return fmt.Errorf("make %s: %w", dir, err)
		}
	}
	if _, err := s.Group.Run(ctx, "", "ovsdb-tool", "create", s.db(), schema); err != nil {
		return fmt.Errorf("make the switch database of %s: %w", s.Node.Name, err)
	}
	if err := s.Group.Start(ctx, s.database()); err != nil {
		return err
	}
	if err := s.vsctl(ctx, "--no-wait", "init"); err != nil {
		return err
	}
	if err := s.vsctl(ctx, "--no-wait", "set", "Open_vSwitch", ".", "external_ids:system-id="+s.Node.Name,
		"external_ids:hostname="+s.Node.Name); err != nil {
		return err
	}
	return s.Group.Start(ctx, s.daemon())
}

func (s Switch) database() process.Program {
	sock := filepath.Join(s.Node.RunDir, "openvswitch", "db.sock")
	return process.Program{
		Name: s.Node.Name + "/ovsdb-server",
		Argv: s.Space.Enter("ovsdb-server", s.db(), "--remote=punix:/run/openvswitch/db.sock",
			"--pidfile=/run/openvswitch/ovsdb-server.pid"),
		Ready: func(ctx context.Context) error {
			c, err := new(net.Dialer).DialContext(ctx, "unix", sock)
			if err != nil {
				return fmt.Errorf("reach the switch database of %s: %w", s.Node.Name, err)
			}
			return c.Close()
		},
	}
}

func (s Switch) daemon() process.Program {
	return process.Program{
		Name: s.Node.Name + "/ovs-vswitchd",
		// ovs-appctl expects its control socket there.
		Argv: s.Space.Enter(append([]string{
			"nice", "-n", "-10", "ovs-vswitchd", "unix:/run/openvswitch/db.sock", // the priority that ovs-ctl gives it
			"--pidfile=/run/openvswitch/ovs-vswitchd.pid",
		}, s.ownRoutes()...)...),
		Started: s.routeAgain,
		Ready: func(ctx context.Context) error {
			_, err := s.Group.Run(ctx, "", s.Space.Enter("ovs-appctl", "-t", "ovs-vswitchd", "version")...)
			return err
		},
	}
}

// ownRoutes keeps the userspace datapath from using the kernel's routes: at every change of any link of the node it discards and rereads
// all of them (Open vSwitch 3.1, route_table_reset). A revalidation in this gap drops all tunnelled packets for some 10 ms. Pods that are
// added and deleted change links all the time.
func (s Switch) ownRoutes() []string {
	if s.Routes != nil {
		return []string{"--disable-system-route"}
	}
	return nil
}

// Routes are a userspace switch's routes to the other nodes.
type Routes struct {
	Underlay netip.Prefix
	Router   netip.Addr
}

// route adds the routes to the switch. The node's address must exist, because it becomes the tunnels' source.
func (s Switch) route(ctx context.Context) error {
	if s.Routes == nil {
		return nil
	}
	for _, route := range [][]string{{s.Routes.Underlay.Masked().String(), Phy}, {"0.0.0.0/0", Phy, s.Routes.Router.String()}} {
		argv := s.Space.Enter(append([]string{"ovs-appctl", "-t", "ovs-vswitchd", "ovs/route/add"}, route...)...)
		if _, err := s.Group.Run(ctx, "", argv...); err != nil {
			return fmt.Errorf("route tunnels of %s: %w", s.Node.Name, err)
		}
	}
	return nil
}

// routeAgain adds the routes to a switch that has just started.
func (s Switch) routeAgain() {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	_ = s.AwaitRoute(ctx) // without a route, tunnels do not work, which the lab's users notice
}

// AwaitRoute adds the routes to the switch as soon as it accepts them: it refuses until it has processed the node's address.
func (s Switch) AwaitRoute(ctx context.Context) error {
	for {
		err := s.route(ctx)
		if err == nil {
			return nil
		}
		select {
		case <-ctx.Done():
			return err
		case <-time.After(20 * time.Millisecond):
		}
	}
}

func (s Switch) vsctl(ctx context.Context, args ...string) error {
	_, err := s.Group.Run(ctx, "", s.Space.Enter(append([]string{"ovs-vsctl", "--timeout=60"}, args...)...)...)
	if err != nil {
		return fmt.Errorf("configure the switch of %s: %w", s.Node.Name, err)
	}
	return nil
}

// guard drops what the node's kernel receives on links of the group: the switch reads the same frames by a packet socket, and an answer
// of the kernel would bypass the switch. It is set before the first such link is up.
const guard = `
table inet weft-lab {
	chain prerouting {
		type filter hook prerouting priority -450; policy accept;
		meta iifgroup %[1]d drop
	}
}
table arp weft-lab {
	chain input {
		type filter hook input priority -450; policy accept;
		meta iifgroup %[1]d drop
	}
}
`

// Guard keeps the kernel from bypassing the userspace datapath.
func (s Switch) Guard(ctx context.Context) error {
	rules := fmt.Sprintf(guard, plan.LinkGroup)
	if _, err := s.Group.Run(ctx, rules, s.Space.Enter("nft", "-f", "-")...); err != nil {
		return fmt.Errorf("close the kernel's way around the switch of %s: %w", s.Node.Name, err)
	}
	return nil
}

// PhyBridge adds eth0 to a userspace bridge, whose own port will have the node's address. Its MAC is fixed, so that neighbours' caches
// remain valid after a restart of the switch.
func (s Switch) PhyBridge(ctx context.Context, uplink string, mtu int) error {
	return s.vsctl(ctx,
		"--", "--may-exist", "add-br", Phy,
		"--", "set", "Bridge", Phy, "datapath_type=netdev", "other_config:hwaddr="+s.Node.MAC.String(),
		"--", "set", "Interface", Phy, fmt.Sprintf("mtu_request=%d", mtu),
		"--", "--may-exist", "add-port", Phy, uplink)
}
