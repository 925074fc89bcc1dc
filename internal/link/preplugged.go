package link

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"
)

// Preplugged is a pre-plugged port: a veth pair that is created before its pod and outlives it. It has the host veth, which is a port of the
// switch, and the veth peer (far, in this package), of the same name, in a separate namespace. A pod's interface on it is a macvlan of the
// veth peer. When a link changes, a switch iterates over all its ports; when a pod is added or removed this way, no link of the switch
// changes.
//
// The macvlan's mode is passthru: the kernel allows only one such macvlan per device. So nothing that a former pod has kept can be on a
// port together with the next pod's interface.
type Preplugged struct {
	// Name is the name of both ends; it must pass ValidateName, also with "-in" appended.
	Name string
	// MTU of both ends in bytes; 0 is the kernel's default, 1500.
	MTU int
	// HostGroup is as in Pair.
	HostGroup uint32
	// TxOffloadOff is as in Pair, for the veth peer.
	TxOffloadOff bool
}

// PrepluggedPort is the state of a pre-plugged port.
type PrepluggedPort struct {
	// MTU is the host veth's, in bytes.
	MTU int
	// TxOffloadOff reports whether transmit offloads are off on the veth peer.
	TxOffloadOff bool
	// Idle reports whether the veth peer exists, no interface on it is up, and it has no shape.
	Idle bool
	// Gone reports that the pair does not exist, but a part of its shape does.
	Gone bool
}

// PrepluggedLinks creates and lists pre-plugged ports. *[Pods] does it in the kernel, *[FakePods] in memory. PodLinks.Delete removes them,
// and with them the interfaces on them.
type PrepluggedLinks interface {
	// CreatePreplugged creates ports with their veth peers in the namespace at path. ErrNoNamespace and ErrNotNamespace are about that
	// namespace. After an error none of the ports exists.
	CreatePreplugged(ctx context.Context, path string, pairs ...Preplugged) error
	// ListPreplugged returns the existing pre-plugged ports, by name. Without the namespace at path none is idle.
	ListPreplugged(ctx context.Context, path string) (map[string]PrepluggedPort, error)
}

var _ PrepluggedLinks = (*Pods)(nil)

var (
	// ErrOccupied reports that an interface is on a pre-plugged port that should be free.
	ErrOccupied = errors.New("another interface is on the pre-plugged port")
	// ErrUnusable reports that a pod's interface cannot be created on a pre-plugged port, for a reason that is not the pod's.
	ErrUnusable = errors.New("the pre-plugged port is unusable")
)

// prepluggedOwner is the prefix of the owners of pre-plugged ports.
const prepluggedOwner = "port/"

// PrepluggedOwner returns the owner of a pre-plugged port, as in List.
func PrepluggedOwner(name string) string { return prepluggedOwner + name }

func prepluggedAlias(name string) string { return PodAliasPrefix + PrepluggedOwner(name) }

// prepluggedBatch limits how many pairs are created at once, so that their answers fit the socket (batchMax).
const prepluggedBatch = batchMax / 2

