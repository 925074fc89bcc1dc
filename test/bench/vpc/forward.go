package vpc

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"runtime"
	"strings"
	"time"

	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	kubeovn "weft.dev/weft/api/kubeovn/v1"
	"weft.dev/weft/internal/nft"
	"weft.dev/weft/internal/nft/ruleset"
	"weft.dev/weft/internal/reconcile"
	"weft.dev/weft/internal/vpc/gateway"
	"weft.dev/weft/internal/vpc/nat"
	"weft.dev/weft/lab/ground"
	"weft.dev/weft/test/bench/measure"
	"weft.dev/weft/test/bench/stage"
	"weft.dev/weft/test/probe"
	"weft.dev/weft/test/traffic"
)

// Metrics of forwarding.
const (
	// Throughput is the rate of one TCP connection, in MB/s.
	Throughput = "gateway-throughput"
	// PacketCPU is the processor time of a packet from the sender to the receiver's queue, in ns.
	PacketCPU = "gateway-packet-cpu"
)

const (
	// forwardBytes is the size of one connection's transfer in a round, forwardPackets the number of datagrams.
	forwardBytes   = 4 << 30
	forwardPackets = 100_000
	// outsideHost is the host outside of the gateway.
	outsideHost = "192.168.100.10"
)

// Forwarding makes two routers in their own namespaces, each between a pod and a host outside: one with a NAT gateway's table as Weft
// programs it, the other with the same elements in a hand-written table. OVN is not involved in either.
func Forwarding(ctx context.Context, st *stage.Stage) (ours, peer measure.Side, err error) {
	lines, sides := [2]*line{}, [2]measure.Side{}
	for i, name := range []string{"weft", "hand"} {
		if lines[i], err = newLine(ctx, st, name); err != nil {
			return nil, nil, err
		}
		if sides[i], err = lines[i].side(); err != nil {
			return nil, nil, err
		}
	}
	if err := weftTable(ctx, lines[0].gate.NetPath()); err != nil {
		return nil, nil, err
	}
	_, err = probe.Run(ctx, lines[1].gate.Enter("nft", handTable()))
	return sides[0], sides[1], err
}

// line is a pod, a gateway and a host outside, each in its own namespace.
type line struct{ pod, gate, host ground.Space }

// newLine makes the namespaces and their connections.
func newLine(ctx context.Context, st *stage.Stage, name string) (l *line, err error) {
	l = &line{}
	for part, space := range map[string]*ground.Space{"-pod": &l.pod, "-gate": &l.gate, "-host": &l.host} {
		if *space, err = st.Space(ctx, name+part); err != nil {
			return nil, err
		}
	}
	for space, commands := range map[*ground.Space][]string{
		&l.pod: {
			"link add eth0 type veth peer name eth0 netns " + l.gate.NetPath(), "addr add " + server + "/24 dev eth0", "link set eth0 up",
		},
		&l.host: {
			"link add eth0 type veth peer name net1 netns " + l.gate.NetPath(), "addr add " + outsideHost + "/24 dev eth0", "link set eth0 up",
		},
	} {
		if err := batch(ctx, space, commands...); err != nil {
			return nil, err
		}
	}
	err = batch(ctx, &l.gate, "addr add "+lanIP+"/24 dev eth0", "addr add "+handEIP+"/24 dev net1", "addr add "+floatingIP(floatingIPs-1)+"/32 dev net1",
		"link set eth0 up", "link set net1 up")
	return l, errors.Join(err, batch(ctx, &l.pod, "route add default via "+lanIP))
}

// batch runs commands of ip(8) in a namespace.
func batch(ctx context.Context, space *ground.Space, commands ...string) error {
	for _, command := range commands {
		if _, err := probe.Run(ctx, space.Enter(append([]string{"ip"}, strings.Fields(command)...)...)); err != nil {
			return err
		}
	}
	return nil
}

// weftTable programs the table that the objects of a gateway with floating IPs compile to.
func weftTable(ctx context.Context, netns string) error {
	meta := func(name string) metav1.ObjectMeta { return metav1.ObjectMeta{Name: name, UID: types.UID(name)} }
	o := &nat.Objects{
		Vpcs: []kubeovn.Vpc{{ObjectMeta: meta("v")}},
		Subnets: []kubeovn.Subnet{
			{ObjectMeta: meta("s"), Spec: kubeovn.SubnetSpec{Vpc: "v", CIDRBlock: prefix}},
			{ObjectMeta: meta(kubeovn.DefaultExternalSubnet), Spec: kubeovn.SubnetSpec{
				Provider: "e." + corev1.NamespaceDefault, CIDRBlock: "192.168.100.0/24", Gateway: "192.168.100.1",
			}},
		},
		Gateways: []kubeovn.VpcNatGateway{{
			ObjectMeta: meta("g"), Spec: kubeovn.VpcNatGatewaySpec{Vpc: "v", Subnet: "s", LanIP: lanIP}, Status: kubeovn.VpcNatGatewayStatus{IP: handEIP},
		}},
		Definitions: map[string]string{"e." + corev1.NamespaceDefault: `{"type":"macvlan","master":"ens37"}`},
		SNATs:       []kubeovn.IptablesSnatRule{{ObjectMeta: meta("snat"), Spec: kubeovn.IptablesSnatRuleSpec{EIP: "f0", InternalCIDR: prefix}}},
	}
	for i := range floatingIPs {
		name := fmt.Sprintf("f%d", i)
		o.EIPs = append(o.EIPs, kubeovn.IptablesEIP{
			ObjectMeta: meta(name), Spec: kubeovn.IptablesEIPSpec{NatGwDp: "g"}, Status: kubeovn.IptablesEIPStatus{IP: floatingIP(i)},
		})
		if i > 0 {
			o.FIPs = append(o.FIPs, kubeovn.IptablesFIPRule{ObjectMeta: meta(name), Spec: kubeovn.IptablesFIPRuleSpec{EIP: name, InternalIP: internalIP(i)}})
		}
	}
	g := nat.Compile(o).Gateways["g"]
	if g.Problem != (nat.Problem{}) {
		return fmt.Errorf("compile the gateway: %s", g.Problem.Message)
	}
	engine, err := ruleset.NewEngine(ruleset.Options{Netns: netns, Tables: []nft.Table{{Family: nft.FamilyIPv4, Name: gateway.Table}}})
	if err != nil {
		return fmt.Errorf("open the gateway's table: %w", err)
	}
	defer engine.Close()
	have, err := engine.Read(ctx)
	if err != nil {
		return fmt.Errorf("read the gateway's table: %w", err)
	}
	return engine.Commit(ctx, reconcile.Diff(g.Result.State.Items, have))
}

