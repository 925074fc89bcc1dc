package neutron

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"strconv"
	"strings"
	"time"

	"github.com/gophercloud/gophercloud/v2/openstack/networking/v2/extensions/portsbinding"
	"github.com/gophercloud/gophercloud/v2/openstack/networking/v2/ports"
	"golang.org/x/sync/errgroup"

	"weft.dev/weft/lab"
	stack "weft.dev/weft/lab/stack/openstack"
	"weft.dev/weft/test/bench/measure"
	"weft.dev/weft/test/probe"
)

// This file is the peer of the tenant's pods: the bare calls of OpenStack, and the switch's own commands.

// concurrent is the number of calls that the peer of a burst makes at a time.
const concurrent = 8

// bare is the peer.
type bare struct{ *Scene }

// createPort creates a port of the tenant's network that is bound to a node.
func (s bare) createPort(ctx context.Context, node, name string) (*ports.Port, error) {
	up := true
	port, err := ports.Create(ctx, s.admin.Network, portsbinding.CreateOptsExt{
		CreateOptsBuilder: ports.CreateOpts{
			NetworkID: s.network.Status.NetworkID, Name: name, AdminStateUp: &up, DeviceOwner: "compute:" + node,
		},
		HostID: node,
	}).Extract()
	if err != nil {
		return nil, fmt.Errorf("create port %s: %w", name, err)
	}
	return port, nil
}

func (s bare) deletePort(ctx context.Context, id string) error {
	if err := ports.Delete(ctx, s.admin.Network, id).ExtractErr(); err != nil {
		return fmt.Errorf("delete port %s: %w", id, err)
	}
	return nil
}

// device is the name of a port's host veth, and of its network namespace.
func device(name string) string { return "hand-" + name }

// plug gives a namespace the interface of a port, and adds it to br-int.
func plug(ctx context.Context, n lab.Node, name string, port *ports.Port) error {
	at := device(name)
	addr, err := netip.ParseAddr(port.FixedIPs[0].IPAddress)
	if err != nil {
		return fmt.Errorf("port %s: %w", name, err)
	}
	return script(ctx, n,
		"ip netns add "+at,
		"ip link add "+at+" up type veth peer name eth0 address "+port.MACAddress+" mtu 1400 netns "+at,
		"ip -n "+at+" -batch - <<E\nlink set lo up\naddr add "+addr.String()+"/16 dev eth0\nlink set eth0 up\nE",
		"ip netns exec "+at+" ethtool -K eth0 tx off >/dev/null", // as the userspace datapath needs
		"ovs-vsctl --timeout=60 add-port "+stack.Integration+" "+at+" -- set Interface "+at+" external_ids:iface-id="+port.ID+
			" external_ids:attached-mac='\""+port.MACAddress+"\"' external_ids:iface-status=active",
	)
}

// unplug removes what plug added.
func unplug(ctx context.Context, n lab.Node, name string) error {
	at := device(name)
	return script(ctx, n, "ovs-vsctl --timeout=60 --if-exists del-port "+at, "ip link del "+at, "ip netns del "+at)
}

// script runs shell commands on a node.
func script(ctx context.Context, n lab.Node, lines ...string) error {
	_, err := probe.Run(ctx, n.Enter("sh", "-e", "-c", strings.Join(lines, "\n")))
	return err
}

var errInactive = errors.New("it is not ACTIVE")

// active waits until Neutron reports a port as ACTIVE.
func (s bare) active(ctx context.Context, id string) error {
	_, err := probe.Await(ctx, limit, "port "+id, func(ctx context.Context) error {
		port, err := ports.Get(ctx, s.admin.Network, id).Extract()
		if err == nil && port.Status != "ACTIVE" {
			err = errInactive
		}
		return err
	})
	return err //nolint:wrapcheck // it says what was waited for
}

// addCold creates a port, plugs it, and waits until it is ACTIVE.
func (s bare) addCold(ctx context.Context) (measure.Figures, error) {
	name, node := "c"+strconv.Itoa(s.round("bare-cold")), s.Node(2)
	began := time.Now()
	port, err := s.createPort(ctx, node.Name, name)
	if err != nil {
		return nil, err
	}
	if err := plug(ctx, node, name, port); err != nil {
		return nil, err
	}
	if err := s.active(ctx, port.ID); err != nil {
		return nil, err
	}
	figures := measure.Figures{Cold: milliseconds(time.Since(began))}
	return figures, errors.Join(unplug(ctx, node, name), s.deletePort(ctx, port.ID))
}

// burst creates as many bound ports as a burst has pods, each by a call of its own.
func (s bare) burst(ctx context.Context) (measure.Figures, error) {
	round := s.round("bare-burst")
	made := [burstPods]*ports.Port{}
	var creating, deleting errgroup.Group
	creating.SetLimit(concurrent)
	deleting.SetLimit(concurrent)
	began := time.Now()
	for i := range burstPods {
		creating.Go(func() (err error) {
			made[i], err = s.createPort(ctx, s.Node(1+i%nodes).Name, fmt.Sprintf("b%d-%d", round, i))
			return err
		})
	}
	if err := creating.Wait(); err != nil {
		return nil, err
	}
	figures := measure.Figures{Burst: milliseconds(time.Since(began))}
	for _, port := range made {
		deleting.Go(func() error { return s.deletePort(ctx, port.ID) })
	}
	return figures, deleting.Wait()
}
