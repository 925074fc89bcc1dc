package ovntest

import (
	"fmt"
	"io"
	"net"
	"testing"
	"time"

	"github.com/containernetworking/plugins/pkg/ns"

	"weft.dev/weft/internal/openflow/ovstest"
)

// Serve answers TCP and UDP on a port of a namespace with a name and the source address of the request.
func Serve(t testing.TB, netns ns.NetNS, name string, port int) {
	t.Helper()
	err := netns.Do(func(ns.NetNS) error {
		listener, err := net.Listen("tcp4", fmt.Sprintf(":%d", port))
		if err != nil {
			return err
		}
		packets, err := net.ListenPacket("udp4", fmt.Sprintf(":%d", port))
		if err != nil {
			return err
		}
		t.Cleanup(func() { _ = listener.Close(); _ = packets.Close() })
		go func() {
			for {
				conn, err := listener.Accept()
				if err != nil {
					return
				}
				_, _ = io.WriteString(conn, name+" "+conn.RemoteAddr().(*net.TCPAddr).IP.String())
				_ = conn.Close()
			}
		}()
		go func() {
			buffer := make([]byte, 16)
			for {
				_, from, err := packets.ReadFrom(buffer)
				if err != nil {
					return
				}
				_, _ = packets.WriteTo([]byte(name+" "+from.(*net.UDPAddr).IP.String()), from)
			}
		}()
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
}

const (
	// wait is how long Ask waits for an answer.
	wait = 2 * time.Second * ovstest.Slowness
	// brief is how long Silent waits: within a machine, an answer takes milliseconds.
	brief = wait / 4
)

// Ask returns a server's answer, "" if there is none.
func Ask(t testing.TB, netns ns.NetNS, network, to string) string {
	t.Helper()
	return ask(t, netns, network, to, wait)
}

// Silent returns the answer that a server must not give, "" if there is none.
func Silent(t testing.TB, netns ns.NetNS, network, to string) string {
	t.Helper()
	return ask(t, netns, network, to, brief)
}

// ask returns a server's answer, "" if there is none in time.
func ask(t testing.TB, netns ns.NetNS, network, to string, wait time.Duration) string {
	t.Helper()
	var answer string
	_ = netns.Do(func(ns.NetNS) error {
		conn, err := (&net.Dialer{Timeout: wait}).DialContext(t.Context(), network, to)
		if err != nil {
			return err
		}
		defer func() { _ = conn.Close() }()
		_ = conn.SetDeadline(time.Now().Add(wait))
		_, _ = io.WriteString(conn, "?")
		buffer := make([]byte, 64)
		n, _ := conn.Read(buffer)
		answer = string(buffer[:n])
		return nil
	})
	return answer
}

// Outside is a network on a chassis's device ens37: 192.168.100.0/24 with a host .10 and a router .1, behind which is 1.1.1.1.
func Outside(t testing.TB, chassis ns.NetNS) (host, router *Pod) {
	t.Helper()
	fabric := ovstest.NewNetNS(t)
	Run(t, fabric, "ip", "link", "add", "name", "fabric", "type", "bridge")
	Run(t, fabric, "ip", "link", "set", "fabric", "up")
	Veth(t, chassis, "ens37", fabric, "node")
	Run(t, fabric, "ip", "link", "set", "node", "master", "fabric")
	pods := make([]*Pod, 0, 2)
	for i, address := range []string{"192.168.100.10/24", "192.168.100.1/24"} {
		p := NewPod(t)
		Veth(t, p.NetNS, "eth0", fabric, fmt.Sprintf("p%d", i))
		Run(t, fabric, "ip", "link", "set", fmt.Sprintf("p%d", i), "master", "fabric")
		p.IP("addr", "add", address, "dev", "eth0")
		pods = append(pods, p)
	}
	pods[1].IP("addr", "add", "1.1.1.1/32", "dev", "lo")
	return pods[0], pods[1]
}
