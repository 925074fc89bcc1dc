package networktest

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	types100 "github.com/containernetworking/cni/pkg/types/100"
	"github.com/containernetworking/plugins/pkg/ns"

	"weft.dev/weft/internal/attach"
	"weft.dev/weft/internal/cni"
)

// Runtime is where a container runtime's requests go.
type Runtime interface {
	Add(ctx context.Context, req *cni.Request) (*types100.Result, error)
	Del(ctx context.Context, req *cni.Request) error
	Check(ctx context.Context, req *cni.Request) error
}

// HostPortSubject is a network under test that serves host ports, on a node that outlives its agents. It has room for three pods at once.
type HostPortSubject struct {
	// Records is the directory of the agent's records.
	Records string
	// Serve starts an agent, and returns once it serves pods. stop ends it.
	Serve func(t *testing.T) (agent Runtime, stop func())
	// Pod creates a pod, and returns the path of its namespace, and its UID.
	Pod func(t *testing.T, name string) (netns, uid string)
	// Namespace is the pods' namespace in Kubernetes.
	Namespace string
	// Node and Outside are the namespaces of the node and of its neighbour, which reaches the node at Addresses: one for each
	// family by which the network serves host ports.
	Node, Outside ns.NetNS
	Addresses     []netip.Addr
	// Table is the network's table of family inet.
	Table string
	// Watched says that the agent follows changes of the node's rules, so that it may put one back before a CHECK.
	Watched bool
}

// RunHostPorts checks what users of host ports rely on.
func RunHostPorts(t *testing.T, factory func(t *testing.T) HostPortSubject) {
	for name, test := range map[string]func(*publishing){
		"a port is open at all addresses, or at those of a family": (*publishing).families,
		"a port belongs to one pod":                                (*publishing).belongs,
		"a port moves at once":                                     (*publishing).moves,
		"a port ends with its pod":                                 (*publishing).ends,
		"CHECK looks at the rules":                                 (*publishing).checked,
		"a restart keeps ports":                                    (*publishing).restarted,
		"a conflict concerns one pod alone":                        (*publishing).conflicting,
	} {
		t.Run(name, func(t *testing.T) {
			p := &publishing{HostPortSubject: factory(t), t: t, pods: map[string]published{}}
			p.serve()
			test(p)
		})
	}
}

// publishing is a node with an agent, and the pods on it.
type publishing struct {
	HostPortSubject

	t     *testing.T
	agent Runtime
	stop  func()
	pods  map[string]published
}

// published is a pod.
type published struct{ netns, uid string }

// HostPortAnswers is the port at which the pods of the suite answer with their names: by TCP to a connection, by UDP to each datagram.
const HostPortAnswers = 80

func (p *publishing) serve() {
	p.t.Helper()
	p.agent, p.stop = p.Serve(p.t)
}

// pod creates a pod that answers with its name, unless it exists.
func (p *publishing) pod(name string) published {
	p.t.Helper()
	if made, exists := p.pods[name]; exists {
		return made
	}
	var made published
	made.netns, made.uid = p.Pod(p.t, name)
	p.pods[name] = made
	var listener net.Listener
	var datagrams net.PacketConn
	p.inside(made.netns, func() error {
		var errs [2]error
		listener, errs[0] = net.Listen("tcp", fmt.Sprintf(":%d", HostPortAnswers))
		datagrams, errs[1] = net.ListenPacket("udp", fmt.Sprintf(":%d", HostPortAnswers))
		return errors.Join(errs[:]...)
	})
	p.t.Cleanup(func() { _ = errors.Join(listener.Close(), datagrams.Close()) })
	go func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			_, _ = io.WriteString(conn, name)
			_ = conn.Close()
		}
	}()
	go func() {
		data := make([]byte, 64)
		for {
			_, from, err := datagrams.ReadFrom(data)
			if err != nil {
				return
			}
			_, _ = datagrams.WriteTo([]byte(name), from)
		}
	}()
	return made
}

