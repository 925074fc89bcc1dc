package podveth

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"weft.dev/weft/internal/link"
	"weft.dev/weft/internal/link/devconf"
	"weft.dev/weft/internal/link/macvlan"
	"weft.dev/weft/internal/link/netns"
	"weft.dev/weft/internal/link/podlink"
	"weft.dev/weft/internal/link/rtnetlink"
	"weft.dev/weft/internal/link/shaping"
)

// Pods programs the veth pairs of pods, with their shapes, and their macvlans. Its methods may be called concurrently; the kernel serializes
// changes of links in any case.
type Pods struct {
	*shaping.Ports
	*macvlan.Links

	home *netns.Namespace
	conn *rtnetlink.Conn
	// reaper is for deletions: they keep a socket busy for about 20 ms, for which no creation should wait. Most of that time the kernel waits
	// for other users to release the links, after it has released its own lock. So deletions take no turn.
	reaper *rtnetlink.Conn
	// handle is for requests that need a dump; see rtnetlink.Dump.
	handle *netlink.Handle
	lister rtnetlink.Sockets
	turn   rtnetlink.Turn
	// probing is held while probe runs; probed reports that the kernel supports macvlans.
	probing sync.Mutex
	// unplugging limits how many interfaces are removed concurrently.
	unplugging chan struct{}
	probed     atomic.Bool
}

var _ podlink.Links = (*Pods)(nil)

// New returns the pod operations of the caller's network namespace.
func New() (*Pods, error) {
	home, err := netns.Home()
	if err != nil {
		return nil, err
	}
	p := &Pods{home: home, Links: macvlan.New(home), unplugging: make(chan struct{}, unplugAtOnce)}
	p.Ports = shaping.New(home, &p.turn)
	err = netns.OnThread(home, func() (err error) {
		if p.conn, err = rtnetlink.Dial(); err != nil {
			return err
		}
		if p.reaper, err = rtnetlink.Dial(); err != nil {
			return err
		}
		p.conn.Turn = &p.turn
		if p.lister, err = rtnetlink.DialLister(); err != nil {
			return err
		}
		p.handle, err = netlink.NewHandle(unix.NETLINK_ROUTE)
		return err
	})
	if err != nil {
		p.Close()
		return nil, fmt.Errorf("pod links: %w", err)
	}
	return p, nil
}

// Close releases the sockets.
func (p *Pods) Close() {
	if p.conn != nil {
		p.conn.Close()
	}
	if p.reaper != nil {
		p.reaper.Close()
	}
	if p.handle != nil {
		p.handle.Close()
	}
	p.lister.Close()
	p.home.Close()
}

// Create implements podlink.Links. It takes five netlink round trips: create and read the host veth; set the pod's end up; set the host veth's
// owner and set it up; read the pod's end; configure it.
//
// The pod's end is created in its final namespace: moving a link to another namespace takes the kernel 18 ms (rcu_barrier in
// __dev_change_net_namespace), creating one there 0.3 ms. Both ends are set up at once: for each separate change of the host veth, Open
// vSwitch iterates over all its ports.
func (p *Pods) Create(ctx context.Context, pair podlink.Pair) (podlink.Created, error) {
	if err := pair.Validate(); err != nil {
		return podlink.Created{}, fmt.Errorf("pod link %s: %w", pair.HostName, err)
	}
	if err := ctx.Err(); err != nil {
		return podlink.Created{}, fmt.Errorf("pod link %s: %w", pair.HostName, err)
	}
	pod, err := netns.Open(pair.Netns)
	if err != nil {
		return podlink.Created{}, fmt.Errorf("pod link %s: %w", pair.HostName, err)
	}
	defer pod.Close()
	c := &creation{Pods: p, pair: pair, pod: pod}
	switch {
	case pair.Preplugged != "":
		c, err = p.createPreplugged(ctx, *c)
	case pair.Shape != podlink.Shape{}:
		err = podlink.ErrUnshaped
	default:
		err = p.createPair(c)
	}
	if err != nil {
		return podlink.Created{}, fmt.Errorf("pod link %s, %s in %s: %w", pair.HostName, pair.PodName, pair.Netns, err)
	}
	host, peer := c.host.Attrs(), c.peer.Attrs()
	return podlink.Created{HostIndex: host.Index, PodIndex: peer.Index, HostMAC: host.HardwareAddr, PodMAC: peer.HardwareAddr}, nil
}

func (p *Pods) createPair(c *creation) error {
	err := netns.OnThread(p.home, c.run)
	if err != nil && c.made {
		_, undo := p.conn.Do(rtnetlink.DeleteLink(c.host.Attrs().Index))
		err = errors.Join(err, undo)
	}
	return err
}

// creation is one run of Create.
type creation struct {
	*Pods
	pair       podlink.Pair
	pod        *netns.Namespace
	podConn    *rtnetlink.Conn
	host, peer netlink.Link
	made       bool // created by this run
}

