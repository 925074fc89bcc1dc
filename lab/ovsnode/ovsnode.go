// Package ovsnode gives a node its Open vSwitch: a database server and a switch of its own, and on the userspace
// datapath the bridge that the node's own address sits on.
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

// Phy is the userspace bridge that eth0 is plugged into.
const Phy = "br-phy"

// schema is where Debian's openvswitch-common installs it.
const schema = "/usr/share/openvswitch/vswitch.ovsschema"

// Switch is a node's Open vSwitch.
type Switch struct {
	Node  plan.Node
	Space ground.Space
	Group *process.Group
	// Routes are set on the userspace datapath only, where tunnels end in the switch itself: its own way to the other
	// nodes.
	Routes *Routes
}

func (s Switch) db() string { return filepath.Join(s.Node.Dir, "ovs", "conf.db") }

// Start brings both daemons up. They use Open vSwitch's usual paths, which are the node's own.
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
		// Its control socket is where ovs-appctl looks for it.
		Argv: s.Space.Enter(append([]string{
			"ovs-vswitchd", "unix:/run/openvswitch/db.sock",
			"--pidfile=/run/openvswitch/ovs-vswitchd.pid",
		}, s.ownRoutes()...)...),
		Started: s.routeAgain,
		Ready: func(ctx context.Context) error {
			_, err := s.Group.Run(ctx, "", s.Space.Enter("ovs-appctl", "-t", "ovs-vswitchd", "version")...)
			return err
		},
	}
}

// ownRoutes keeps the userspace datapath from following the kernel's routes: at every change of any link of the node it
// forgets them all and reads them anew (Open vSwitch 3.1, route_table_reset), and a revalidation that falls into that gap
// drops tunnelled packets of everybody for some 10 ms. Pods that come and go change links all the time.
func (s Switch) ownRoutes() []string {
	if s.Routes != nil {
		return []string{"--disable-system-route"}
	}
	return nil
}

// Routes are a userspace switch's way to the other nodes.
type Routes struct {
	Underlay netip.Prefix
	Router   netip.Addr
}

// route puts the routes in the switch; the node's address has to be there, for it becomes the tunnels' source.
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

// routeAgain puts the routes in a switch that has just started.
func (s Switch) routeAgain() {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	_ = s.AwaitRoute(ctx) // tunnels that stay without a route are what the lab's users then see
}

// AwaitRoute puts the routes in the switch as soon as it takes them: it refuses until it has noticed the node's address.
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

// guard drops what the node's kernel gets by links of the group: the switch reads the same frames by a packet socket,
// and whatever the kernel answered beside it would be a way around the switch. There before the first such link is up.
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

// Guard closes the kernel's way around the userspace datapath.
func (s Switch) Guard(ctx context.Context) error {
	rules := fmt.Sprintf(guard, plan.LinkGroup)
	if _, err := s.Group.Run(ctx, rules, s.Space.Enter("nft", "-f", "-")...); err != nil {
		return fmt.Errorf("close the kernel's way around the switch of %s: %w", s.Node.Name, err)
	}
	return nil
}

// PhyBridge plugs eth0 into a userspace bridge, whose own port will carry the node's address. Its MAC is fixed, so that
// neighbours still know it after the switch was restarted.
func (s Switch) PhyBridge(ctx context.Context, uplink string, mtu int) error {
	return s.vsctl(ctx,
		"--", "--may-exist", "add-br", Phy,
		"--", "set", "Bridge", Phy, "datapath_type=netdev", "other_config:hwaddr="+s.Node.MAC.String(),
		"--", "set", "Interface", Phy, fmt.Sprintf("mtu_request=%d", mtu),
		"--", "--may-exist", "add-port", Phy, uplink)
}
