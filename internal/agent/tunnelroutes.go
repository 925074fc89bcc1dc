package agent

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net/netip"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/vishvananda/netlink"

	"weft.dev/weft/internal/openflow/ofproto"
	"weft.dev/weft/internal/ovsdb"
)

// tunnelRoutes keeps routes to the other nodes' addresses in a userspace switch, the same as the kernel's. Such a switch
// follows the kernel's routes by itself, but up to Open vSwitch 3.1 at least it forgets them all and reads them anew at
// every change of any link of the node, and drops tunnelled packets for some 10 ms meanwhile: 0.2 to 0.5 % of them while
// pods come and go. Routes that it was told stay in its table.
//
// That alone does not end the loss: with these routes in place, beside those that the switch goes on learning, 27 to 83 of
// 5000 packets were still lost while 200 veths were made and removed (without them 85 and 86). None were lost so far only by
// switches that were started with --disable-system-route.
//
// Routes to single addresses of other nodes are taken over from whoever told them to the switch. Those of nodes that left
// while no agent ran stay until the switch is restarted.
type tunnelRoutes struct {
	// socket is a pattern for the control socket of ovs-vswitchd; one that was killed leaves its own behind.
	socket string
	log    *slog.Logger
	// own are the addresses that this agent has set routes to.
	own map[netip.Addr]bool

	mu sync.Mutex
	// unreachable says which address the switch cannot tunnel to.
	unreachable error
}

// switchRoute is a route to one address. The zero gateway: it is on the device's own network.
type switchRoute struct {
	device          string
	gateway, source netip.Addr
}

// commandTimeout bounds a command to the switch, which answers within milliseconds unless it is busy with its bridges.
const commandTimeout = 5 * time.Second

func newTunnelRoutes(runDir string, log *slog.Logger) *tunnelRoutes {
	return &tunnelRoutes{socket: filepath.Join(runDir, "ovs-vswitchd.*.ctl"), log: log, own: map[netip.Addr]bool{}}
}

// state says which address the switch cannot tunnel to, if any.
func (r *tunnelRoutes) state() error {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.unreachable
}

// sync brings the switch's routes in step with the kernel's. An address that fails keeps no other.
func (r *tunnelRoutes) sync(ctx context.Context, ends []netip.Addr) error {
	if len(ends) == 0 && len(r.own) == 0 {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, commandTimeout)
	defer cancel()
	datapaths, err := r.command(ctx, "dpif/show")
	if err != nil {
		return err
	}
	told, err := r.command(ctx, "ovs/route/show")
	if err != nil {
		return err
	}
	want, unknown := r.wanted(ends, userspaceBridges(datapaths))
	errs := []error{unknown}
	set, remove := routeChanges(want, userRoutes(told), r.own)
	for _, end := range remove {
		if _, err := r.command(ctx, "ovs/route/del", hostPrefix(end)); err != nil {
			errs = append(errs, err)
			continue
		}
		delete(r.own, end)
	}
	for _, end := range set {
		if err := r.add(ctx, end, want[end]); err != nil {
			errs = append(errs, err)
			continue
		}
		r.own[end] = true
	}
	return errors.Join(errs...)
}

// wanted returns the kernel's routes to the addresses, as far as the switch can use them: it sends tunnelled packets out of
// a bridge of its own.
func (r *tunnelRoutes) wanted(ends []netip.Addr, bridges map[string]bool) (map[netip.Addr]switchRoute, error) {
	want := map[netip.Addr]switchRoute{}
	var errs []error
	var unreachable error
	for _, end := range ends {
		route, err := kernelRoute(end)
		switch {
		case err != nil:
			errs = append(errs, fmt.Errorf("route to %s: %w", end, err))
		case bridges[route.device]:
			want[end] = route
		default:
			unreachable = fmt.Errorf("the userspace datapath cannot send to %s: the route to it is by %s, which is no bridge with datapath_type %s; "+
				"plug the node's network interface into such a bridge and move the node's address to it", end, route.device, ovsdb.DatapathNetdev)
		}
	}
	r.tell(unreachable)
	return want, errors.Join(errs...)
}

// tell notes that the switch cannot tunnel to an address, and logs it when it is new.
func (r *tunnelRoutes) tell(unreachable error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	switch {
	case unreachable != nil && r.unreachable == nil:
		r.log.Warn("pods of this node do not reach all nodes", "error", unreachable)
	case unreachable == nil && r.unreachable != nil:
		r.log.Info("the userspace datapath can send to all nodes that the kernel has routes to")
	}
	r.unreachable = unreachable
}

