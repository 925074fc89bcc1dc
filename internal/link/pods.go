package link

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"sync/atomic"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"
)

// Pods programs the veth pairs of pods, with their shapes, and their macvlans. Its methods may be called concurrently; the kernel serializes changes of links in any case.
type Pods struct {
	*shapedPorts
	*macvlanLinks

	home *namespace
	conn *conn
	// reaper is for deletions: they keep a socket busy for about 20 ms, for which no creation should wait. Most of that time the kernel waits
	// for other users to release the links, after it has released its own lock. So deletions take no turn.
	reaper *conn
	// handle is for requests that need a dump; see dump.
	handle *netlink.Handle
	lister sockets
	turn   turn
	// probing is held while probe runs; probed reports that the kernel supports macvlans.
	probing sync.Mutex
	// unplugging limits how many interfaces are removed concurrently.
	unplugging chan struct{}
	probed     atomic.Bool
}

var _ PodLinks = (*Pods)(nil)

// NewPods returns the pod operations of the caller's network namespace.
func NewPods() (*Pods, error) {
	home, err := homeNamespace()
	if err != nil {
		return nil, err
	}
	p := &Pods{home: home, macvlanLinks: &macvlanLinks{home}, unplugging: make(chan struct{}, unplugAtOnce)}
	p.shapedPorts = &shapedPorts{home, &p.turn}
	err = onThread(home, func() (err error) {
		if p.conn, err = dial(); err != nil {
			return err
		}
		if p.reaper, err = dial(); err != nil {
			return err
		}
		p.conn.turn = &p.turn
		if p.lister, err = dialLister(); err != nil {
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
		p.conn.close()
	}
	if p.reaper != nil {
		p.reaper.close()
	}
	if p.handle != nil {
		p.handle.Close()
	}
	p.lister.close()
	p.home.close()
}

// Create implements PodLinks. It takes five netlink round trips: create and read the host veth; set the pod's end up; set the host veth's
// owner and set it up; read the pod's end; configure it.
//
// The pod's end is created in its final namespace: moving a link to another namespace takes the kernel 18 ms (rcu_barrier in
// __dev_change_net_namespace), creating one there 0.3 ms. Both ends are set up at once: for each separate change of the host veth, Open
// vSwitch iterates over all its ports.
func (p *Pods) Create(ctx context.Context, pair Pair) (Created, error) {
	if err := pair.validate(); err != nil {
		return Created{}, fmt.Errorf("pod link %s: %w", pair.HostName, err)
	}
	if err := ctx.Err(); err != nil {
		return Created{}, fmt.Errorf("pod link %s: %w", pair.HostName, err)
	}
	pod, err := openNamespace(pair.Netns)
	if err != nil {
		return Created{}, fmt.Errorf("pod link %s: %w", pair.HostName, err)
	}
	defer pod.close()
	c := &creation{Pods: p, pair: pair, pod: pod}
	switch {
	case pair.Preplugged != "":
		c, err = p.createPreplugged(ctx, *c)
	case pair.Shape != Shape{}:
		err = errUnshaped
	default:
		err = p.createPair(c)
	}
	if err != nil {
		return Created{}, fmt.Errorf("pod link %s, %s in %s: %w", pair.HostName, pair.PodName, pair.Netns, err)
	}
	host, peer := c.host.Attrs(), c.peer.Attrs()
	return Created{HostIndex: host.Index, PodIndex: peer.Index, HostMAC: host.HardwareAddr, PodMAC: peer.HardwareAddr}, nil
}

func (p *Pods) createPair(c *creation) error {
	err := onThread(p.home, c.run)
	if err != nil && c.made {
		_, undo := p.conn.do(deleteLink(c.host.Attrs().Index))
		err = errors.Join(err, undo)
	}
	return err
}

// creation is one run of Create.
type creation struct {
	*Pods
	pair       Pair
	pod        *namespace
	podConn    *conn
	host, peer netlink.Link
	made       bool // created by this run
}

// run works on a locked thread that starts in the home namespace.
func (c *creation) run() error {
	if err := c.pod.enter(); err != nil {
		return err
	}
	var err error
	if c.podConn, err = dial(); err != nil {
		return err
	}
	defer c.podConn.close()
	c.podConn.turn = &c.turn
	err = c.podDefaults(func() error {
		err := c.home.enter()
		if err == nil {
			err = c.makeHost()
		}
		return errors.Join(err, c.pod.enter())
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
	err := c.turn.do(func() (err error) {
		restore, err = swapDefaults(Sysctls{DisableIPv6: c.pair.podSysctls().DisableIPv6, AcceptRA: Off})
		return err
	})
	if err != nil {
		return err
	}
	err = work()
	return errors.Join(err, c.turn.do(restore))
}

// makeHost creates the pair, or finds the one that an earlier run has created, and configures the host veth.
func (c *creation) makeHost() error {
	if err := c.makePair(); err != nil {
		return err
	}
	if c.made {
		answers, err := c.podConn.do(setUpByName(c.pair.PodName))
		if err := errors.Join(err, all(answers, []string{"setting the pod end up"})); err != nil {
			return err
		}
	}
	name, index := c.pair.HostName, c.host.Attrs().Index
	if !c.made { // the MTU decides whether there are IPv6 settings
		answers, err := c.conn.do(setLink(index, groupAttr(c.pair.HostGroup)), setLink(index, mtuAttr(c.pair.mtu())))
		if err := errors.Join(err, all(answers, []string{"setting the host end's group", "setting the host end's mtu"})); err != nil {
			return err
		}
	}
	if err := c.turn.do(func() error { return writeSysctls(name, hostSysctls()) }); err != nil {
		return fmt.Errorf("host end: %w", err)
	}
	answers, err := c.conn.do(setLink(index, aliasAttr(c.pair.alias())), setState(index, true))
	return errors.Join(err, all(answers, []string{"setting the host end's alias", "setting the host end up"}))
}

// makePair sets host. An existing pair is adopted if it is the same pair, and replaced if it has the same owner but its other end is
// elsewhere: an earlier sandbox's.
func (c *creation) makePair() error {
	for attempt := 0; ; attempt++ {
		near := linkEnd{name: c.pair.HostName, mtu: c.pair.mtu(), group: c.pair.HostGroup, netns: -1}
		if c.pair.TxOffloadOff {
			near.flags = unix.IFF_PROMISC // the switch would set it anyway: one more change of a link, and another iteration over all ports
		}
		far := linkEnd{name: c.pair.PodName, mtu: c.pair.mtu(), mac: c.pair.PodMAC, netns: int(c.pod.file.Fd())}
		answers, err := c.conn.do(newVeth(near, far), getLink(c.pair.HostName))
		if err != nil {
			return err
		}
		if answers[0].err == nil {
			c.made, c.host = true, answers[1].link
			return all(answers, []string{"making the pair", "looking at the host end"})
		}
		if !errors.Is(answers[0].err, unix.EEXIST) || attempt > 0 {
			return fmt.Errorf("making the pair: %w", answers[0].err)
		}
		stale, err := c.adopt(answers[1].link)
		if err != nil || stale == nil {
			return err
		}
		removed, err := c.conn.do(deleteLink(stale.Attrs().Index))
		if err == nil {
			err = removed[0].err
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
		return nil, fmt.Errorf("%s (%s) in the pod: %w", c.pair.PodName, peer.Type(), ErrForeign)
	}
	if host == nil {
		return nil, errors.New("the pair appeared and disappeared while it was being made")
	}
	alias := host.Attrs().Alias
	mine := alias == c.pair.alias() ||
		alias == "" && (paired || c.pair.HostGroup != 0 && host.Attrs().Group == c.pair.HostGroup)
	switch {
	case host.Type() != "veth" || !mine:
		return nil, fmt.Errorf("%s (%s, alias %q) on the host: %w", c.pair.HostName, host.Type(), alias, ErrForeign)
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
	id, err := c.handle.GetNetNsIdByFd(int(c.pod.file.Fd()))
	return err == nil && id == host.Attrs().NetNsID
}

// lookInPod returns the pod's end, or nil if it does not exist. It enters the pod's namespace and returns.
func (c *creation) lookInPod() (netlink.Link, error) {
	if err := c.pod.enter(); err != nil {
		return nil, err
	}
	conn, err := dial()
	if err != nil {
		return nil, errors.Join(err, c.home.enter())
	}
	defer conn.close()
	answers, err := conn.do(getLink(c.pair.PodName))
	if err := errors.Join(err, c.home.enter()); err != nil {
		return nil, err
	}
	if err := answers[0].err; err != nil && !errors.Is(err, unix.ENODEV) {
		return nil, fmt.Errorf("looking for %s in the pod: %w", c.pair.PodName, err)
	}
	return answers[0].link, nil
}

// configurePod runs in the pod's namespace.
func (c *creation) configurePod() error {
	answers, err := c.podConn.do(setState(loopback, true), getLink(c.pair.PodName))
	if err := errors.Join(err, all(answers, []string{"setting lo up", "looking at it"})); err != nil {
		return err
	}
	c.peer = answers[1].link
	if !c.made { // the MTU decides whether there are IPv6 settings
		answers, err := c.podConn.do(setLink(c.peer.Attrs().Index, mtuAttr(c.pair.mtu())))
		if err := errors.Join(err, all(answers, []string{"setting its mtu"})); err != nil {
			return err
		}
	}
	if !c.made || c.pair.PodSysctls != (Sysctls{}) { // otherwise it was created with them
		if err := c.turn.do(func() error { return writeSysctls(c.pair.PodName, c.pair.podSysctls()) }); err != nil {
			return err
		}
	}
	if c.pair.TxOffloadOff && c.pair.Preplugged == "" {
		if err := setTxOffload(c.pair.PodName, Off); err != nil {
			return err
		}
	}
	var list plan
	if !c.made {
		if err := c.repair(&list); err != nil {
			return err
		}
	}
	index := c.peer.Attrs().Index
	for _, address := range c.pair.PodAddresses {
		list.add("adding address "+address.String(), setAddress(index, address, c.pair.NoPrefixRoute))
	}
	list.add("setting it up", setState(index, true))
	for _, route := range c.pair.PodRoutes {
		device := index
		if route.Blackhole {
			device = 0
		}
		list.add("adding "+route.String(), setRoute(route, device))
	}
	return list.run(c.podConn)
}

// repair adds to the plan what an existing pod's end needs before it is configured like a new one: the desired MAC, and the removal of
// addresses and routes that are not desired.
func (c *creation) repair(list *plan) error {
	handle, err := netlink.NewHandle(unix.NETLINK_ROUTE)
	if err != nil {
		return fmt.Errorf("opening a netlink socket: %w", err)
	}
	defer handle.Close()
	attrs := c.peer.Attrs()
	if len(c.pair.PodMAC) != 0 {
		list.add("setting its MAC", setLink(attrs.Index, macAttr(c.pair.PodMAC)))
		attrs.HardwareAddr = c.pair.PodMAC
	}
	addresses, _, err := deviceAddresses(handle, attrs.Index)
	if err != nil {
		return err
	}
	for _, address := range addresses {
		if !slices.Contains(c.pair.PodAddresses, address) {
			list.add("removing address "+address.String(), deleteAddress(attrs.Index, address))
		}
	}
	have, err := readRoutes(handle, map[int]string{attrs.Index: c.pair.PodName})
	if err != nil {
		return err
	}
	for _, route := range c.pair.PodRoutes {
		delete(have, c.pair.podRoute(route).Key())
	}
	for _, route := range have {
		if route.Device != c.pair.PodName {
			continue // another interface's of the pod, or another program's
		}
		// The removal of an address above may have removed its routes.
		list.addUnless(unix.ESRCH, "removing "+route.String(), deleteRoute(*route, 0))
	}
	return nil
}

// plan is a list of requests, each with its purpose.
type plan struct {
	requests []*nl.NetlinkRequest
	what     []string
	ignore   map[int]error
}

func (l *plan) add(what string, request *nl.NetlinkRequest) {
	l.what = append(l.what, what)
	l.requests = append(l.requests, request)
}

// addUnless adds a request that may fail with the given error.
func (l *plan) addUnless(ignored error, what string, request *nl.NetlinkRequest) {
	if l.ignore == nil {
		l.ignore = map[int]error{}
	}
	l.ignore[len(l.what)] = ignored
	l.add(what, request)
}

func (l *plan) run(c *conn) error {
	answers, err := c.do(l.requests...)
	if err != nil {
		return err
	}
	for i, ignored := range l.ignore {
		if errors.Is(answers[i].err, ignored) {
			answers[i].err = nil
		}
	}
	return all(answers, l.what)
}

// defaultMTU is ETH_DATA_LEN, the kernel's default for a veth.
const defaultMTU = 1500

func (p *Pair) mtu() int {
	if p.MTU == 0 {
		return defaultMTU
	}
	return p.MTU
}

func (p *Pair) alias() string {
	if p.Preplugged != "" {
		return prepluggedAlias(p.HostName)
	}
	return PodAliasPrefix + p.Owner
}

// podRoute returns a route of PodRoutes as it is read back.
func (p *Pair) podRoute(route Route) *Route {
	route.Netns, route.Device = "", p.PodName
	return &route
}

// hostSysctls keep the kernel off the pod's IPv6 link: the host veth gets no link-local address that the pod could reach.
func hostSysctls() Sysctls { return Sysctls{DisableIPv6: On, AcceptRA: Off} }

func (p *Pair) podSysctls() Sysctls {
	settings := p.PodSysctls
	settings.AcceptRA = Off
	if settings.DisableIPv6 == Leave {
		settings.DisableIPv6 = On
		if slices.ContainsFunc(p.PodAddresses, func(a netip.Prefix) bool { return a.Addr().Is6() }) {
			settings.DisableIPv6 = Off
		}
	}
	return settings
}

// ownerMax limits an owner in bytes, so that the alias is shorter than IFALIASZ, 256 bytes.
const ownerMax = 200

func (p *Pair) validate() error {
	if err := errors.Join(ValidateName(p.HostName), ValidateName(p.PodName)); err != nil {
		return err
	}
	if p.Preplugged != "" {
		if err := ValidateName(receiverName(p.HostName)); err != nil {
			return err
		}
	}
	if p.Netns == "" {
		return fmt.Errorf("no namespace given: %w", ErrNoNamespace)
	}
	if len(p.Owner) > ownerMax || strings.ContainsFunc(p.Owner, func(r rune) bool { return r < ' ' || r == 0x7f }) {
		return fmt.Errorf("owner %q is longer than %d bytes or has control characters", p.Owner, ownerMax)
	}
	if len(p.PodMAC) != 0 && (len(p.PodMAC) != 6 || p.PodMAC[0]&1 != 0) {
		return fmt.Errorf("MAC %q is not a unicast Ethernet address", p.PodMAC)
	}
	for _, address := range p.PodAddresses {
		if !address.IsValid() || address.Addr().Is4In6() {
			return fmt.Errorf("invalid address %s", address)
		}
	}
	for _, route := range p.PodRoutes {
		if err := route.validate(); err != nil {
			return err
		}
	}
	return nil
}

func (r *Route) validate() error {
	if !r.Dst.IsValid() || r.Dst.Addr().Is4In6() {
		return fmt.Errorf("route: invalid destination %s", r.Dst)
	}
	for _, address := range []netip.Addr{r.Gateway, r.Source} {
		if address.IsValid() && address.Is4() != r.Dst.Addr().Is4() {
			return fmt.Errorf("route to %s: %s is of the other address family", r.Dst, address)
		}
	}
	return nil
}