// run works on a locked thread that starts in the home namespace.
func (c *creation) run() error {
	if err := c.pod.Enter(); err != nil {
		return err
	}
	var err error
	if c.podConn, err = rtnetlink.Dial(); err != nil {
		return err
	}
	defer c.podConn.Close()
	c.podConn.Turn = &c.turn
	err = c.podDefaults(func() error {
		err := c.home.Enter()
		if err == nil {
			err = c.makeHost()
		}
		return errors.Join(err, c.pod.Enter())
	})
	if err != nil {
		return err
	}
	if err := c.configurePod(); err != nil {
		return fmt.Errorf("pod end %s: %w", c.pair.PodName, err)
	}
	return nil
}

// podDefaults runs work while new links in the pod's namespace begin with the IPv6 settings of the pod's interface, which have to be set
// before it is up. The thread is in that namespace before and after.
func (c *creation) podDefaults(work func() error) error {
	var restore func() error
	err := c.turn.Do(func() (err error) {
		restore, err = devconf.SwapDefaults(link.Sysctls{DisableIPv6: c.pair.PodSettings().DisableIPv6, AcceptRA: link.Off})
		return err
	})
	if err != nil {
		return err
	}
	err = work()
	return errors.Join(err, c.turn.Do(restore))
}

// makeHost creates the pair, or finds the one that an earlier run has created, and configures the host veth.
func (c *creation) makeHost() error {
	if err := c.makePair(); err != nil {
		return err
	}
	if c.made {
		answers, err := c.podConn.Do(rtnetlink.SetUpByName(c.pair.PodName))
		if err := errors.Join(err, rtnetlink.All(answers, []string{"setting the pod end up"})); err != nil {
			return err
		}
	}
	name, index := c.pair.HostName, c.host.Attrs().Index
	if !c.made { // the MTU decides whether there are IPv6 settings
		answers, err := c.conn.Do(rtnetlink.SetLink(index, rtnetlink.GroupAttr(c.pair.HostGroup)), rtnetlink.SetLink(index, rtnetlink.MTUAttr(c.pair.LinkMTU())))
		if err := errors.Join(err, rtnetlink.All(answers, []string{"setting the host end's group", "setting the host end's mtu"})); err != nil {
			return err
		}
	}
	if err := c.turn.Do(func() error { return devconf.WriteSysctls(name, podlink.HostSysctls()) }); err != nil {
		return fmt.Errorf("host end: %w", err)
	}
	answers, err := c.conn.Do(rtnetlink.SetLink(index, rtnetlink.AliasAttr(c.pair.Alias())), rtnetlink.SetState(index, true))
	return errors.Join(err, rtnetlink.All(answers, []string{"setting the host end's alias", "setting the host end up"}))
}

// makePair sets host. An existing pair is adopted if it is the same pair, and replaced if it has the same owner but its other end is
// elsewhere: an earlier sandbox's.
func (c *creation) makePair() error {
	for attempt := 0; ; attempt++ {
		near := rtnetlink.LinkEnd{Name: c.pair.HostName, MTU: c.pair.LinkMTU(), Group: c.pair.HostGroup, Netns: -1}
		if c.pair.TxOffloadOff {
			near.Flags = unix.IFF_PROMISC // the switch would set it anyway: one more change of a link, and another iteration over all ports
		}
		far := rtnetlink.LinkEnd{Name: c.pair.PodName, MTU: c.pair.LinkMTU(), MAC: c.pair.PodMAC, Netns: c.pod.FD()}
		answers, err := c.conn.Do(rtnetlink.NewVeth(near, far), rtnetlink.GetLink(c.pair.HostName))
		if err != nil {
			return err
		}
		if answers[0].Err == nil {
			c.made, c.host = true, answers[1].Link
			return rtnetlink.All(answers, []string{"making the pair", "looking at the host end"})
		}
		if !errors.Is(answers[0].Err, unix.EEXIST) || attempt > 0 {
			return fmt.Errorf("making the pair: %w", answers[0].Err)
		}
		stale, err := c.adopt(answers[1].Link)
		if err != nil || stale == nil {
			return err
		}
		removed, err := c.conn.Do(rtnetlink.DeleteLink(stale.Attrs().Index))
		if err == nil {
			err = removed[0].Err
		}
		if err != nil {
			return fmt.Errorf("removing the stale pair: %w", err)
		}
	}
}

// adopt judges an existing link with the pair's name. It sets host if the link is the pair itself, returns a link to be removed if it is
// Weft's but not this pair, and else an error that names the conflicting link.
func (c *creation) adopt(host netlink.Link) (stale netlink.Link, err error) {
	peer, err := c.lookInPod()
	if err != nil {
		return nil, err
	}
	paired := host != nil && peer != nil && c.paired(host, peer)
	if peer != nil && !paired {
		return nil, fmt.Errorf("%s (%s) in the pod: %w", c.pair.PodName, peer.Type(), link.ErrForeign)
	}
	if host == nil {
		return nil, errors.New("the pair appeared and disappeared while it was being made")
	}
	alias := host.Attrs().Alias
	mine := alias == c.pair.Alias() ||
		alias == "" && (paired || c.pair.HostGroup != 0 && host.Attrs().Group == c.pair.HostGroup)
	switch {
	case host.Type() != "veth" || !mine:
		return nil, fmt.Errorf("%s (%s, alias %q) on the host: %w", c.pair.HostName, host.Type(), alias, link.ErrForeign)
	case paired:
		c.host = host
		return nil, nil
	default:
		return host, nil
	}
}

