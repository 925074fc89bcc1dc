// Package flanneltest builds small flannel networks for tests: nodes that are network namespaces on one underlay, with real flanneld,
// Weft's daemon, and pods. It needs root.
package flanneltest

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"weft.dev/weft/internal/child"
	"weft.dev/weft/internal/testwait"
	"weft.dev/weft/lab/flannelbuild"
)

// Flanneld returns the path of the real flanneld, which it builds on first use.
func Flanneld(t testing.TB) string {
	t.Helper()
	return build(t, flannelbuild.Flanneld())
}

// Plugin returns the path of the real CNI plugin of flannel, which it builds on first use.
func Plugin(t testing.TB) string {
	t.Helper()
	return build(t, flannelbuild.Plugin())
}

// binVariable names a directory that already has Weft's programs, as in the laboratory.
const binVariable = "WEFT_LAB_BIN"

// Main builds Weft's programs into a temporary directory, passes it to use, and runs the tests. It returns the exit code for TestMain.
func Main(m *testing.M, use func(bin string), programs ...string) int {
	if bin := os.Getenv(binVariable); bin != "" { //nolint:forbidigo // one folder for every test of a run
		use(bin)
		return m.Run()
	}
	bin, err := os.MkdirTemp("", "weft-flannel-")
	if err == nil {
		defer os.RemoveAll(bin) //nolint:errcheck // a temporary folder
		err = Build(bin, programs...)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "build Weft's programs:", err)
		return 1
	}
	use(bin)
	return m.Run()
}

// Build builds Weft's programs into a directory.
func Build(bin string, programs ...string) error {
	for _, program := range programs {
		if _, err := try(context.Background(), sources(), "", "go", "build", "-tags", "grpcnotrace", "-o", filepath.Join(bin, program), "./cmd/"+program); err != nil {
			return err
		}
	}
	return nil
}

// sources is the directory of the module: go test runs a test in its package's directory.
func sources() string {
	for dir, err := os.Getwd(); err == nil && dir != "/"; dir = filepath.Dir(dir) {
		if _, err := os.Stat(filepath.Join(dir, "go.mod")); err == nil {
			return dir
		}
	}
	return "." // go build then reports that there is no module
}

func build(t testing.TB, program flannelbuild.Program) string {
	t.Helper()
	err := program.Ensure(t.Context(), filepath.Join(sources(), "lab"), func(ctx context.Context, _ string, argv ...string) (string, error) {
		return try(ctx, "", "", argv...)
	})
	if err != nil {
		t.Fatal(err)
	}
	return program.Path()
}

func run(t testing.TB, dir, env string, argv ...string) string {
	t.Helper()
	out, err := try(t.Context(), dir, env, argv...)
	if err != nil {
		t.Fatal(err)
	}
	return out
}

func try(ctx context.Context, dir, env string, argv ...string) (string, error) {
	cmd := exec.CommandContext(ctx, argv[0], argv[1:]...)
	cmd.Dir = dir
	if env != "" {
		cmd.Env = append(os.Environ(), env)
	}
	out, err := cmd.CombinedOutput()
	if err != nil {
		return "", fmt.Errorf("%s: %w: %s", strings.Join(argv, " "), err, out)
	}
	return string(out), nil
}

// Underlay is the network between nodes: a namespace with a bridge at 192.0.2.254, in which etcd and other servers run.
type Underlay struct {
	t     *testing.T
	tag   string
	Space *Space
	nodes int
}

// tags is the number of possible names of underlays.
const tags = 1_000_000

// Space is a network namespace.
type Space struct {
	t    *testing.T
	Name string
}

// NewUnderlay creates an underlay.
func NewUnderlay(t *testing.T) *Underlay {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Fatal("this test needs root")
	}
	u := &Underlay{t: t, tag: "wf" + strconv.Itoa(rand.IntN(tags))}
	u.Space = u.space("hub")
	u.Space.IP("link add br0 type bridge")
	u.Space.IP("addr add 192.0.2.254/24 dev br0")
	u.Space.IP("-6 addr add 2001:db8::fe/64 dev br0 nodad")
	u.Space.IP("link set br0 up")
	return u
}

func (u *Underlay) space(name string) *Space {
	u.t.Helper()
	s := &Space{u.t, u.tag + "-" + name}
	run(u.t, "", "", "ip", "netns", "add", s.Name)
	u.t.Cleanup(func() {
		if _, err := try(context.Background(), "", "", "ip", "netns", "del", s.Name); err != nil {
			u.t.Error(err)
		}
	})
	s.IP("link set lo up")
	return s
}

// IP runs ip(8) in the namespace.
func (s *Space) IP(args string) string {
	s.t.Helper()
	return run(s.t, "", "", append([]string{"ip", "-n", s.Name}, strings.Fields(args)...)...)
}

// Run runs a command in the namespace.
func (s *Space) Run(argv ...string) (string, error) {
	return try(s.t.Context(), "", "", append(s.argv(), argv...)...)
}