// inside runs work in the namespace at a path.
func (p *publishing) inside(path string, work func() error) {
	p.t.Helper()
	if err := ns.WithNetNSPath(path, func(ns.NetNS) error { return work() }); err != nil {
		p.t.Fatalf("in %s: %v", path, err)
	}
}

// in runs work in a namespace.
func (p *publishing) in(space ns.NetNS, work func() error) {
	p.t.Helper()
	if err := space.Do(func(ns.NetNS) error { return work() }); err != nil {
		p.t.Fatal(err)
	}
}

// request returns a request for a pod, as the runtime sends it.
func (p *publishing) request(command cni.Command, name, netns string, ports ...cni.PortMapping) *cni.Request {
	p.t.Helper()
	config, err := json.Marshal(map[string]any{
		"cniVersion": "1.1.0", "name": "weft", "type": "weft", "runtimeConfig": map[string]any{"portMappings": ports},
	})
	if err != nil {
		p.t.Fatal(err)
	}
	req := &cni.Request{
		Command: command, ContainerID: "sandbox-" + name, IfName: "eth0", Netns: netns, Config: config,
		Args: cni.Args{PodNamespace: p.Namespace, PodName: name, PodUID: p.pods[name].uid},
	}
	if req.NetConf, err = cni.ParseNetConf(config); err != nil {
		p.t.Fatal(err)
	}
	return req
}

// attach creates a pod and attaches it with host ports.
func (p *publishing) attach(name string, ports ...cni.PortMapping) error {
	p.t.Helper()
	pod := p.pod(name)
	_, err := p.agent.Add(p.t.Context(), p.request(cni.CommandAdd, name, pod.netns, ports...))
	return err
}

func (p *publishing) add(name string, ports ...cni.PortMapping) {
	p.t.Helper()
	if err := p.attach(name, ports...); err != nil {
		p.t.Fatalf("ADD of %s: %v", name, err)
	}
}

func (p *publishing) del(name string) {
	p.t.Helper()
	if err := p.agent.Del(p.t.Context(), p.request(cni.CommandDel, name, p.pods[name].netns)); err != nil {
		p.t.Fatalf("DEL of %s: %v", name, err)
	}
}

func (p *publishing) check(name string) error {
	p.t.Helper()
	return p.agent.Check(p.t.Context(), p.request(cni.CommandCheck, name, p.pods[name].netns))
}

// refused fails the test unless an error has the code and the words.
func (p *publishing) refused(what string, err error, code cni.Code, words ...string) {
	p.t.Helper()
	failure := cni.AsError(err)
	if failure == nil || failure.Code != code {
		p.t.Errorf("%s: %v, want code %d", what, err, code)
		return
	}
	for _, part := range words {
		if !strings.Contains(err.Error(), part) {
			p.t.Errorf("%s: %v, want words %q", what, err, part)
		}
	}
}

const (
	// lost is the time for packets of a connection that must succeed to be sent again.
	lost = 30 * time.Second
	// unansweredPort is how long a connection is tried that must not succeed.
	unansweredPort = 500 * time.Millisecond
)

// connect returns the name of the pod that answers a connection to an address.
func (p *publishing) connect(from ns.NetNS, to netip.AddrPort, within time.Duration) (name string, err error) {
	p.t.Helper()
	err = from.Do(func(ns.NetNS) error {
		conn, err := net.DialTimeout("tcp", to.String(), within)
		if err != nil {
			return err
		}
		defer func() { _ = conn.Close() }()
		if err := conn.SetDeadline(time.Now().Add(within)); err != nil {
			return err
		}
		data, err := io.ReadAll(conn)
		name = string(data)
		return err
	})
	return name, err
}

// open fails the test unless a pod answers at a port of the node, from outside and on the node itself, at each of the given addresses.
func (p *publishing) open(when string, port uint16, pod string, addresses ...netip.Addr) {
	p.t.Helper()
	for _, from := range []ns.NetNS{p.Outside, p.Node} {
		for _, address := range addresses {
			if got, err := p.connect(from, netip.AddrPortFrom(address, port), lost); err != nil || got != pod {
				p.t.Errorf("%s: port %d at %s: pod %q answers, %v, want %q", when, port, address, got, err, pod)
			}
		}
	}
}

