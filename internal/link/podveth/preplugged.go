package podveth

import (
	"context"
	"errors"
	"fmt"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	"weft.dev/weft/internal/link"
	"weft.dev/weft/internal/link/devconf"
	"weft.dev/weft/internal/link/netns"
	"weft.dev/weft/internal/link/podlink"
	"weft.dev/weft/internal/link/rtnetlink"
	"weft.dev/weft/internal/link/shaping"
)

var _ podlink.PrepluggedLinks = (*Pods)(nil)

// prepluggedBatch limits how many pairs are created at once, so that their answers fit the socket (BatchMax).
const prepluggedBatch = rtnetlink.BatchMax / 2

// CreatePreplugged implements PrepluggedLinks.
func (p *Pods) CreatePreplugged(ctx context.Context, path string, pairs ...podlink.Preplugged) error {
	for _, pair := range pairs {
		if err := errors.Join(link.ValidateName(pair.Name), link.ValidateName(podlink.ReceiverName(pair.Name))); err != nil {
			return fmt.Errorf("pre-plugged port: %w", err)
		}
	}
	if err := ctx.Err(); err != nil {
		return fmt.Errorf("pre-plugged ports: %w", err)
	}
	far, err := netns.Open(path)
	if err != nil {
		return fmt.Errorf("pre-plugged ports: %w", err)
	}
	defer far.Close()
	for len(pairs) > 0 && err == nil {
		count := min(len(pairs), prepluggedBatch)
		s := preplugged{Pods: p, far: far, pairs: pairs[:count]}
		err = netns.OnThread(p.home, s.run)
		pairs = pairs[count:]
	}
	if err != nil {
		return fmt.Errorf("pre-plugged ports: %w", err)
	}
	return nil
}

// preplugged is one run of CreatePreplugged.
type preplugged struct {
	*Pods
	far   *netns.Namespace
	pairs []podlink.Preplugged
	hosts []netlink.Link
}

// run works on a locked thread that starts in the home namespace.
func (s *preplugged) run() (err error) {
	defer func() {
		if err != nil {
			err = errors.Join(err, s.undo())
		}
	}()
	if err := s.make(); err != nil {
		return err
	}
	if err := s.far.Enter(); err != nil {
		return err
	}
	err = s.configureFar()
	if back := s.home.Enter(); back != nil {
		return errors.Join(err, back)
	}
	if err != nil {
		return err
	}
	return s.configureHosts()
}

// make creates the pairs. It fails if an interrupted run has left a link of that name; Delete removes such a link.
func (s *preplugged) make() error {
	var requests []*nl.NetlinkRequest
	for _, pair := range s.pairs {
		near := rtnetlink.LinkEnd{Name: pair.Name, MTU: podlink.PrepluggedMTU(pair.MTU), Group: pair.HostGroup, Netns: -1}
		if pair.TxOffloadOff {
			near.Flags = unix.IFF_PROMISC // as in makePair
		}
		requests = append(requests, rtnetlink.NewVeth(near, rtnetlink.LinkEnd{Name: pair.Name, MTU: near.MTU, Netns: s.far.FD()}), rtnetlink.GetLink(pair.Name))
	}
	answers, err := s.conn.Do(requests...)
	if err != nil {
		return err
	}
	for i, pair := range s.pairs {
		made, seen := answers[2*i], answers[2*i+1]
		if made.Err != nil {
			err = errors.Join(err, fmt.Errorf("making %s: %w", pair.Name, made.Err))
			continue
		}
		if seen.Err != nil {
			err = errors.Join(err, fmt.Errorf("looking at %s: %w", pair.Name, seen.Err))
			continue
		}
		s.hosts = append(s.hosts, seen.Link)
	}
	return err
}

// configureFar runs in the veth peers' namespace. No protocol is active there: it has no addresses, and IPv6 is off before a link is up.
func (s *preplugged) configureFar() error {
	conn, err := rtnetlink.Dial()
	if err != nil {
		return err
	}
	defer conn.Close()
	var list rtnetlink.Plan
	for _, pair := range s.pairs {
		if err := devconf.WriteSysctls(pair.Name, link.Sysctls{DisableIPv6: link.On, AcceptRA: link.Off}); err != nil {
			return fmt.Errorf("far end: %w", err)
		}
		if pair.TxOffloadOff {
			if err := devconf.SetTxOffload(pair.Name, link.Off); err != nil {
				return fmt.Errorf("far end: %w", err)
			}
		}
		list.Add("setting the far end of "+pair.Name+" up", rtnetlink.SetUpByName(pair.Name))
	}
	if err := list.Run(conn); err != nil || s.probed.Load() {
		return err
	}
	// A kernel without macvlans is reported now, not at each pod.
	answers, err := conn.Do(rtnetlink.GetLink(s.pairs[0].Name))
	if err == nil {
		err = answers[0].Err
	}
	if err == nil {
		err = s.probe(conn, answers[0].Link.Attrs().Index)
	}
	s.probed.Store(err == nil)
	return err
}

