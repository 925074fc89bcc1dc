//go:build real

package node_test

import (
	"io"
	"net"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/containernetworking/plugins/pkg/ns"
	"github.com/gopacket/gopacket"
	"github.com/gopacket/gopacket/layers"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	kubeovn "weft.dev/weft/api/kubeovn/v1"
	"weft.dev/weft/internal/attach"
	"weft.dev/weft/internal/ovn/ovntest"
)

// outsideHost is the host outside; it resets what SNAT translates to another port than before.
const outsideHost = "192.168.100.10"

// resets are the RST segments that a pod has received, except those of outsideHost.
type resets struct {
	mu   sync.Mutex
	seen []string
}

func watchResets(t *testing.T, pod *ovntest.Pod) *resets {
	t.Helper()
	var conn net.PacketConn
	must(t, pod.Do(func(ns.NetNS) (err error) {
		conn, err = (&net.ListenConfig{}).ListenPacket(t.Context(), "ip4:tcp", "0.0.0.0")
		return err
	}))
	r := &resets{}
	var group sync.WaitGroup
	group.Go(func() {
		buffer := make([]byte, 1<<16)
		for {
			n, from, err := conn.ReadFrom(buffer)
			if err != nil {
				return
			}
			var tcp layers.TCP
			if err := tcp.DecodeFromBytes(buffer[:n], gopacket.NilDecodeFeedback); err == nil && tcp.RST && from.String() != outsideHost {
				r.mu.Lock()
				r.seen = append(r.seen, from.String()+" "+tcp.SrcPort.String()+" to port "+tcp.DstPort.String())
				r.mu.Unlock()
			}
		}
	})
	t.Cleanup(func() {
		_ = conn.Close()
		group.Wait()
	})
	return r
}

func (r *resets) all() []string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.seen
}

// accept serves every connection to a port of a pod until the test ends.
func accept(t *testing.T, pod *ovntest.Pod, port string, serve func(net.Conn)) {
	t.Helper()
	var listener net.Listener
	must(t, pod.Do(func(ns.NetNS) (err error) {
		listener, err = (&net.ListenConfig{}).Listen(t.Context(), "tcp4", ":"+port)
		return err
	}))
	var group sync.WaitGroup
	group.Go(func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			group.Go(func() {
				stop := make(chan struct{})
				defer close(stop)
				group.Go(func() {
					select {
					case <-stop:
					case <-t.Context().Done():
					}
					_ = conn.Close()
				})
				serve(conn)
			})
		}
	})
	t.Cleanup(func() {
		_ = listener.Close()
		group.Wait()
	})
}

func echo(conn net.Conn) { _, _ = io.Copy(conn, conn) }

// send sends a byte every 5 ms until the connection ends.
func send(conn net.Conn) {
	ticker := time.NewTicker(5 * time.Millisecond)
	defer ticker.Stop()
	for range ticker.C {
		if _, err := conn.Write([]byte("?")); err != nil {
			return
		}
	}
}

// received counts what arrives on a connection, until its end.
type received struct {
	net.Conn
	bytes atomic.Int64
	err   chan error
}

// connect opens a connection. With traffic, it sends until the test ends.
func connect(t *testing.T, from *ovntest.Pod, to string, traffic bool) *received {
	t.Helper()
	r := &received{err: make(chan error, 1)}
	must(t, from.Do(func(ns.NetNS) (err error) {
		r.Conn, err = (&net.Dialer{Timeout: time.Minute}).DialContext(t.Context(), "tcp4", to)
		return err
	}))
	var group sync.WaitGroup
	group.Go(func() {
		buffer := make([]byte, 4096)
		for {
			n, err := r.Read(buffer)
			r.bytes.Add(int64(n))
			if err != nil {
				r.err <- err
				return
			}
		}
	})
	if traffic {
		group.Go(func() { send(r) })
	}
	t.Cleanup(func() {
		_ = r.Close()
		group.Wait()
	})
	return r
}

// goesOn waits until more arrives on a connection.
func (r *received) goesOn(t *testing.T, what string) {
	t.Helper()
	before := r.bytes.Load()
	ovntest.Eventually(t, what+" goes on", func() bool {
		select {
		case err := <-r.err:
			t.Fatalf("%s has ended: %v", what, err)
		default:
		}
		return r.bytes.Load() > before+10
	})
}

// removeGateway deletes the pod of a gateway.
func (n *nodeUnderTest) removeGateway(rec *attach.Record) {
	n.t.Helper()
	ctx := n.t.Context()
	n.records.mu.Lock()
	delete(n.records.recs, rec.Key())
	n.records.mu.Unlock()
	must(n.t, n.network.Close(ctx, *rec))
	if failed := n.network.Remove(ctx, []attach.Record{*rec}); len(failed) > 0 {
		n.t.Fatal(failed)
	}
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: rec.PodNamespace, Name: rec.PodName}}
	must(n.t, n.Delete(ctx, pod, client.GracePeriodSeconds(0)))
}

