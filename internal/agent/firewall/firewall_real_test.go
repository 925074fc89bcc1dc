//go:build real

package firewall

import (
	"context"
	"fmt"
	"net"
	"os/exec"
	"strings"
	"testing"
	"time"

	"weft.dev/weft/internal/link/nstest"
	"weft.dev/weft/internal/nft"
	"weft.dev/weft/internal/nft/ruleset"
	"weft.dev/weft/internal/overlay/host"
	"weft.dev/weft/internal/testwait"
)

// inside runs a program in a namespace with the given standard input, and returns its output.
func inside(t *testing.T, netns, input, name string, args ...string) string {
	t.Helper()
	var out []byte
	nstest.Do(t, netns, func() error {
		program := exec.Command(name, args...)
		program.Stdin = strings.NewReader(input)
		var err error
		if out, err = program.CombinedOutput(); err != nil {
			return fmt.Errorf("%s %v: %w: %s", name, args, err, out)
		}
		return nil
	})
	return string(out)
}

// forwarder is a namespace that forwards between tun0, with a pod behind it, and eth0, with the outside world behind it.
type forwarder struct{ host, pod, world string }

func newNode(t *testing.T) *forwarder {
	t.Helper()
	n := &forwarder{nstest.New(t), nstest.New(t), nstest.New(t)}
	n.cable(t, n.pod, "tun0", "10.128.0.1/23", "10.128.0.2/23")
	n.cable(t, n.world, "eth0", "192.0.2.1/24", "192.0.2.2/24")
	inside(t, n.host, "1", "tee", "/proc/sys/net/ipv4/ip_forward")
	inside(t, n.pod, "", "ip", "route", "add", "default", "via", "10.128.0.1")
	inside(t, n.world, "", "ip", "route", "add", "10.128.0.0/23", "via", "192.0.2.1")
	return n
}

// cable connects the host to another namespace, where the device is called eth0.
func (n *forwarder) cable(t *testing.T, other, device, address, peer string) {
	t.Helper()
	inside(t, n.host, "", "ip", "link", "add", device, "type", "veth", "peer", "name", "wtpeer")
	nstest.Do(t, other, func() error {
		return exec.Command("ip", "link", "set", "lo", "up").Run()
	})
	move := exec.Command("nsenter", "--net="+n.host, "ip", "link", "set", "wtpeer", "netns", other)
	if out, err := move.CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	inside(t, other, "", "ip", "link", "set", "wtpeer", "name", "eth0", "up")
	inside(t, other, "", "ip", "address", "add", peer, "dev", "eth0")
	inside(t, n.host, "", "ip", "link", "set", device, "up")
	inside(t, n.host, "", "ip", "address", "add", address, "dev", device)
}

// dial reports whether the pod reaches a port of the outside world.
func (n *forwarder) dial(t *testing.T, address string, patience time.Duration) bool {
	t.Helper()
	reached := false
	nstest.Do(t, n.pod, func() error {
		fd, err := (&net.Dialer{Timeout: patience}).Dial("tcp4", address)
		if err == nil {
			reached = true
			return fd.Close()
		}
		return nil
	})
	return reached
}

func (n *forwarder) serve(t *testing.T, address string) {
	t.Helper()
	nstest.Do(t, n.world, func() error {
		listener, err := net.Listen("tcp4", address)
		if err == nil {
			t.Cleanup(func() { _ = listener.Close() })
		}
		return err
	})
}

