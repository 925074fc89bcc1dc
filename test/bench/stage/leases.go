package stage

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"
	clientv3 "go.etcd.io/etcd/client/v3"
	"golang.org/x/sys/unix"
	"google.golang.org/grpc"

	"weft.dev/weft/internal/child"
	"weft.dev/weft/lab/ground"
	"weft.dev/weft/lab/plan"
	"weft.dev/weft/lab/process"
)

const (
	leasesURL    = "http://127.0.0.1:2379"
	leasesPrefix = "/coreos.com/network/"
	leasesConf   = `{"Network":"10.0.0.0/8","SubnetLen":24,"SubnetMin":"10.250.0.0","Backend":{"Type":"vxlan"}}`
	tunnelDevice = "flannel.1"
	// leasesAtOnce is the number of keys that a transaction puts; etcd's limit is 128.
	leasesAtOnce = 100
	leasesLimit  = 2 * time.Minute
)

// Leases is a node of a flannel network on which `weft flanneld` runs, with an etcd that has leases of other, nonexistent nodes.
type Leases struct {
	Space ground.Space
	Peers int

	stage  *Stage
	place  plan.Node
	etcd   *clientv3.Client
	daemon *child.Process
}

// Leases makes such a node. Strike removes it.
func (s *Stage) Leases(ctx context.Context, name string, peers int) (*Leases, error) {
	ctx, cancel := context.WithTimeout(ctx, leasesLimit)
	defer cancel()
	place, space, err := s.space(ctx, name, nil)
	if err != nil {
		return nil, err
	}
	l := &Leases{Space: space, Peers: peers, stage: s, place: place}
	if err := l.open(ctx); err != nil {
		return nil, errors.Join(err, l.Strike())
	}
	return l, nil
}

func (l *Leases) open(ctx context.Context) error {
	address := netip.MustParsePrefix("192.0.2.1/24")
	if err := ground.Connect(mtu, ground.End{Space: &l.Space, Name: "eth0", Addr: address}, ground.End{Space: &l.Space, Name: "far0"}); err != nil {
		return err
	}
	var err error
	l.etcd, err = clientv3.New(clientv3.Config{
		Endpoints: []string{leasesURL}, DialTimeout: leasesLimit,
		DialOptions: []grpc.DialOption{grpc.WithContextDialer(func(ctx context.Context, address string) (net.Conn, error) {
			return l.Space.Dial(ctx, "tcp", strings.TrimPrefix(address, "http://"))
		})},
	})
	if err != nil {
		return fmt.Errorf("connect to etcd: %w", err)
	}
	const peers = "http://127.0.0.1:2380"
	err = l.stage.group.Start(ctx, process.Program{
		Name: l.place.Name + "/etcd",
		Argv: l.Space.Enter("etcd", "--data-dir", filepath.Join(l.place.Dir, "etcd"), "--listen-client-urls", leasesURL, "--advertise-client-urls", leasesURL,
			"--listen-peer-urls", peers, "--initial-advertise-peer-urls", peers, "--initial-cluster", "default="+peers, "--unsafe-no-fsync=true"),
		Ready: func(ctx context.Context) error {
			_, err := l.etcd.Get(ctx, leasesPrefix)
			return err
		},
	})
	if err != nil {
		return err
	}
	if _, err := l.etcd.Put(ctx, leasesPrefix+"config", leasesConf); err != nil {
		return fmt.Errorf("put the network's configuration: %w", err)
	}
	var puts []clientv3.Op
	for i := range l.Peers {
		p := leaseOf(i)
		puts = append(puts, clientv3.OpPut(p.key(), p.value()))
		if len(puts) == leasesAtOnce || i == l.Peers-1 {
			if _, err := l.etcd.Txn(ctx).Then(puts...).Commit(); err != nil {
				return fmt.Errorf("put leases: %w", err)
			}
			puts = nil
		}
	}
	return nil
}

// peerLease is another node's lease.
type peerLease struct {
	subnet netip.Prefix
	public netip.Addr
	mac    net.HardwareAddr
}