// closed fails the test if any pod answers at a port of the node.
func (p *publishing) closed(when string, port uint16, addresses ...netip.Addr) {
	p.t.Helper()
	for _, address := range addresses {
		if got, err := p.connect(p.Outside, netip.AddrPortFrom(address, port), unansweredPort); err == nil {
			p.t.Errorf("%s: port %d at %s: pod %q answers", when, port, address, got)
		}
	}
}

// rules fails the test unless host ports are in the node's rules, or are not.
func (p *publishing) rules(when string, want bool, ports ...string) {
	p.t.Helper()
	listed := p.nft("list", "table", "inet", p.Table)
	for _, port := range ports {
		if strings.Contains(listed, port) != want {
			p.t.Errorf("%s: host port %s in the rules: %t, want %t\n%s", when, port, !want, want, listed)
		}
	}
}

// nft runs nft(8) on the node.
func (p *publishing) nft(args ...string) string {
	p.t.Helper()
	var out []byte
	p.in(p.Node, func() (err error) {
		if out, err = exec.Command("nft", args...).CombinedOutput(); err != nil { //nolint:gosec // the suite's own words
			err = fmt.Errorf("nft %s: %w: %s", strings.Join(args, " "), err, out)
		}
		return err
	})
	return string(out)
}

func (p *publishing) family4() netip.Addr {
	return p.Addresses[slices.IndexFunc(p.Addresses, netip.Addr.Is4)]
}

// at is a host port that leads to the pods' port.
func at(port int, address string) cni.PortMapping {
	return cni.PortMapping{HostPort: port, ContainerPort: HostPortAnswers, HostIP: address}
}

func udp(port int) cni.PortMapping {
	return cni.PortMapping{HostPort: port, ContainerPort: HostPortAnswers, Protocol: "UDP"}
}

// families: a port without an address is open at the node's addresses of each family, one at 0.0.0.0 or :: at those of the family, one at an
// address there alone. Two pods may have the same port, each by a family.
func (p *publishing) families() {
	four := p.family4()
	p.add("any", at(8080, ""), at(8081, four.String()), at(8082, "0.0.0.0"))
	p.open("at all addresses", 8080, "any", p.Addresses...)
	p.open("at one address", 8081, "any", four)
	p.open("at 0.0.0.0", 8082, "any", four)
	if got, err := p.connect(p.Node, netip.MustParseAddrPort("127.0.0.1:8080"), lost); err != nil || got != "any" {
		p.t.Errorf("127.0.0.1:8080 on the node: pod %q answers, %v", got, err)
	}
	p.closed("another port", HostPortAnswers, p.Addresses...)
	if len(p.Addresses) == 1 {
		p.refused("a port at ::", p.attach("six", at(8082, "::")), cni.CodeUnsupportedField, "hostIP", p.Namespace+"/six")
		return
	}
	others := slices.DeleteFunc(slices.Clone(p.Addresses), netip.Addr.Is4)
	p.closed("a port at an IPv4 address", 8081, others...)
	p.closed("a port at 0.0.0.0", 8082, others...)
	p.add("six", at(8082, "::"))
	p.open("another pod's port at ::", 8082, "six", others...)
	p.open("beside it", 8082, "any", four)
}

// belongs: an ADD that requests another pod's port fails, names both and the port, and leaves nothing. Once the other pod is gone, it succeeds.
func (p *publishing) belongs() {
	four := p.family4()
	p.add("first", at(8080, ""), at(8081, "0.0.0.0"))
	for _, taken := range []cni.PortMapping{at(8080, ""), at(8080, "0.0.0.0"), at(8080, four.String()), at(8081, ""), at(8081, four.String())} {
		err := p.attach("second", at(8090, ""), taken)
		p.refused(fmt.Sprintf("another pod with port %d at %q", taken.HostPort, taken.HostIP), err, cni.CodeTryAgainLater,
			"pod "+p.Namespace+"/second cannot have host port", fmt.Sprintf("%d/tcp of this node: pod %s/first has it", taken.HostPort, p.Namespace))
	}
	p.rules("of a pod that is refused", false, "8090")
	p.open("after another one was refused", 8080, "first", p.Addresses...)
	p.add("other", udp(8080)) // another protocol
	p.del("first")
	p.add("second", at(8090, ""), at(8080, ""))
	p.open("after the first pod", 8080, "second", p.Addresses...)
	p.open("after the first pod", 8090, "second", p.Addresses...)
}