// add sets a route, in place of one that is there. Switches that do not take a source choose one as they do for the
// kernel's routes.
func (r *tunnelRoutes) add(ctx context.Context, end netip.Addr, route switchRoute) error {
	args := []string{hostPrefix(end), route.device}
	if route.gateway.IsValid() {
		args = append(args, route.gateway.String())
	}
	if route.source.IsValid() {
		_, err := r.command(ctx, "ovs/route/add", append(slices.Clone(args), "src="+route.source.String())...)
		if !errors.Is(err, ofproto.ErrCommand) {
			return err
		}
	}
	_, err := r.command(ctx, "ovs/route/add", args...)
	return err
}

// command has whichever switch of the pattern is alive run a command.
func (r *tunnelRoutes) command(ctx context.Context, name string, args ...string) (string, error) {
	paths, err := filepath.Glob(r.socket)
	if err != nil {
		return "", fmt.Errorf("control socket %s: %w", r.socket, err)
	}
	err = fmt.Errorf("no control socket %s", r.socket)
	for _, path := range paths {
		var text string
		if text, err = ofproto.Command(ctx, path, name, args...); err == nil || errors.Is(err, ofproto.ErrCommand) {
			return text, err
		}
	}
	return "", err
}

// kernelRoute returns the way that the kernel would send to an address.
func kernelRoute(end netip.Addr) (switchRoute, error) {
	routes, err := netlink.RouteGet(end.AsSlice())
	if err != nil {
		return switchRoute{}, fmt.Errorf("asking the kernel: %w", err)
	}
	if len(routes) == 0 {
		return switchRoute{}, errors.New("the kernel has none")
	}
	device, err := netlink.LinkByIndex(routes[0].LinkIndex)
	if err != nil {
		return switchRoute{}, fmt.Errorf("its device: %w", err)
	}
	route := switchRoute{device: device.Attrs().Name}
	if gateway, ok := netip.AddrFromSlice(routes[0].Gw); ok {
		route.gateway = gateway.Unmap()
	}
	if source, ok := netip.AddrFromSlice(routes[0].Src); ok {
		route.source = source.Unmap()
	}
	return route, nil
}

func hostPrefix(end netip.Addr) string { return netip.PrefixFrom(end, end.BitLen()).String() }

// routeChanges returns the addresses whose routes are to be set, and those whose routes are to be removed, in order: of the
// agent's own, those to nowhere.
func routeChanges(want, have map[netip.Addr]switchRoute, own map[netip.Addr]bool) (set, remove []netip.Addr) {
	for _, end := range slices.SortedFunc(maps.Keys(want), netip.Addr.Compare) {
		if route, there := have[end]; !there || route != want[end] {
			set = append(set, end)
		}
	}
	for _, end := range slices.SortedFunc(maps.Keys(own), netip.Addr.Compare) {
		_, wanted := want[end]
		if _, there := have[end]; there && !wanted {
			remove = append(remove, end)
		}
	}
	return set, remove
}

// userRoutes reads ovs/route/show: the routes that the switch was told, to single addresses and for packets without a mark,
// such as "User: 192.0.2.2/32 dev br-phy GW 192.0.2.254 SRC 192.0.2.1".
func userRoutes(text string) map[netip.Addr]switchRoute {
	found := map[netip.Addr]switchRoute{}
	for line := range strings.Lines(text) {
		fields := strings.Fields(line)
		if len(fields) < 2 || fields[0] != "User:" || slices.Contains(fields, "MARK") {
			continue
		}
		prefix, err := netip.ParsePrefix(fields[1])
		if err != nil || !prefix.IsSingleIP() {
			continue
		}
		var route switchRoute
		for i := 2; i+1 < len(fields); i++ {
			address, _ := netip.ParseAddr(fields[i+1]) // the zero one is not what anybody wants
			switch fields[i] {
			case "dev":
				route.device = fields[i+1]
			case "GW":
				route.gateway = address
			case "SRC":
				route.source = address
			}
		}
		found[prefix.Addr()] = route
	}
	return found
}

// userspaceBridges reads dpif/show: a line "netdev@ovs-netdev: ..." for a datapath, under it its bridges, indented by two
// and with a colon, under each its ports, indented further.
func userspaceBridges(text string) map[string]bool {
	found := map[string]bool{}
	userspace := false
	for line := range strings.Lines(text) {
		name, indented := strings.CutPrefix(line, "  ")
		switch {
		case !indented:
			userspace = strings.HasPrefix(line, ovsdb.DatapathNetdev+"@")
		case userspace && !strings.HasPrefix(name, " "):
			found[strings.TrimSuffix(strings.TrimSpace(name), ":")] = true
		}
	}
	return found
}