// leaseOf returns the lease of peer i.
func leaseOf(i int) peerLease {
	high, low := byte(i/250), byte(i%250)
	return peerLease{
		netip.PrefixFrom(netip.AddrFrom4([4]byte{10, 100 + high, low, 0}), 24), netip.AddrFrom4([4]byte{198, 18, high, low + 1}),
		net.HardwareAddr{2, 0, 0, 1, high, low},
	}
}

func (p peerLease) key() string {
	return leasesPrefix + "subnets/" + strings.Replace(p.subnet.String(), "/", "-", 1)
}

func (p peerLease) value() string {
	return fmt.Sprintf(`{"PublicIP":%q,"PublicIPv6":null,"BackendType":"vxlan","BackendData":{"VNI":1,"VtepMAC":%q}}`, p.public, p.mac)
}

// Strike removes the node.
func (l *Leases) Strike() error {
	l.Stop()
	var err error
	if l.etcd != nil {
		err = l.etcd.Close()
	}
	name := l.place.Name
	l.stage.group.Stop(grace, func(have string) bool { return have == name+"/etcd" })
	l.stage.group.Stop(grace, func(have string) bool { return have == "hold/"+l.Space.Name })
	// The next node of this name must not find these leases.
	return errors.Join(err, os.RemoveAll(l.place.Dir), os.RemoveAll(filepath.Dir(l.place.RunDir)), os.Remove(filepath.Join(ground.NetnsDir, l.Space.Name)))
}

// Start starts `weft flanneld`, and returns how long it took until all leases were in effect.
func (l *Leases) Start(ctx context.Context) (time.Duration, error) {
	ctx, cancel := context.WithTimeout(ctx, leasesLimit)
	defer cancel()
	argv := l.Space.Enter(filepath.Join(l.stage.config.Bin, "weft"), "flanneld", "--etcd-endpoints="+leasesURL, "--iface=eth0",
		"--subnet-file="+filepath.Join(l.place.Dir, "subnet.env"))
	cmd := exec.Command(argv[0], argv[1:]...) //nolint:gosec,noctx // it lives until Stop
	printed, err := cmd.StderrPipe()
	if err != nil {
		return 0, err
	}
	began := time.Now()
	if l.daemon, err = child.Start(cmd, ""); err != nil {
		return 0, err
	}
	ready := make(chan time.Duration, 1)
	go func() {
		defer close(ready)
		for lines := bufio.NewScanner(printed); lines.Scan(); {
			if strings.Contains(lines.Text(), "msg=ready") {
				ready <- time.Since(began)
			}
		}
	}()
	select {
	case took, ok := <-ready:
		if !ok {
			return 0, errors.New("weft flanneld ended")
		}
		return took, l.verify(ctx)
	case <-ctx.Done():
		return 0, fmt.Errorf("weft flanneld is not ready: %w", ctx.Err())
	}
}

// verify counts the entries.
func (l *Leases) verify(ctx context.Context) error {
	for _, command := range []string{"ip route show dev " + tunnelDevice, "ip neigh show dev " + tunnelDevice + " nud permanent", "bridge fdb show dev " + tunnelDevice} {
		ran, err := run(ctx, l.Space.Enter(strings.Fields(command)...))
		if err != nil {
			return err
		}
		if lines := strings.Count(ran.Out, "\n"); lines < l.Peers {
			return fmt.Errorf("%s: %d entries of %d leases", command, lines, l.Peers)
		}
	}
	return nil
}

// Stop ends the daemon.
func (l *Leases) Stop() {
	if l.daemon != nil {
		l.daemon.Kill()
		l.daemon = nil
	}
}

// Clear removes the device with its entries, and the nftables rules.
func (l *Leases) Clear(ctx context.Context) error {
	_, err := run(ctx, l.Space.Enter("ip", "link", "del", tunnelDevice))
	_, _ = run(ctx, l.Space.Enter("nft", "flush", "ruleset")) // there may be none
	return err
}