// sends returns the name of the pod that answers a datagram.
func sends(client net.Conn, within time.Duration) (string, error) {
	if err := client.SetDeadline(time.Now().Add(within)); err != nil {
		return "", err
	}
	_, _ = client.Write([]byte("x")) // an ICMP unreachable causes an error of the next write
	data := make([]byte, 64)
	n, err := client.Read(data)
	return string(data[:n]), err
}

// moves: with its first datagram after the ADD, a client that goes on sending reaches the next pod that has the port, although that pod has
// another address and nothing has ended the connection to the former one: from outside and from the node.
func (p *publishing) moves() {
	p.add("first", udp(8080))
	clients := map[string]net.Conn{}
	dial := func(name string, from ns.NetNS, to string) {
		p.t.Helper()
		p.in(from, func() (err error) {
			clients[name+" to "+to], err = net.Dial("udp", to)
			return err
		})
		p.t.Cleanup(func() { _ = clients[name+" to "+to].Close() })
	}
	for _, address := range p.Addresses {
		to := netip.AddrPortFrom(address, 8080).String()
		dial("outside", p.Outside, to)
		dial("the node", p.Node, to)
	}
	dial("the node", p.Node, "127.0.0.1:8080")
	for name, client := range clients {
		wait(p.t, name+": a datagram is answered", func() error {
			_, err := sends(client, 200*time.Millisecond)
			return err
		})
		for late := error(nil); late == nil; { // answers to those before it
			_ = client.SetDeadline(time.Now().Add(50 * time.Millisecond))
			_, late = client.Read(make([]byte, 64))
		}
	}
	p.pod("next") // its namespace does not delay the ADD
	p.del("first")
	for name, client := range clients {
		if got, err := sends(client, 50*time.Millisecond); err == nil {
			p.t.Errorf("%s: after DEL, pod %q answers a datagram", name, got)
		}
	}
	p.add("next", udp(8080))
	for name, client := range clients {
		if got, err := sends(client, 10*time.Second); err != nil || got != "next" {
			p.t.Errorf("%s: the first datagram to the next pod: pod %q answers, %v", name, got, err)
		}
	}
}

// ends: once a DEL is answered, and after an ADD that failed when host ports may have been published, no rule leads to the pod, and the next
// pod can have the port. The same holds if the agent ends during a DEL, before it has withdrawn the pod's host ports.
func (p *publishing) ends() {
	p.add("first", at(8080, ""), udp(8081))
	p.rules("once an ADD is answered", true, "8080", "8081")
	p.del("first")
	p.rules("once a DEL is answered", false, "8080", "8081")
	p.closed("after DEL", 8080, p.Addresses...)
	p.pods["fails"] = published{netns: filepath.Join(p.t.TempDir(), "none")}
	if _, err := p.agent.Add(p.t.Context(), p.request(cni.CommandAdd, "fails", p.pods["fails"].netns, at(8080, ""))); err == nil {
		p.t.Error("an ADD without a namespace succeeds")
	}
	wait(p.t, "a failed ADD leaves no host port", func() error {
		if listed := p.nft("list", "table", "inet", p.Table); strings.Contains(listed, "8080") {
			return errors.New(listed)
		}
		return nil
	})
	p.add("crash", at(8080, ""))
	p.stop()
	store, err := attach.Open(p.Records)
	if err != nil {
		p.t.Fatal(err)
	}
	rec, err := store.Get(attach.Key{ContainerID: "sandbox-crash", IfName: "eth0"})
	rec.State = attach.Closing
	if err := errors.Join(err, store.Put(p.t.Context(), rec), store.Close()); err != nil {
		p.t.Fatal(err)
	}
	p.serve()
	p.rules("with the next agent", false, "8080")
	p.add("next", at(8080, ""))
	p.open("the next pod", 8080, "next", p.Addresses...)
}