// CreatePreplugged implements PrepluggedLinks.
func (p *Pods) CreatePreplugged(ctx context.Context, path string, pairs ...Preplugged) error {
	for _, pair := range pairs {
		if err := errors.Join(ValidateName(pair.Name), ValidateName(receiverName(pair.Name))); err != nil {
			return fmt.Errorf("pre-plugged port: %w", err)
		}
	}
	if err := ctx.Err(); err != nil {
		return fmt.Errorf("pre-plugged ports: %w", err)
	}
	far, err := openNamespace(path)
	if err != nil {
		return fmt.Errorf("pre-plugged ports: %w", err)
	}
	defer far.close()
	for len(pairs) > 0 && err == nil {
		count := min(len(pairs), prepluggedBatch)
		s := preplugged{Pods: p, far: far, pairs: pairs[:count]}
		err = onThread(p.home, s.run)
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
	far   *namespace
	pairs []Preplugged
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
	if err := s.far.enter(); err != nil {
		return err
	}
	err = s.configureFar()
	if back := s.home.enter(); back != nil {
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
		near := linkEnd{name: pair.Name, mtu: prepluggedMTU(pair.MTU), group: pair.HostGroup, netns: -1}
		if pair.TxOffloadOff {
			near.flags = unix.IFF_PROMISC // as in makePair
		}
		requests = append(requests, newVeth(near, linkEnd{name: pair.Name, mtu: near.mtu, netns: int(s.far.file.Fd())}), getLink(pair.Name))
	}
	answers, err := s.conn.do(requests...)
	if err != nil {
		return err
	}
	for i, pair := range s.pairs {
		made, seen := answers[2*i], answers[2*i+1]
		if made.err != nil {
			err = errors.Join(err, fmt.Errorf("making %s: %w", pair.Name, made.err))
			continue
		}
		if seen.err != nil {
			err = errors.Join(err, fmt.Errorf("looking at %s: %w", pair.Name, seen.err))
			continue
		}
		s.hosts = append(s.hosts, seen.link)
	}
	return err
}

func prepluggedMTU(mtu int) int {
	if mtu == 0 {
		return defaultMTU
	}
	return mtu
}

// configureFar runs in the veth peers' namespace. No protocol is active there: it has no addresses, and IPv6 is off before a link is up.
func (s *preplugged) configureFar() error {
	conn, err := dial()
	if err != nil {
		return err
	}
	defer conn.close()
	var list plan
	for _, pair := range s.pairs {
		if err := writeSysctls(pair.Name, Sysctls{DisableIPv6: On, AcceptRA: Off}); err != nil {
			return fmt.Errorf("far end: %w", err)
		}
		if pair.TxOffloadOff {
			if err := setTxOffload(pair.Name, Off); err != nil {
				return fmt.Errorf("far end: %w", err)
			}
		}
		list.add("setting the far end of "+pair.Name+" up", setUpByName(pair.Name))
	}
	if err := list.run(conn); err != nil || s.probed.Load() {
		return err
	}
	// A kernel without macvlans is reported now, not at each pod.
	answers, err := conn.do(getLink(s.pairs[0].Name))
	if err == nil {
		err = answers[0].err
	}
	if err == nil {
		err = s.probe(conn, answers[0].link.Attrs().Index)
	}
	s.probed.Store(err == nil)
	return err
}

// configureHosts sets the owners of the host veths and sets them up.
func (s *preplugged) configureHosts() error {
	var list plan
	for i, pair := range s.pairs {
		if err := s.turn.do(func() error { return writeSysctls(pair.Name, hostSysctls()) }); err != nil {
			return fmt.Errorf("host end: %w", err)
		}
		index := s.hosts[i].Attrs().Index
		list.add("setting the alias of "+pair.Name, setLink(index, aliasAttr(prepluggedAlias(pair.Name))))
		list.add("setting "+pair.Name+" up", setState(index, true))
	}
	return list.run(s.conn)
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
func (p *Pods) ListPreplugged(ctx context.Context, path string) (map[string]PrepluggedPort, error) {
	if err := ctx.Err(); err != nil {
		return nil, fmt.Errorf("listing pre-plugged ports: %w", err)
	}
	links, err := listLinks(p.lister)
	if err != nil {
		return nil, err
	}
	return p.prepluggedPorts(links, path)
}

// Survey is List and ListPreplugged at once.
func (p *Pods) Survey(ctx context.Context, path string) (owners map[string]string, ports map[string]PrepluggedPort, err error) {
	if err := ctx.Err(); err != nil {
		return nil, nil, fmt.Errorf("listing pod links: %w", err)
	}
	links, err := listLinks(p.lister)
	if err != nil {
		return nil, nil, err
	}
	ports, err = p.prepluggedPorts(links, path)
	return podOwners(links), ports, err
}

// prepluggedPorts returns the pre-plugged ports among the host's links.
func (p *Pods) prepluggedPorts(links []netlink.Link, path string) (map[string]PrepluggedPort, error) {
	far, err := p.farEnds(path)
	if err != nil {
		return nil, fmt.Errorf("listing pre-plugged ports: %w", err)
	}
	found := map[string]PrepluggedPort{}
	for _, link := range links {
		attrs := link.Attrs()
		if link.Type() == "veth" && attrs.Alias == prepluggedAlias(attrs.Name) && attrs.Group != DeadGroup {
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
func (p *Pods) farEnds(path string) (map[string]PrepluggedPort, error) {
	far, err := openNamespace(path)
	if errors.Is(err, ErrNoNamespace) || errors.Is(err, ErrNotNamespace) {
		return nil, nil //nolint:nilnil // there are none
	}
	if err != nil {
		return nil, err
	}
	defer far.close()
	found := map[string]PrepluggedPort{}
	err = onThread(p.home, func() error {
		if err := far.enter(); err != nil {
			return err
		}
		handle, err := netlink.NewHandle(unix.NETLINK_ROUTE)
		if err != nil {
			return fmt.Errorf("opening a netlink socket: %w", err)
		}
		defer handle.Close()
		links, err := listLinks(nil)
		if err != nil {
			return err
		}
		if err := vethPeers(links, found); err != nil {
			return err
		}
		shapes, err := readShapes(handle, links)
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
func vethPeers(links []netlink.Link, found map[string]PrepluggedPort) error {
	tool, err := openEthtool("")
	if err != nil {
		return err
	}
	defer tool.close()
	for _, link := range links {
		if link.Type() != "veth" {
			continue
		}
		tool.device = link.Attrs().Name
		offload, err := tool.txOffload()
		if err != nil {
			return err
		}
		found[link.Attrs().Name] = PrepluggedPort{Idle: link.Attrs().Promisc == 0, TxOffloadOff: offload == Off}
	}
	return nil
}

// IsPreplugged reports whether an owner is a pre-plugged port's.
func IsPreplugged(owner string) bool { return strings.HasPrefix(owner, prepluggedOwner) }