// Batch makes the device and has ip(8) and bridge(8) make the same entries. It returns how long these took.
func (l *Leases) Batch(ctx context.Context) (time.Duration, error) {
	var addresses, forwarding strings.Builder
	for i := range l.Peers {
		p := leaseOf(i)
		fmt.Fprintf(&addresses, "neigh replace %s lladdr %s dev %s nud permanent\n", p.subnet.Addr(), p.mac, tunnelDevice)
		fmt.Fprintf(&addresses, "route replace %s via %s dev %s onlink\n", p.subnet, p.subnet.Addr(), tunnelDevice)
		fmt.Fprintf(&forwarding, "fdb replace %s dev %s dst %s self permanent\n", p.mac, tunnelDevice, p.public)
	}
	for _, command := range []string{
		"ip link add " + tunnelDevice + " type vxlan id 1 local 192.0.2.1 dstport 8472 nolearning", "ip link set " + tunnelDevice + " up",
	} {
		if _, err := run(ctx, l.Space.Enter(strings.Fields(command)...)); err != nil {
			return 0, err
		}
	}
	began := time.Now()
	for _, batch := range []struct{ program, lines string }{{"ip", addresses.String()}, {"bridge", forwarding.String()}} {
		if _, err := l.stage.group.Run(ctx, batch.lines, l.Space.Enter(batch.program, "-batch", "-")...); err != nil {
			return 0, err
		}
	}
	return time.Since(began), l.verify(ctx)
}

// Event puts one more lease, and returns the time from etcd's answer until the lease was in effect. It removes the lease again.
func (l *Leases) Event(ctx context.Context) (took time.Duration, err error) {
	ctx, cancel := context.WithTimeout(ctx, leasesLimit)
	defer cancel()
	space, err := netns.GetFromPath(l.Space.NetPath())
	if err != nil {
		return 0, err
	}
	defer func() { _ = space.Close() }()
	updates, done := make(chan netlink.RouteUpdate, 16), make(chan struct{})
	defer close(done)
	if err := netlink.RouteSubscribeWithOptions(updates, done, netlink.RouteSubscribeOptions{Namespace: &space}); err != nil {
		return 0, err
	}
	p := leaseOf(l.Peers + 1)
	arrived := func(kind uint16) (time.Time, error) {
		for {
			select {
			case update := <-updates:
				if update.Type == kind && update.Dst != nil && update.Dst.String() == p.subnet.String() {
					return time.Now(), nil
				}
			case <-ctx.Done():
				what := "new route of a new lease"
				if kind == unix.RTM_DELROUTE {
					what = "removal of the route of a removed lease"
				}
				return time.Time{}, fmt.Errorf("no %s was reported: %w", what, ctx.Err())
			}
		}
	}
	if _, err := l.etcd.Put(ctx, p.key(), p.value()); err != nil {
		return 0, err
	}
	put := time.Now()
	there, err := arrived(unix.RTM_NEWROUTE)
	if err != nil {
		return 0, err
	}
	if _, err := l.etcd.Delete(ctx, p.key()); err != nil {
		return 0, err
	}
	_, err = arrived(unix.RTM_DELROUTE)
	return max(0, there.Sub(put)), err
}

// Changes counts the changes of the kernel's routes, neighbours and forwarding entries during the given time.
func (l *Leases) Changes(ctx context.Context, length time.Duration) (int, error) {
	space, err := netns.GetFromPath(l.Space.NetPath())
	if err != nil {
		return 0, err
	}
	defer func() { _ = space.Close() }()
	routes, neighbours, done := make(chan netlink.RouteUpdate, 16), make(chan netlink.NeighUpdate, 16), make(chan struct{})
	defer close(done)
	err = errors.Join(netlink.RouteSubscribeWithOptions(routes, done, netlink.RouteSubscribeOptions{Namespace: &space}),
		netlink.NeighSubscribeWithOptions(neighbours, done, netlink.NeighSubscribeOptions{Namespace: &space}))
	if err != nil {
		return 0, err
	}
	count, end := 0, time.After(length)
	for {
		select {
		case <-routes:
			count++
		case <-neighbours:
			count++
		case <-end:
			return count, nil
		case <-ctx.Done():
			return count, ctx.Err()
		}
	}
}

// String returns the node's name and its number of peers.
func (l *Leases) String() string { return l.place.Name + " with " + strconv.Itoa(l.Peers) + " leases" }
