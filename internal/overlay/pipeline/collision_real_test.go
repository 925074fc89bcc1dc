//go:build real

package pipeline_test

import (
	"errors"
	"fmt"
	"maps"
	"net"
	"strings"
	"syscall"
	"testing"

	"github.com/containernetworking/plugins/pkg/ns"
	"golang.org/x/sys/unix"

	"weft.dev/weft/internal/overlay/pipeline"
	"weft.dev/weft/internal/transport"
)

// dialFrom connects from a port of a pod that other connections of the pod may use as well.
func (n *serviceNode) dialFrom(pod, network string, port int, to string) (net.Conn, error) {
	dialer := net.Dialer{Timeout: replies, Control: func(_, _ string, c syscall.RawConn) (err error) {
		if failed := c.Control(func(fd uintptr) { err = unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_REUSEADDR, 1) }); failed != nil {
			return failed
		}
		return err
	}}
	if network == "udp" {
		dialer.LocalAddr = &net.UDPAddr{Port: port}
	} else {
		dialer.LocalAddr = &net.TCPAddr{Port: port}
	}
	var conn net.Conn
	err := n.pods[pod].space.Do(func(ns.NetNS) (err error) {
		conn, err = dialer.Dial(network+"4", to)
		return err
	})
	return conn, err
}

// From one port a pod may reach an endpoint directly and by several Services at the same time, although all these connections look the same
// to the endpoint. (The direct connection comes first: after connections by Services, only the kernel datapath keeps it apart, which is
// tested there.)
func TestOnePortManyWaysToOneEndpoint(t *testing.T) {
	for _, mode := range []pipeline.Mode{pipeline.ModeSubnet, pipeline.ModeNetworkPolicy} {
		t.Run(string(mode), func(t *testing.T) {
			n := startNode(t, 2)
			n.setMode(mode)
			n.serve(n.pods["b"].space, "b", "tcp", ":8080")
			n.serve(n.pods["b"].space, "b", "udp", ":8080")
			n.apply(
				vip("one", "172.30.0.10", transport.TCP, 80, "10.128.0.6:8080"), vip("two", "172.30.0.11", transport.TCP, 80, "10.128.0.6:8080"),
				vip("oneu", "172.30.0.10", transport.UDP, 80, "10.128.0.6:8080"), vip("twou", "172.30.0.11", transport.UDP, 80, "10.128.0.6:8080"),
			)
			const direct, one, two = "10.128.0.6:8080", "172.30.0.10:80", "172.30.0.11:80"
			for i, order := range [][]string{{direct, one, two}, {direct, two, one}, {one, two}} {
				for _, network := range []string{"tcp", "udp"} {
					n.meet(network, 40000+100*i, order) // far apart: the switch resolves a collision by a nearby port
				}
			}
		})
	}
}

// meet opens connections from one port, in order, and exchanges data on all of them.
func (n *serviceNode) meet(network string, port int, order []string) {
	n.t.Helper()
	var open []net.Conn
	where := fmt.Sprintf("by %s from port %d to %s", network, port, strings.Join(order, ", "))
	for _, to := range order {
		conn, err := n.dialFrom("a", network, port, to)
		if err != nil {
			n.t.Errorf("%s: %s: %v\n%s", where, to, err, n.AppCtl("dpctl/dump-conntrack"))
			return
		}
		defer func() { _ = conn.Close() }()
		open = append(open, conn)
		for i, c := range open { // the earlier ones continue
			if got, err := say(c); err != nil || got != "b sees 10.128.0.5" {
				n.t.Errorf("%s: once %s is reached, %s answers %q, %v\n%s", where, to, order[i], got, err, n.AppCtl("dpctl/dump-conntrack"))
			}
		}
	}
}

// A port can be used again at once for the next connection to the same endpoint: directly, and by a Service.
func TestPortsAreUsedAgain(t *testing.T) {
	n := startNode(t, 2)
	n.setMode(pipeline.ModeNetworkPolicy) // all connections of pods are tracked in this mode
	n.serve(n.pods["b"].space, "b", "tcp", ":8080")
	n.apply(vip("one", "172.30.0.10", transport.TCP, 80, "10.128.0.6:8080"))
	for i, to := range []string{"10.128.0.6:8080", "172.30.0.10:80"} {
		for range 5 {
			conn, err := n.dialFrom("a", "tcp", 40000+i, to)
			if err != nil {
				t.Fatalf("%s: %v\n%s", to, err, n.AppCtl("dpctl/dump-conntrack"))
			}
			if got, err := say(conn); err != nil || got != "b sees 10.128.0.5" {
				t.Errorf("%s: %q, %v", to, got, err)
			}
			if err := errors.Join(conn.(*net.TCPConn).SetLinger(0), conn.Close()); err != nil { // otherwise the kernel keeps the port for a while
				t.Fatal(err)
			}
		}
	}
}

// setMode compiles the flows of the pods for another mode.
func (n *serviceNode) setMode(mode pipeline.Mode) {
	n.config.Mode = mode
	n.flows = n.config.Static()
	for _, p := range n.pods {
		maps.Copy(n.flows, n.config.Pod(p.Pod))
	}
}