// checked: CHECK reports a host port that another program has removed from the node's rules, which is put back.
func (p *publishing) checked() {
	p.add("web", at(8080, ""), at(8081, ""))
	if err := p.check("web"); err != nil {
		p.t.Errorf("CHECK: %v", err)
	}
	p.nft("delete", "element", "inet", p.Table, "hostports", "{ tcp . 8080 }")
	if err := p.check("web"); !p.Watched && (err == nil || !strings.Contains(err.Error(), "8080")) {
		p.t.Errorf("CHECK after a host port was removed: %v", err)
	}
	wait(p.t, "the host port is put back", func() error { return p.check("web") })
	p.open("put back", 8080, "web", p.Addresses...)
}

// restarted: host ports work while no agent runs, and with the next one, also if another program has removed the rules meanwhile.
func (p *publishing) restarted() {
	p.add("web", at(8080, ""), at(8081, "0.0.0.0"))
	p.stop()
	p.open("without an agent", 8080, "web", p.Addresses...)
	p.serve()
	if err := p.check("web"); err != nil {
		p.t.Errorf("CHECK after a restart: %v", err)
	}
	p.open("with the next agent", 8080, "web", p.Addresses...)
	p.stop()
	p.nft("delete", "table", "inet", p.Table)
	p.serve()
	p.open("after the rules were removed", 8080, "web", p.Addresses...)
	p.open("after the rules were removed", 8081, "web", p.family4())
}

// conflicting: an agent that finds two records with one host port starts. One of the two pods has the port, and every other port is open,
// those of both included. CHECK reports the one that lacks it. Once the other ends, it has it.
func (p *publishing) conflicting() {
	p.add("first", at(8080, ""), at(8081, ""))
	p.add("second", at(8090, ""), at(8091, ""))
	p.add("third", at(8082, ""))
	p.stop()
	p.rewrite("sandbox-second", `"hostPort":8090`, `"hostPort":8080`)
	p.serve()
	p.open("of the pod that has it", 8080, "first", p.Addresses...)
	p.open("of the pod that has it", 8081, "first", p.Addresses...)
	p.open("of the pod that lacks another one", 8091, "second", p.Addresses...)
	p.open("of a third pod", 8082, "third", p.Addresses...)
	p.rules("of no pod", false, "8090")
	for name, want := range map[string]bool{"first": true, "second": false, "third": true} {
		if err := p.check(name); (err == nil) != want {
			p.t.Errorf("CHECK of %s: %v", name, err)
		}
	}
	p.del("third")
	p.add("third", at(8083, ""))
	p.open("attached meanwhile", 8083, "third", p.Addresses...)
	p.del("first")
	p.open("once it is free", 8080, "second", p.Addresses...)
	wait(p.t, "CHECK of second", func() error { return p.check("second") })
}

// rewrite replaces text in the file with the host ports of a sandbox: no agent writes two records with one port.
func (p *publishing) rewrite(sandbox, from, to string) {
	p.t.Helper()
	files, err := filepath.Glob(filepath.Join(p.Records+"-extra", "*"))
	if err != nil {
		p.t.Fatal(err)
	}
	for _, file := range files {
		data, err := os.ReadFile(file) //nolint:gosec // the suite's own directory
		if err != nil {
			p.t.Fatal(err)
		}
		if !bytes.Contains(data, []byte(sandbox)) || !bytes.Contains(data, []byte(from)) {
			continue
		}
		if err := os.WriteFile(file, bytes.ReplaceAll(data, []byte(from), []byte(to)), 0o600); err != nil {
			p.t.Fatal(err)
		}
		return
	}
	p.t.Fatalf("no file of %s has %s", sandbox, from)
}