// configureHosts sets the owners of the host veths and sets them up.
func (s *preplugged) configureHosts() error {
	var list rtnetlink.Plan
	for i, pair := range s.pairs {
		if err := s.turn.Do(func() error { return devconf.WriteSysctls(pair.Name, podlink.HostSysctls()) }); err != nil {
			return fmt.Errorf("host end: %w", err)
		}
		index := s.hosts[i].Attrs().Index
		list.Add("setting the alias of "+pair.Name, rtnetlink.SetLink(index, rtnetlink.AliasAttr(podlink.PrepluggedAlias(pair.Name))))
		list.Add("setting "+pair.Name+" up", rtnetlink.SetState(index, true))
	}
	return list.Run(s.conn)
}

// undo removes what this run has created.
func (s *preplugged) undo() error {
	indexes := make([]int, 0, len(s.hosts))
	for _, host := range s.hosts {
		indexes = append(indexes, host.Attrs().Index)
	}
	if len(indexes) == 0 {
		return nil
	}
	return s.reap(indexes)
}

// ListPreplugged implements PrepluggedLinks.
func (p *Pods) ListPreplugged(ctx context.Context, path string) (map[string]podlink.PrepluggedPort, error) {
	if err := ctx.Err(); err != nil {
		return nil, fmt.Errorf("listing pre-plugged ports: %w", err)
	}
	links, err := rtnetlink.ListLinks(p.lister)
	if err != nil {
		return nil, err
	}
	return p.prepluggedPorts(links, path)
}

// Survey is List and ListPreplugged at once.
func (p *Pods) Survey(ctx context.Context, path string) (owners map[string]string, ports map[string]podlink.PrepluggedPort, err error) {
	if err := ctx.Err(); err != nil {
		return nil, nil, fmt.Errorf("listing pod links: %w", err)
	}
	links, err := rtnetlink.ListLinks(p.lister)
	if err != nil {
		return nil, nil, err
	}
	ports, err = p.prepluggedPorts(links, path)
	return podOwners(links), ports, err
}

// prepluggedPorts returns the pre-plugged ports among the host's links.
func (p *Pods) prepluggedPorts(links []netlink.Link, path string) (map[string]podlink.PrepluggedPort, error) {
	far, err := p.farEnds(path)
	if err != nil {
		return nil, fmt.Errorf("listing pre-plugged ports: %w", err)
	}
	found := map[string]podlink.PrepluggedPort{}
	for _, dev := range links {
		attrs := dev.Attrs()
		if dev.Type() == "veth" && attrs.Alias == podlink.PrepluggedAlias(attrs.Name) && attrs.Group != podlink.DeadGroup {
			port := far[attrs.Name]
			port.MTU = attrs.MTU
			found[attrs.Name] = port
			delete(far, attrs.Name)
		}
	}
	for name, port := range far {
		if port.Gone {
			found[name] = port
		}
	}
	return found, nil
}

// farEnds returns the state of the veth peers in the namespace at path. A macvlan that is up makes its device promiscuous; a hidden one
// that is down is detected when the next one is created.
func (p *Pods) farEnds(path string) (map[string]podlink.PrepluggedPort, error) {
	far, err := netns.Open(path)
	if errors.Is(err, link.ErrNoNamespace) || errors.Is(err, link.ErrNotNamespace) {
		return nil, nil //nolint:nilnil // there are none
	}
	if err != nil {
		return nil, err
	}
	defer far.Close()
	found := map[string]podlink.PrepluggedPort{}
	err = netns.OnThread(p.home, func() error {
		if err := far.Enter(); err != nil {
			return err
		}
		handle, err := netlink.NewHandle(unix.NETLINK_ROUTE)
		if err != nil {
			return fmt.Errorf("opening a netlink socket: %w", err)
		}
		defer handle.Close()
		links, err := rtnetlink.ListLinks(nil)
		if err != nil {
			return err
		}
		if err := vethPeers(links, found); err != nil {
			return err
		}
		shapes, err := shaping.ReadShapes(handle, links)
		for name := range shapes {
			port, there := found[name]
			port.Idle, port.Gone = false, !there
			found[name] = port
		}
		return err
	})
	return found, err
}

// vethPeers adds the veths among the links of the calling thread's namespace to found.
func vethPeers(links []netlink.Link, found map[string]podlink.PrepluggedPort) error {
	tool, err := devconf.OpenEthtool("")
	if err != nil {
		return err
	}
	defer tool.Close()
	for _, dev := range links {
		if dev.Type() != "veth" {
			continue
		}
		tool.Device = dev.Attrs().Name
		offload, err := tool.TxOffload()
		if err != nil {
			return err
		}
		found[dev.Attrs().Name] = podlink.PrepluggedPort{Idle: dev.Attrs().Promisc == 0, TxOffloadOff: offload == link.Off}
	}
	return nil
}