// A gateway whose pod is deleted and made again under traffic resets no connection of the former gateway: those to floating IPs go on, from
// outside and from the VPC.
func TestGatewayIsMadeAgain(t *testing.T) {
	n, host, _ := newGateways(t, `
---
kind: IptablesEIP
apiVersion: kubeovn.io/v1
metadata: {name: eip4}
spec: {v4ip: 192.168.100.233, natGwDp: gw1}
---
kind: IptablesSnatRule
apiVersion: kubeovn.io/v1
metadata: {name: snat02}
spec: {eip: eip4, internalCIDR: 10.0.1.0/24}
`)
	gateway := n.makeGateway("gw1")
	template := corev1.PodTemplateSpec{Spec: corev1.PodSpec{Containers: []corev1.Container{{Name: "c", Image: "i"}}}}
	template.Annotations = map[string]string{kubeovn.AnnotationLogicalSwitch: "net1"}
	n.makePod("ns1", "one", &template)
	template.Annotations[kubeovn.AnnotationIPAddress] = "10.0.1.5"
	n.makePod("ns1", "floating", &template)
	one, _ := n.add("ns1", "one")
	floating, _ := n.add("ns1", "floating")
	_, rec := n.add("kube-system", gateway)
	one.Reaches("10.0.1.254")
	host.Reaches("192.168.100.232")
	remake(n, &rec, host, one, floating)
	n.deleteAll(client.ObjectKey{Namespace: "ns1", Name: "one"}, client.ObjectKey{Namespace: "ns1", Name: "floating"},
		client.ObjectKey{Namespace: "kube-system", Name: gateway})
}

// remake makes a gateway again, under traffic of a host outside, a pod with SNAT and one with a floating IP, and looks for resets.
func remake(n *nodeUnderTest, rec *attach.Record, host, one, floating *ovntest.Pod) {
	t := n.t
	t.Helper()
	const to = "192.168.100.232:7000"
	accept(t, floating, "7000", echo)
	accept(t, host, "7000", send)
	watched := map[string]*resets{"the host": watchResets(t, host), "the client": watchResets(t, one), "the server": watchResets(t, floating)}
	defer func() {
		for at, r := range watched {
			if seen := r.all(); len(seen) > 0 {
				t.Errorf("resets that %s received: %v", at, seen)
			}
		}
	}()
	lasting := map[string]*received{}
	var closing []*received
	for _, i := range []string{"1", "2", "3"} {
		lasting["connection "+i+" to the floating IP, from outside"] = connect(t, host, to, true)
		lasting["connection "+i+" to the floating IP, from the VPC"] = connect(t, one, to, true)
		closing = append(closing, connect(t, host, to, false))
	}
	translated := connect(t, one, outsideHost+":7000", false) // the client sends nothing: a packet from another port would be reset
	translated.goesOn(t, "a connection that SNAT translates")
	for what, conn := range lasting {
		conn.goesOn(t, what)
	}

	n.removeGateway(rec)
	for _, conn := range closing { // their FIN segments are the first that the next gateway receives
		must(t, conn.Close())
	}
	n.makeGateway("gw1")
	gate, _ := n.add(rec.PodNamespace, rec.PodName)
	complete(t, gate)
	for what, conn := range lasting {
		conn.goesOn(t, what)
	}
	connect(t, host, to, true).goesOn(t, "a new connection to the floating IP")
	ovntest.Eventually(t, "segments of both kinds are dropped", func() bool {
		return !strings.Contains(ovntest.Run(t, gate.NetNS, "nft", "list", "chain", "ip", "weft_gateway", "input"), "packets 0 ")
	})
}

// complete requires the whole state of the gateway in the namespace of its pod, without waiting: the ADD has been answered.
func complete(t *testing.T, gate *ovntest.Pod) {
	t.Helper()
	for what, want := range map[string][]string{
		"nft list table ip weft_gateway": {
			`192.168.100.232 comment "IptablesFIPRule/fip01" : 10.0.1.5`, `10.0.1.5 comment "IptablesFIPRule/fip01" : 192.168.100.232`,
			`10.0.1.0/24 comment "IptablesSnatRule/snat02" : 192.168.100.233`, `oifname "net1" ip saddr != @outside_addresses`,
		},
		"ip -o addr show net1":                    {"192.168.100.231/", "192.168.100.232/", "192.168.100.233/"},
		"ip route show":                           {"default via 192.168.100.1 dev net1"},
		"sysctl -n net.ipv4.ip_forward":           {"1"},
		"sysctl -n net.ipv4.conf.net1.arp_ignore": {"1"},
		"sysctl -n net.ipv4.conf.net1.rp_filter":  {"1"},
	} {
		argv := strings.Fields(what)
		have := ovntest.Run(t, gate.NetNS, argv[0], argv[1:]...)
		for _, words := range want {
			if !strings.Contains(have, words) {
				t.Errorf("when the ADD is answered, %s prints\n%s\nwant %q in it", what, have, words)
			}
		}
	}
}