func (s *Space) argv() []string { return []string{"nsenter", "--net=/var/run/netns/" + s.Name} }

// Path is the path of the namespace's file.
func (s *Space) Path() string { return "/var/run/netns/" + s.Name }

// Node is a node: a namespace with eth0 on the underlay, and a directory.
type Node struct {
	*Space
	u *Underlay
	// Number is the last byte of its addresses, from 1.
	Number int
	Dir    string
	pods   int
}

// Node adds a node.
func (u *Underlay) Node() *Node {
	u.t.Helper()
	u.nodes++
	n := &Node{u: u, Number: u.nodes, Dir: u.t.TempDir(), Space: u.space("n" + strconv.Itoa(u.nodes))}
	n.plug()
	for _, setting := range []string{"net.ipv4.ip_forward=1", "net.ipv6.conf.all.forwarding=1"} {
		if _, err := n.Run("sysctl", "-qw", setting); err != nil {
			u.t.Fatal(err)
		}
	}
	return n
}

// Replug removes the node's interface to the underlay and creates it again, with the same addresses.
func (n *Node) Replug() {
	n.u.t.Helper()
	n.IP("link del eth0")
	n.plug()
}

// plug creates the node's eth0.
func (n *Node) plug() {
	u := n.u
	u.t.Helper()
	n.IP(fmt.Sprintf("link add eth0 type veth peer name v%d netns %s", n.Number, u.Space.Name))
	u.Space.IP(fmt.Sprintf("link set v%d master br0 up", n.Number))
	n.IP(fmt.Sprintf("addr add %s/24 dev eth0", n.Address()))
	n.IP(fmt.Sprintf("-6 addr add 2001:db8::%d/64 dev eth0 nodad", n.Number))
	n.IP("link set eth0 up")
	n.IP("route add default via 192.0.2.254")
	n.IP("-6 route add default via 2001:db8::fe")
}

// Address is the node's address.
func (n *Node) Address() string { return fmt.Sprintf("192.0.2.%d", n.Number) }

// SubnetFile is the path of the node's subnet.env.
func (n *Node) SubnetFile() string { return filepath.Join(n.Dir, "subnet.env") }

// Process is a running program.
type Process struct {
	*child.Process
	t   *testing.T
	log *testwait.Log
}

// Start starts a program in the namespace, to the end of the test at most. If the test fails, it shows the program's output and result.
func (s *Space) Start(env []string, argv ...string) *Process {
	s.t.Helper()
	p := &Process{t: s.t, log: &testwait.Log{}}
	cmd := exec.Command(argv[0], argv[1:]...)
	cmd.Env = append(os.Environ(), env...)
	cmd.Stdout, cmd.Stderr = p.log, p.log
	var err error
	if p.Process, err = child.Start(cmd, s.Path()); err != nil {
		s.t.Fatal(err)
	}
	name := filepath.Base(argv[0])
	s.t.Cleanup(func() {
		state := "running"
		if ended, err := p.Ended(); ended {
			state = fmt.Sprintf("ended: %v", err)
		}
		p.Kill()
		if s.t.Failed() {
			s.t.Logf("%s in %s, %s:\n%s", name, s.Name, state, p.log)
		}
	})
	return p
}

// Stop signals the program to end, and waits for it.
func (p *Process) Stop() {
	p.t.Helper()
	p.Signal(syscall.SIGTERM)
	select {
	case <-p.Done():
	case <-time.After(patience):
		p.t.Fatal("the program does not end")
	}
}

// Ended reports whether the program has ended, and its error.
func (p *Process) Ended() (bool, error) {
	select {
	case <-p.Done():
		return true, p.Err()
	default:
		return false, nil
	}
}

// Log is what the program has printed.
func (p *Process) Log() string { return p.log.String() }

// connectPatience limits the wait for a TCP connection.
const connectPatience = 5 * time.Second

// Eventually waits until check returns nil.
func Eventually(t *testing.T, what string, check func() error) {
	t.Helper()
	testwait.Within(t, patience, what, check)
}

// Subnet waits for a key in the node's subnet.env, and returns its value.
func (n *Node) Subnet(key string) string {
	n.u.t.Helper()
	var value string
	Eventually(n.u.t, "subnet.env of "+n.Name, func() error {
		text, err := os.ReadFile(n.SubnetFile())
		if err != nil {
			return err
		}
		for line := range strings.Lines(string(text)) {
			if v, ok := strings.CutPrefix(strings.TrimSpace(line), key+"="); ok {
				value = v
				return nil
			}
		}
		return errors.New("no " + key)
	})
	return value
}

// Pod is a namespace with eth0 on the node's bridge cni0.
type Pod struct {
	*Space
	Address string
}