// With Docker's policy, the pod reaches nothing. Once the firewall is followed, it reaches everything, whatever other programs do to the
// chain. The administrator's own chain is never changed.
func TestRealFirewall(t *testing.T) {
	n := newNode(t)
	const server = "192.0.2.2:8080"
	n.serve(t, server)
	iptables := func(args string) { inside(t, n.host, "", "iptables-nft", strings.Fields(args)...) }
	if !n.dial(t, server, 5*time.Second) {
		t.Fatal("no chain drops, but the pod does not reach the outside")
	}
	iptables("-P FORWARD DROP")
	iptables("-N DOCKER-USER")
	iptables("-A FORWARD -j DOCKER-USER")
	iptables("-A INPUT -j REJECT")
	if n.dial(t, server, time.Second) {
		t.Fatal("the chain does not drop")
	}
	engine, err := ruleset.NewEngine(ruleset.Options{Netns: n.host, Tables: host.Tables(), Unmanaged: host.Unmanaged(), Foreign: true})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(engine.Close)
	counted := newCounting(engine)
	w := newWall(t, counted)
	ctx, cancel := context.WithCancel(context.Background())
	t.Cleanup(cancel)
	drifts, err := engine.Monitor(ctx)
	if err != nil {
		t.Fatal(err)
	}
	w.follows(t, drifts)
	opened := func(what string) {
		t.Helper()
		testwait.Until(t, what, func() bool { return n.dial(t, server, time.Second) })
	}
	opened("the pod reaches the outside")
	if out := inside(t, n.host, "", "iptables-nft", "-S", "INPUT"); !strings.Contains(out, `-A INPUT -p udp -m udp --dport 4789`) ||
		!strings.Contains(out, "-A INPUT -i tun0 -m comment") {
		t.Errorf("the input chain:\n%s", out)
	}
	inside(t, n.host, "add rule inet weft admin ip daddr 192.0.2.2 tcp dport 9 counter drop comment \"mine\"\n", "nft", "-f", "-")
	n.storm(t, counted)
	for _, deed := range []string{"-D FORWARD 1", "-F FORWARD", "-I FORWARD -j DOCKER-USER", "-P FORWARD DROP"} {
		iptables(deed)
		opened("after " + deed)
	}
	inside(t, n.host, "delete table ip filter\n", "nft", "-f", "-")
	opened("without Docker")
	iptables("-P FORWARD DROP")
	opened("Docker again")
	inside(t, n.host, "flush chain inet weft forward\n", "nft", "-f", "-")
	testwait.Until(t, "Weft's chain is repaired", func() bool {
		return strings.Contains(inside(t, n.host, "", "nft", "list", "chain", "inet", "weft", "forward"), "jump admin")
	})
	if rules := inside(t, n.host, "", "nft", "list", "chain", "inet", "weft", "admin"); !strings.Contains(rules, `comment "mine"`) {
		t.Errorf("the administrator's chain:\n%s", rules)
	}
	iptables("-P FORWARD ACCEPT")
	testwait.Until(t, "a chain that accepts has no rule of ours", func() bool {
		return !strings.Contains(inside(t, n.host, "", "iptables-nft", "-S", "FORWARD"), nft.Mark)
	})
	iptables("-N " + adminChain)
	iptables("-A FORWARD -i tun0 ! -o tun0 -j " + adminChain)
	if left := w.Leftover(); left != "" {
		t.Errorf("an empty chain is a leftover: %s", left)
	}
	iptables("-A " + adminChain + " -d 192.0.2.2 -j ACCEPT")
	testwait.Until(t, "the rules of OpenShift SDN's administrators are named", func() bool { return strings.Contains(w.Leftover(), adminChain+" has rules (1)") })
	iptables("-F " + adminChain)
	testwait.Until(t, "they are gone", func() bool { return w.Leftover() == "" })
	inside(t, n.host, "delete table inet weft\n", "nft", "-f", "-")
	testwait.Until(t, "the administrator's chain is there again, empty", func() bool {
		listing := inside(t, n.host, "", "nft", "list", "ruleset")
		return strings.Contains(listing, "chain admin {") && !strings.Contains(listing, `"mine"`)
	})
}

// storm makes the changes that kube-proxy makes to other chains, a hundred times, and checks that they cause no survey.
func (n *forwarder) storm(t *testing.T, counted *counting) {
	t.Helper()
	inside(t, n.host, "add table ip kube-proxy\nadd chain ip kube-proxy filter-forward { type filter hook forward priority -110; }\n"+
		"add rule ip kube-proxy filter-forward ct state invalid drop\nadd chain ip kube-proxy service-x\n"+
		"add map ip kube-proxy services { type ipv4_addr : verdict; }\n", "nft", "-f", "-")
	inside(t, n.host, "", "iptables-nft", "-t", "nat", "-N", "KUBE-SERVICES")
	// After the survey that these changes cause, the loop is idle.
	testwait.Until(t, "quiet", func() bool {
		before := len(counted.surveys) + len(counted.reads)
		quiet := time.NewTimer(2 * firewallRest)
		<-quiet.C
		return len(counted.surveys)+len(counted.reads) == before
	})
	reads, surveys := len(counted.reads), len(counted.surveys)
	for i := range 100 {
		inside(t, n.host, fmt.Sprintf("flush chain ip kube-proxy service-x\nadd rule ip kube-proxy service-x counter accept\n"+
			"add element ip kube-proxy services { 172.30.0.%d : goto service-x }\nadd rule ip nat KUBE-SERVICES counter\n", i), "nft", "-f", "-")
	}
	// An event of Weft's own table comes after all of these.
	inside(t, n.host, "add rule inet weft forward counter\n", "nft", "-f", "-")
	testwait.Until(t, "the events processed", func() bool { return len(counted.reads) > reads })
	if got := len(counted.surveys) - surveys; got != 0 {
		t.Errorf("%d surveys for 100 changes by kube-proxy", got)
	}
	if got := len(counted.reads) - reads; got > 2 {
		t.Errorf("%d times read back for 100 changes by kube-proxy and one of ours", got)
	}
}