// paired reports whether the two links are ends of one pair: each has the other's index, and the host veth refers to the pod's namespace as
// that of its other end.
func (c *creation) paired(host, peer netlink.Link) bool {
	if host.Type() != "veth" || peer.Type() != "veth" ||
		host.Attrs().ParentIndex != peer.Attrs().Index || peer.Attrs().ParentIndex != host.Attrs().Index {
		return false
	}
	id, err := c.handle.GetNetNsIdByFd(c.pod.FD())
	return err == nil && id == host.Attrs().NetNsID
}

// lookInPod returns the pod's end, or nil if it does not exist. It enters the pod's namespace and returns.
func (c *creation) lookInPod() (netlink.Link, error) {
	if err := c.pod.Enter(); err != nil {
		return nil, err
	}
	conn, err := rtnetlink.Dial()
	if err != nil {
		return nil, errors.Join(err, c.home.Enter())
	}
	defer conn.Close()
	answers, err := conn.Do(rtnetlink.GetLink(c.pair.PodName))
	if err := errors.Join(err, c.home.Enter()); err != nil {
		return nil, err
	}
	if err := answers[0].Err; err != nil && !errors.Is(err, unix.ENODEV) {
		return nil, fmt.Errorf("looking for %s in the pod: %w", c.pair.PodName, err)
	}
	return answers[0].Link, nil
}

// configurePod runs in the pod's namespace.
func (c *creation) configurePod() error {
	answers, err := c.podConn.Do(rtnetlink.SetState(rtnetlink.Loopback, true), rtnetlink.GetLink(c.pair.PodName))
	if err := errors.Join(err, rtnetlink.All(answers, []string{"setting lo up", "looking at it"})); err != nil {
		return err
	}
	c.peer = answers[1].Link
	if !c.made { // the MTU decides whether there are IPv6 settings
		answers, err := c.podConn.Do(rtnetlink.SetLink(c.peer.Attrs().Index, rtnetlink.MTUAttr(c.pair.LinkMTU())))
		if err := errors.Join(err, rtnetlink.All(answers, []string{"setting its mtu"})); err != nil {
			return err
		}
	}
	if !c.made || c.pair.PodSysctls != (link.Sysctls{}) { // otherwise it was created with them
		if err := c.turn.Do(func() error { return devconf.WriteSysctls(c.pair.PodName, c.pair.PodSettings()) }); err != nil {
			return err
		}
	}
	if c.pair.TxOffloadOff && c.pair.Preplugged == "" {
		if err := devconf.SetTxOffload(c.pair.PodName, link.Off); err != nil {
			return err
		}
	}
	var list rtnetlink.Plan
	if !c.made {
		if err := c.repair(&list); err != nil {
			return err
		}
	}
	index := c.peer.Attrs().Index
	for _, address := range c.pair.PodAddresses {
		list.Add("adding address "+address.String(), rtnetlink.SetAddress(index, address, c.pair.NoPrefixRoute))
	}
	list.Add("setting it up", rtnetlink.SetState(index, true))
	for _, route := range c.pair.PodRoutes {
		device := index
		if route.Blackhole {
			device = 0
		}
		list.Add("adding "+route.String(), rtnetlink.SetRoute(route, device))
	}
	return list.Run(c.podConn)
}

// repair adds to the plan what an existing pod's end needs before it is configured like a new one: the desired MAC, and the removal of
// addresses and routes that are not desired.
func (c *creation) repair(list *rtnetlink.Plan) error {
	handle, err := netlink.NewHandle(unix.NETLINK_ROUTE)
	if err != nil {
		return fmt.Errorf("opening a netlink socket: %w", err)
	}
	defer handle.Close()
	attrs := c.peer.Attrs()
	if len(c.pair.PodMAC) != 0 {
		list.Add("setting its MAC", rtnetlink.SetLink(attrs.Index, rtnetlink.MACAttr(c.pair.PodMAC)))
		attrs.HardwareAddr = c.pair.PodMAC
	}
	addresses, _, err := rtnetlink.DeviceAddresses(handle, attrs.Index)
	if err != nil {
		return err
	}
	for _, address := range addresses {
		if !slices.Contains(c.pair.PodAddresses, address) {
			list.Add("removing address "+address.String(), rtnetlink.DeleteAddress(attrs.Index, address))
		}
	}
	have, err := rtnetlink.ReadRoutes(handle, map[int]string{attrs.Index: c.pair.PodName})
	if err != nil {
		return err
	}
	for _, route := range c.pair.PodRoutes {
		delete(have, c.pair.PodRoute(route).Key())
	}
	for _, route := range have {
		if route.Device != c.pair.PodName {
			continue // another interface's of the pod, or another program's
		}
		// The removal of an address above may have removed its routes.
		list.AddUnless(unix.ESRCH, "removing "+route.String(), rtnetlink.DeleteRoute(*route, 0))
	}
	return nil
}
