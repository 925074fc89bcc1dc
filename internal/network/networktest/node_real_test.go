//go:build real

package networktest_test

import (
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
	"strings"
	"testing"
	"time"

	types100 "github.com/containernetworking/cni/pkg/types/100"
	"github.com/containernetworking/plugins/pkg/ns"
	"github.com/containernetworking/plugins/pkg/testutils"
	"github.com/vishvananda/netlink"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	networkv1 "weft.dev/weft/api/openshift/v1"
	"weft.dev/weft/internal/agent"
	"weft.dev/weft/internal/attach"
	"weft.dev/weft/internal/cni"
	"weft.dev/weft/internal/placement"
	"weft.dev/weft/internal/testwait"
)

const (
	patience = 90 * time.Second
	hostPort = 7001
)

// hostAddress is the node's own address.
func hostAddress() netip.Addr { return netip.MustParseAddr("192.0.2.1") }

// space creates a network namespace with a path; both are removed with the test.
func space(t *testing.T) ns.NetNS {
	t.Helper()
	made, err := testutils.NewNS()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = errors.Join(made.Close(), testutils.UnmountNS(made)) })
	return made
}

// hostSpace creates a node's own namespace: an uplink with its address, and a port that answers.
func hostSpace(t *testing.T) ns.NetNS {
	t.Helper()
	made := space(t)
	err := made.Do(func(ns.NetNS) error {
		lo, err := netlink.LinkByName("lo")
		if err != nil {
			return err
		}
		uplink := &netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: "up0"}, PeerName: "up1"}
		if err := errors.Join(netlink.LinkSetUp(lo), netlink.LinkAdd(uplink), netlink.LinkSetUp(uplink)); err != nil {
			return err
		}
		peer, err := netlink.LinkByName("up1")
		if err != nil {
			return err
		}
		if err := netlink.LinkSetUp(peer); err != nil {
			return err
		}
		return netlink.AddrAdd(uplink, &netlink.Addr{IPNet: &net.IPNet{IP: hostAddress().AsSlice(), Mask: net.CIDRMask(24, 32)}})
	})
	if err != nil {
		t.Fatal(err)
	}
	var listener net.Listener
	err = made.Do(func(ns.NetNS) (err error) {
		listener, err = net.Listen("tcp4", fmt.Sprintf("0.0.0.0:%d", hostPort))
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = listener.Close() })
	go func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			_ = conn.Close()
		}
	}()
	return made
}

const (
	// connects is how long a connection that must succeed may take: the kernel retransmits a lost SYN after 1 s, 3 s, 7 s and 15 s.
	connects = 30 * time.Second
	// unanswered is how long a connection is tried that must not succeed.
	unanswered = 500 * time.Millisecond
)

// reaches returns nil if the pod in a namespace connects to the node within the given time.
func reaches(pod ns.NetNS, to netip.Addr, within time.Duration) error {
	return pod.Do(func(ns.NetNS) error {
		conn, err := net.DialTimeout("tcp4", netip.AddrPortFrom(to, hostPort).String(), within)
		if err != nil {
			return err
		}
		return conn.Close()
	})
}

func eventually(t *testing.T, what string, condition func() error) {
	t.Helper()
	testwait.Within(t, patience, what, condition)
}

// machine is a node with an agent that runs as a separate program.
type machine struct {
	client.Client

	t         *testing.T
	name      string
	dir       string
	ovsRunDir string
	space     ns.NetNS
	proxy     string
	command   *exec.Cmd
	log       *testwait.Log
}

// newMachine creates a node whose agent does not run yet. ovsRunDir is the switch's directory; if it does not exist, the node has no
// switch.
func newMachine(t *testing.T, name string, host ns.NetNS, ovsRunDir string) *machine {
	t.Helper()
	scheme := runtime.NewScheme()
	if err := errors.Join(corev1.AddToScheme(scheme), networkv1.AddToScheme(scheme)); err != nil {
		t.Fatal(err)
	}
	c, err := client.New(server.Config(), client.Options{Scheme: scheme})
	if err != nil {
		t.Fatal(err)
	}
	dir, err := os.MkdirTemp("", "wtnode") // a unix socket's path has room for 107 bytes only
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	if err := os.Mkdir(filepath.Join(dir, "net.d"), 0o755); err != nil { //nolint:gosec // as a node has it
		t.Fatal(err)
	}
	m := &machine{Client: c, t: t, name: name, dir: dir, ovsRunDir: ovsRunDir, space: host, proxy: filepath.Join(dir, "api.sock")}
	m.serveAPI()
	m.create(&corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name}})
	m.create(&corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "default"}})
	t.Cleanup(m.kill)
	return m
}

// serveAPI forwards connections from the node to the API server, which is in another namespace.
func (m *machine) serveAPI() {
	m.t.Helper()
	listener, err := net.Listen("unix", m.proxy)
	if err != nil {
		m.t.Fatal(err)
	}
	m.t.Cleanup(func() { _ = listener.Close() })
	to := strings.TrimPrefix(server.Config().Host, "https://")
	go func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			go func() {
				defer func() { _ = conn.Close() }()
				api, err := net.Dial("tcp", to)
				if err != nil {
					return
				}
				defer func() { _ = api.Close() }()
				go func() { _, _ = io.Copy(api, conn); _ = api.Close() }()
				_, _ = io.Copy(conn, api)
			}()
		}
	}()
}