// Pod adds a pod to the node without a plugin, with an address of its subnet and the MTU of subnet.env.
func (n *Node) Pod() *Pod {
	t := n.u.t
	t.Helper()
	gateway, network, err := net.ParseCIDR(n.Subnet("FLANNEL_SUBNET"))
	if err != nil {
		t.Fatal(err)
	}
	ones, _ := network.Mask.Size()
	n.pods++
	mtu := n.Subnet("FLANNEL_MTU")
	address := gateway.To4()
	p := &Pod{Space: n.u.space(fmt.Sprintf("n%dp%d", n.Number, n.pods)), Address: fmt.Sprintf("%d.%d.%d.%d", address[0], address[1], address[2], address[3]+byte(n.pods))}
	if n.pods == 1 {
		n.IP("link add cni0 type bridge")
		n.IP(fmt.Sprintf("addr add %s/%d dev cni0", gateway, ones))
		n.IP("link set cni0 up")
	}
	n.IP(fmt.Sprintf("link add pod%d type veth peer name eth0 netns %s", n.pods, p.Name))
	n.IP(fmt.Sprintf("link set pod%d mtu %s master cni0 up", n.pods, mtu))
	p.IP(fmt.Sprintf("addr add %s/%d dev eth0", p.Address, ones))
	p.IP("link set eth0 mtu " + mtu + " up")
	p.IP("route add default via " + gateway.String())
	return p
}

// Ping checks that one pod reaches another.
func (p *Pod) Ping(t *testing.T, address string) {
	t.Helper()
	Eventually(t, p.Name+" reaches "+address, func() error {
		_, err := p.Run("ping", "-c1", "-W1", address)
		return err
	})
}

// Reach checks that one pod reaches another, with small packets and the largest ones that its interface allows.
func (p *Pod) Reach(t *testing.T, address string) {
	t.Helper()
	p.Ping(t, address)
	mtu := strings.Fields(p.IP("-o link show eth0"))
	for i, word := range mtu {
		if word != "mtu" {
			continue
		}
		size, err := strconv.Atoi(mtu[i+1])
		if err != nil {
			t.Fatal(err)
		}
		const headers = 28 // IPv4 and ICMP
		if _, err := p.Run("ping", "-c3", "-i0.01", "-W2", "-Mdo", "-s", strconv.Itoa(size-headers), address); err != nil {
			t.Errorf("packets of %d bytes: %v", size, err)
		}
	}
}

// Sandbox adds a namespace without an interface, for a CNI plugin.
func (n *Node) Sandbox(name string) *Space {
	n.u.t.Helper()
	return n.u.space(fmt.Sprintf("n%d-%s", n.Number, name))
}

// Stream is a flow of packets, 500 a second, that are answered.
type Stream struct {
	p    *Process
	from string
}

// Stream starts a flow to an address.
func (p *Pod) Stream(address string) *Stream {
	p.t.Helper()
	s := &Stream{p.Start(nil, "ping", "-i", "0.002", address), p.Name}
	return s
}

// answered returns how many packets of the flow have been answered so far.
func (s *Stream) answered() int { return strings.Count(s.p.Log(), reply) }

// reply is a part of ping's output for an answer that occurs in no other line.
const reply = " bytes from "

// answers parses ping's output. It returns the sequence number of the last answered packet, from 1, and the number of unanswered packets
// before it. ping prints only 16 bits of a sequence number.
func answers(log string) (last, lost int) {
	seen := map[int]struct{}{}
	for line := range strings.Lines(log) {
		_, after, found := strings.Cut(line, " icmp_seq=")
		if !found || !strings.Contains(line, reply) {
			continue
		}
		number, _, _ := strings.Cut(after, " ")
		low, err := strconv.ParseUint(number, 10, 16)
		if err != nil {
			continue
		}
		sequence := last + int(int16(uint16(low)-uint16(last))) //nolint:gosec // the distance modulo 2^16
		seen[sequence], last = struct{}{}, max(last, sequence)
	}
	return last, last - len(seen)
}

const (
	// streamed is the minimum number of packets of a flow: the control, and the check after the last change, need them.
	streamed = 100
	// underWay is how many of a flow's last packets may be unanswered when it ends: 100 ms of them.
	underWay = 50
)

// Stop ends the flow after streamed further packets, and fails the test if one was lost.
func (s *Stream) Stop(t *testing.T) {
	t.Helper()
	first := s.answered()
	Eventually(t, s.from+" sends", func() error {
		if more := s.answered() - first; more < streamed {
			return fmt.Errorf("%d packets answered", more)
		}
		return nil
	})
	s.p.Signal(syscall.SIGINT)
	<-s.p.Done()
	log := s.p.Log()
	var sent int
	for line := range strings.Lines(log) {
		if _, err := fmt.Sscanf(line, "%d packets transmitted", &sent); err == nil {
			break
		}
	}
	last, lost := answers(log)
	t.Logf("%s: sent %d, last answered %d, lost before %d", s.from, sent, last, lost)
	if sent < streamed || lost > 0 || sent-last > underWay {
		const end = 1000
		t.Errorf("%s: %d packets sent; the last answered is number %d, %d before it are not:\n%s", s.from, sent, last, lost, log[max(0, len(log)-end):])
	}
}