// handTable returns a hand-written table with the same elements.
func handTable() string {
	var in, out strings.Builder
	for i := 1; i < floatingIPs; i++ {
		_, _ = fmt.Fprintf(&in, "%s : %s,", floatingIP(i), internalIP(i))
		_, _ = fmt.Fprintf(&out, "%s : %s,", internalIP(i), floatingIP(i))
	}
	return `table ip gw {
  map in { type ipv4_addr : ipv4_addr; elements = { ` + in.String() + ` } }
  map out { type ipv4_addr : ipv4_addr; elements = { ` + out.String() + ` } }
  chain prerouting { type nat hook prerouting priority -100; dnat to ip daddr map @in; }
  chain postrouting { type nat hook postrouting priority 100; oifname net1 snat to ip saddr map @out; oifname net1 ip saddr ` + prefix + ` snat to ` + floatingIP(0) + `; }
  chain forward { type filter hook forward priority 0; policy drop; ct state established,related accept; iifname eth0 oifname net1 accept; iifname net1 ct status dnat accept; }
}
`
}

// side returns the side that sends from the pod to the host outside.
func (l *line) side() (measure.Side, error) {
	to := netip.AddrPortFrom(netip.MustParseAddr(outsideHost), echoPort)
	host, pod := l.host.NetPath(), l.pod.NetPath()
	var listener net.Listener
	err := traffic.In(host, func() (err error) {
		listener, err = net.Listen("tcp", to.String()) //nolint:noctx // on this thread, which is in the namespace
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("listen on %s: %w", to, err)
	}
	go discard(listener)
	sink, err := traffic.ListenUDP(host, to) // datagrams remain in its queue
	if err != nil {
		return nil, err
	}
	return func(context.Context) (measure.Figures, error) {
		rate, err := transfer(pod, to)
		if err != nil {
			return nil, err
		}
		cpu, err := datagrams(pod, to)
		runtime.KeepAlive(sink)
		return measure.Figures{Throughput: rate, PacketCPU: cpu}, err
	}, nil
}

// discard reads the data of connections, and answers each when all of it has arrived.
func discard(listener net.Listener) {
	for {
		conn, err := listener.Accept()
		if err != nil {
			return // the listener is closed
		}
		go func() {
			defer func() { _ = conn.Close() }()
			if _, err := io.Copy(io.Discard, conn); err == nil {
				_, _ = conn.Write([]byte{1}) // without it the sender reports an error
			}
		}()
	}
}

// transfer returns the rate of one connection in MB/s.
func transfer(from string, to netip.AddrPort) (float64, error) {
	var conn net.Conn
	err := traffic.In(from, func() (err error) {
		conn, err = net.DialTimeout("tcp4", to.String(), limit)
		return err
	})
	if err != nil {
		return 0, fmt.Errorf("connect to %s: %w", to, err)
	}
	defer func() { _ = conn.Close() }()
	began, chunk := time.Now(), make([]byte, 1<<20)
	err = conn.SetDeadline(began.Add(limit))
	for sent := 0; err == nil && sent < forwardBytes; sent += len(chunk) {
		_, err = conn.Write(chunk)
	}
	if tcp, ok := conn.(*net.TCPConn); ok && err == nil {
		err = tcp.CloseWrite()
	}
	if err == nil {
		_, err = io.ReadFull(conn, chunk[:1])
	}
	if err != nil {
		return 0, fmt.Errorf("send to %s: %w", to, err)
	}
	return forwardBytes / 1e6 / time.Since(began).Seconds(), nil
}

// datagrams returns the processor time per datagram in ns. The kernel forwards datagrams on the sender's thread.
func datagrams(from string, to netip.AddrPort) (float64, error) {
	var took time.Duration
	err := traffic.In(from, func() error {
		fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
		if err != nil {
			return fmt.Errorf("make a socket: %w", err)
		}
		defer func() { _ = unix.Close(fd) }()
		if err := unix.Connect(fd, &unix.SockaddrInet4{Port: int(to.Port()), Addr: to.Addr().As4()}); err != nil {
			return fmt.Errorf("connect to %s: %w", to, err)
		}
		payload := make([]byte, 64)
		var before, after unix.Timespec
		if err := unix.ClockGettime(unix.CLOCK_THREAD_CPUTIME_ID, &before); err != nil {
			return fmt.Errorf("read the thread's clock: %w", err)
		}
		for range forwardPackets {
			if _, err := unix.Write(fd, payload); err != nil {
				return fmt.Errorf("send to %s: %w", to, err)
			}
		}
		err = unix.ClockGettime(unix.CLOCK_THREAD_CPUTIME_ID, &after)
		took = time.Duration(after.Nano() - before.Nano())
		return err
	})
	return float64(took) / forwardPackets, err
}