// start starts the agent.
func (m *machine) start() {
	m.t.Helper()
	config := server.Config()
	options, err := json.Marshal(agentOptions{
		Node: m.name, Dir: m.dir, OVSRunDir: m.ovsRunDir, Host: config.Host, Token: config.BearerToken, Proxy: m.proxy,
	})
	if err != nil {
		m.t.Fatal(err)
	}
	m.log = &testwait.Log{}
	m.command = exec.Command("nsenter", "--net="+m.space.Path(), os.Args[0]) //nolint:gosec // this program
	m.command.Env = append(os.Environ(), agentEnvironment+"="+string(options))
	m.command.Stdout, m.command.Stderr = m.log, m.log
	if err := m.command.Start(); err != nil {
		m.t.Fatal(err)
	}
}

// kill ends the agent at once, as a crash does.
func (m *machine) kill() {
	if m.command == nil {
		return
	}
	_ = m.command.Process.Kill()
	_ = m.command.Wait()
	if m.t.Failed() {
		m.t.Logf("the agent's log:\n%s", m.log)
	}
	m.command = nil
}

func (m *machine) create(object client.Object) {
	m.t.Helper()
	if err := m.Create(m.t.Context(), object); err != nil && !apierrors.IsAlreadyExists(err) {
		m.t.Fatal(err)
	}
	m.t.Cleanup(func() {
		_ = m.Delete(context.Background(), object, client.GracePeriodSeconds(0))
	})
}

// do sends a request to the agent.
func (m *machine) do(command cni.Command, pod string, netns string) (*types100.Result, error) {
	req := &cni.Request{
		Command: command, ContainerID: "c-" + pod, IfName: "eth0", Netns: netns,
		Args:   cni.Args{PodNamespace: "default", PodName: pod},
		Config: []byte(`{"cniVersion":"1.1.0","name":"weft","type":"weft"}`),
	}
	switch command {
	case cni.CommandStatus:
		req.ContainerID, req.IfName, req.Args = "", "", cni.Args{}
	case cni.CommandGC:
		req.ContainerID, req.IfName, req.Args = "", "", cni.Args{}
		req.Config = []byte(`{"cniVersion":"1.1.0","name":"weft","type":"weft","cni.dev/valid-attachments":[` + pod + `]}`)
	}
	ctx, cancel := context.WithTimeout(m.t.Context(), patience)
	defer cancel()
	return (&cni.Client{Socket: agent.Socket(filepath.Join(m.dir, "run"))}).Do(ctx, req)
}

// serves waits until the agent reports that pods can be attached.
func (m *machine) serves() {
	m.t.Helper()
	eventually(m.t, "STATUS", func() error {
		_, err := m.do(cni.CommandStatus, "", "")
		return err
	})
}

// pod creates a pod's object and its namespace. The pod is bound to a network; "" binds it to none.
func (m *machine) pod(name, network string) ns.NetNS {
	m.t.Helper()
	pod := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name},
		Spec: corev1.PodSpec{
			NodeName: m.name, AutomountServiceAccountToken: new(bool), Containers: []corev1.Container{{Name: "c", Image: "none"}},
		},
	}
	if network != "" {
		pod.Annotations = map[string]string{placement.AnnotationNetwork: network}
	}
	m.create(pod)
	return space(m.t)
}

func (m *machine) add(name string, pod ns.NetNS) {
	m.t.Helper()
	eventually(m.t, "ADD of "+name, func() error { // a new network may not be ready yet
		_, err := m.do(cni.CommandAdd, name, pod.Path())
		return err
	})
}

// refused sends an ADD that must be refused with these words.
func (m *machine) refused(name string, pod ns.NetNS, words ...string) {
	m.t.Helper()
	_, err := m.do(cni.CommandAdd, name, pod.Path())
	failure := cni.AsError(err)
	if failure == nil || failure.Code != cni.CodeRefused {
		m.t.Fatalf("ADD of %s: %v", name, err)
	}
	for _, part := range words {
		if !strings.Contains(failure.Error(), part) {
			m.t.Errorf("ADD of %s: %q lacks %q", name, failure, part)
		}
	}
}

// networks returns the network of each pod, from the records.
func (m *machine) networks() map[string]string {
	m.t.Helper()
	store, err := attach.Look(filepath.Join(m.dir, "state", "attachments"))
	if err != nil {
		m.t.Fatal(err)
	}
	have := map[string]string{}
	for _, rec := range store.List() {
		have[rec.PodName] = rec.Network
	}
	return have
}

// run runs a program in the node's namespace.
func (m *machine) run(name string, args ...string) string {
	m.t.Helper()
	var out []byte
	err := m.space.Do(func(ns.NetNS) (err error) {
		out, err = exec.Command(name, args...).CombinedOutput() //nolint:gosec // a test's own words
		return err
	})
	if err != nil {
		return "error: " + err.Error() + ": " + string(out)
	}
	return string(out)
}
