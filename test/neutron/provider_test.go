//go:build lab

package neutron

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/protobuf/encoding/protowire"

	"github.com/gophercloud/gophercloud/v2/openstack/networking/v2/extensions/external"
	"github.com/gophercloud/gophercloud/v2/openstack/networking/v2/networks"
	"github.com/gophercloud/gophercloud/v2/openstack/networking/v2/ports"
	"github.com/gophercloud/gophercloud/v2/openstack/networking/v2/subnets"

	"weft.dev/weft/internal/neutron/openstack"
	"weft.dev/weft/lab/ground"
	"weft.dev/weft/lab/process"
	weftlab "weft.dev/weft/lab/stack/openstack"
)

// providerAddress is KubeStack's port.
const providerAddress = "127.0.0.1:4237"

// externalNetwork returns the lab's network of floating IPs.
func externalNetwork(ctx context.Context, t *testing.T, client *openstack.Client) string {
	t.Helper()
	outside := true
	pages, err := networks.List(client.Network, external.ListOptsExt{ListOptsBuilder: networks.ListOpts{}, External: &outside}).AllPages(ctx)
	if err != nil {
		t.Fatal(err)
	}
	found, err := networks.ExtractNetworks(pages)
	if err != nil || len(found) != 1 {
		t.Fatalf("external networks: %+v: %v", found, err)
	}
	return found[0].ID
}

// host is a node with a provider and pods.
type host struct {
	node *weftlab.Node
	conn *grpc.ClientConn
	pids map[string]int // processes of sandboxes, as Docker's API tells them
	log  string         // the provider's, a file
}

// said returns the provider's log.
func (h *host) said(t *testing.T) string {
	t.Helper()
	said, err := os.ReadFile(h.log)
	if err != nil {
		t.Error(err)
	}
	return string(said)
}

// weft is the program that is tested.
func weft(t *testing.T) string {
	t.Helper()
	path := filepath.Join(cloudFor.bin, "weft")
	if _, err := os.Stat(path); err != nil {
		t.Fatal(err)
	}
	return path
}

// startHost runs `weft provider` on a node, with a Docker API beside it that knows the test's pods.
func startHost(ctx context.Context, t *testing.T, node *weftlab.Node, ext string) *host {
	t.Helper()
	h := &host{node: node, pids: map[string]int{}}
	config := filepath.Join(node.RunDir, "kubestack.conf")
	text := fmt.Sprintf("[Global]\nauth-url = %s\nusername = %s\npassword = %s\ntenant-name = %s\nregion = %s\next-net-id = %s\n"+
		"keystone-version = 2\n\n[LoadBalancer]\ncreate-monitor = no\nlb-provider = ovn\n\n[Plugin]\nplugin-name = ovs\n",
		strings.Replace(cloudFor.stack.AuthURL(), "/v3", "/v2.0", 1), weftlab.Admin, weftlab.AdminPassword, weftlab.Admin, weftlab.Region, ext)
	if err := os.WriteFile(config, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	h.docker(t)
	name := node.Name + "/provider"
	log := t.TempDir()
	h.log = filepath.Join(log, name+".log")
	group := process.NewGroup(log, log)
	t.Cleanup(func() {
		group.Stop(20*time.Second, func(string) bool { return true })
		said := h.said(t)
		if !strings.Contains(said, "provider serves") || holdsSecret(said) {
			t.Errorf("a password or a token is in the provider's log, or the log (%d bytes) is not the provider's", len(said))
		}
		if t.Failed() {
			t.Logf("provider on %s:\n%s", node.Name, said)
		}
	})
	err := group.Start(ctx, process.Program{
		Name: name,
		Argv: node.Space.Enter(weft(t), "provider", "--config", "/run/kubestack.conf", "--host", node.Name, "--records", "/run/weft-provider",
			"--ovsdb", "unix:/run/openvswitch/db.sock", "--docker-socket", "/run/docker.sock", "--listen", providerAddress),
		Ready: func(ctx context.Context) error {
			c, err := node.Space.Dial(ctx, "tcp", providerAddress)
			if err != nil {
				return err
			}
			return c.Close()
		},
	})
	if err != nil {
		t.Fatal(err)
	}
	h.conn, err = grpc.NewClient("passthrough:///"+providerAddress, grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithContextDialer(func(ctx context.Context, addr string) (net.Conn, error) { return node.Space.Dial(ctx, "tcp", addr) }))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = h.conn.Close() })
	return h
}

// docker serves the one request of Docker's API that the provider makes, about processes that really run.
func (h *host) docker(t *testing.T) {
	t.Helper()
	path := filepath.Join(h.node.RunDir, "docker.sock")
	_ = os.Remove(path)
	in, err := net.Listen("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	server := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		id := strings.TrimSuffix(strings.TrimPrefix(r.URL.Path, "/containers/"), "/json")
		pid, ok := h.pids[id]
		if !ok {
			http.NotFound(w, r)
			return
		}
		_ = json.NewEncoder(w).Encode(map[string]any{"Id": id, "State": map[string]any{"Pid": pid}})
	})}
	go func() { _ = server.Serve(in) }()
	t.Cleanup(func() { _ = server.Close() })
}

// call sends a message that was encoded by hand and decodes the answer by hand.
func (h *host) call(ctx context.Context, t *testing.T, method string, m message) decoded {
	t.Helper()
	in, out := m.encode(), []byte(nil)
	if err := h.conn.Invoke(ctx, "/types."+method, &in, &out, grpc.ForceCodec(raw{})); err != nil {
		t.Fatalf("%s: %v", method, err)
	}
	if holdsSecret(string(out)) { // also in the text of an error
		t.Errorf("%s: a password or a token is in the answer: %q", method, out)
	}
	answer, err := decode(out)
	if err != nil {
		t.Fatalf("%s: %v", method, err)
	}
	return answer
}

// must is call for methods whose answer's field number errorField is the error.
func (h *host) must(ctx context.Context, t *testing.T, method string, errorField int, m message) decoded {
	t.Helper()
	answer := h.call(ctx, t, method, m)
	if said := answer.text(protowire.Number(errorField)); said != "" {
		t.Fatalf("%s: %s", method, said)
	}
	return answer
}

// sandbox starts a process with a network namespace of its own, as a container runtime's pause container.
func (h *host) sandbox(ctx context.Context, t *testing.T, id string) ground.Space {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	group := process.NewGroup(dir, dir)
	t.Cleanup(func() { group.Stop(time.Second, func(string) bool { return true }) })
	space, err := ground.NewSpace(ctx, group, self, h.node.Name+"-"+id, ground.Hold{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.Remove(filepath.Join(ground.NetnsDir, space.Name)) })
	h.pids[id] = space.Pid
	return space
}

// pod is a request about a pod: Setup, Teardown and PodStatus have the same fields.
func podMessage(name, sandbox, network string) message {
	return message{{1, name}, {2, "red"}, {3, "docker"}, {4, sandbox}, {5, message{{2, network}}}}
}

// ping sends from a namespace, again and again until an answer comes or the context ends.
func ping(ctx context.Context, t *testing.T, from ground.Space, to string) {
	t.Helper()
	for {
		out, err := cloudFor.group.Run(ctx, "", from.Enter("ping", "-n", "-c", "1", "-W", "1", to)...)
		if err == nil {
			return
		}
		if ctx.Err() != nil {
			t.Fatalf("ping %s: %v %s", to, err, out)
		}
	}
}

// serve answers HTTP in a namespace with a text of its own.
func serve(t *testing.T, in ground.Space, port int, text string) {
	t.Helper()
	var l net.Listener
	err := ground.Do(in.NetPath(), func() (err error) {
		l, err = net.Listen("tcp", ":"+strconv.Itoa(port))
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	server := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, text) })}
	go func() { _ = server.Serve(l) }()
	t.Cleanup(func() { _ = server.Close() })
}

// get asks from a namespace until every wanted answer has come.
func get(ctx context.Context, t *testing.T, from ground.Space, address string, want ...string) {
	t.Helper()
	client := http.Client{Timeout: 3 * time.Second, Transport: &http.Transport{DisableKeepAlives: true, DialContext: from.Dial}}
	missing := map[string]bool{}
	for _, w := range want {
		missing[w] = true
	}
	var last error
	for len(missing) > 0 {
		if ctx.Err() != nil {
			t.Fatalf("http://%s: no answer of %v (last error: %v)", address, missing, last)
		}
		req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+address, nil)
		if err != nil {
			t.Fatal(err)
		}
		res, err := client.Do(req)
		if err != nil {
			last = err
			continue
		}
		body, _ := io.ReadAll(res.Body)
		_ = res.Body.Close()
		delete(missing, string(body))
	}
}

// All thirteen methods, by messages encoded by hand from the field table, with packets: a network, a pod on each of two
// nodes, a load balancer with two ports and a floating IP, and nothing left behind.
func TestProvider(t *testing.T) {
	ctx, client := connect(t)
	tenant := project(ctx, t, client, "weft-test-provider")
	ext := externalNetwork(ctx, t, client)
	hosts := []*host{startHost(ctx, t, cloudFor.nodes[0], ext), startHost(ctx, t, cloudFor.nodes[1], ext)}
	h := hosts[0]

	if h.must(ctx, t, "Networks/Active", 2, nil).number(1) != 1 {
		t.Error("Active does not answer true")
	}
	for who, want := range map[string]uint64{tenant: 1, "weft-test-provider": 1, "nonesuch": 0} {
		if got := h.must(ctx, t, "Networks/CheckTenantID", 2, message{{1, who}}).number(1); got != want {
			t.Errorf("CheckTenantID %q: %d", who, got)
		}
	}
	if said := h.call(ctx, t, "Networks/GetNetwork", message{{1, "kube-red"}}).text(2); said != "NotFound" {
		t.Errorf("a network that is not there: %q", said)
	}
	network := createNetwork(ctx, t, h, "weft-test-provider", tenant)
	updateNetwork(ctx, t, h, client, network)

	var spaces []ground.Space
	var ips []string
	for i, h := range hosts {
		id := fmt.Sprintf("sandbox%d", i)
		name := fmt.Sprintf("web-%d", i)
		spaces = append(spaces, h.sandbox(ctx, t, id))
		h.must(ctx, t, "Pods/SetupPod", 1, podMessage(name, id, network.id))
		ip := h.must(ctx, t, "Pods/PodStatus", 2, podMessage(name, id, network.id)).text(1)
		if !strings.HasPrefix(ip, "10.244.") {
			t.Fatalf("pod %d has address %q", i, ip)
		}
		ips = append(ips, ip)
		serve(t, spaces[i], 8080, name)
	}
	ping(ctx, t, spaces[0], ips[1])
	get(ctx, t, spaces[1], ips[0]+":8080", "web-0")
	// Setting a pod up again changes nothing and is no error.
	h.must(ctx, t, "Pods/SetupPod", 1, podMessage("web-0", "sandbox0", network.id))
	get(ctx, t, spaces[1], ips[0]+":8080", "web-0")
	// A late teardown of an earlier sandbox leaves the pod connected.
	h.must(ctx, t, "Pods/TeardownPod", 1, podMessage("web-0", "an-earlier-one", network.id))
	get(ctx, t, spaces[1], ips[0]+":8080", "web-0")

	balance(ctx, t, h, network, balanced{ips: ips, client: spaces[1]})

	// A pod that comes up on another node keeps its port, bound there; the first node's teardown leaves it alone.
	moved := hosts[1].sandbox(ctx, t, "moved")
	hosts[1].must(ctx, t, "Pods/SetupPod", 1, podMessage("web-0", "moved", network.id))
	h.must(ctx, t, "Pods/TeardownPod", 1, podMessage("web-0", "sandbox0", network.id))
	noDevices(t, h)
	if ip := h.must(ctx, t, "Pods/PodStatus", 2, podMessage("web-0", "", network.id)).text(1); ip != ips[0] {
		t.Errorf("the pod that moved had %s and has %q", ips[0], ip)
	}
	ping(ctx, t, moved, ips[1])
	hosts[1].must(ctx, t, "Pods/TeardownPod", 1, podMessage("web-0", "moved", network.id))

	for i, h := range hosts {
		for range 2 { // the second finds nothing and succeeds
			h.must(ctx, t, "Pods/TeardownPod", 1, podMessage(fmt.Sprintf("web-%d", i), fmt.Sprintf("sandbox%d", i), network.id))
		}
		noDevices(t, h)
	}
	h.must(ctx, t, "Networks/DeleteNetwork", 1, message{{1, "kube-red"}})
	if said := h.call(ctx, t, "Networks/DeleteNetwork", message{{1, "kube-red"}}).text(1); said != "NotFound" {
		t.Errorf("deleting the network twice: %q", said)
	}
	left, err := ports.List(client.Network, ports.ListOpts{ProjectID: tenant}).AllPages(ctx)
	if err != nil {
		t.Fatal(err)
	}
	if rest, err := ports.ExtractPorts(left); err != nil || len(rest) > 0 {
		t.Errorf("ports of the project after all was deleted: %+v %v", rest, err)
	}
	removeGroups(ctx, t, client, tenant)
}

type madeNetwork struct{ id, subnet, tenant string }

func createNetwork(ctx context.Context, t *testing.T, h *host, tenantName, tenant string) madeNetwork {
	t.Helper()
	h.must(ctx, t, "Networks/CreateNetwork", 1, message{{1, networkMessage(tenantName, field{6, "192.0.2.53"})}})
	got, err := decode([]byte(h.must(ctx, t, "Networks/GetNetwork", 2, message{{1, "kube-red"}}).text(1)))
	if err != nil {
		t.Fatal(err)
	}
	subnet, err := decode([]byte(got.text(5)))
	if err != nil {
		t.Fatal(err)
	}
	if got.text(1) != "kube-red" || got.text(3) != tenant || got.text(6) != "Active" || len(got[5]) != 1 ||
		subnet.text(1) != "kube-red-subnet" || subnet.text(3) != "10.244.0.0/24" || subnet.text(4) != "10.244.0.1" ||
		subnet.text(5) != tenant || subnet.text(6) != "192.0.2.53" {
		t.Fatalf("GetNetwork: %v, subnet %v", got, subnet)
	}
	byID, err := decode([]byte(h.must(ctx, t, "Networks/GetNetwork", 2, message{{1, "ignored"}, {2, got.text(2)}}).text(1)))
	if err != nil || byID.text(1) != "kube-red" {
		t.Errorf("GetNetwork by id: %v %v", byID, err)
	}
	return madeNetwork{id: got.text(2), subnet: subnet.text(2), tenant: tenant}
}

// networkMessage is a network with one subnet; more are further fields of the subnet.
func networkMessage(tenant string, more ...field) message {
	subnet := append(message{{1, "kube-red-subnet"}, {3, "10.244.0.0/24"}, {4, "10.244.0.1"}}, more...)
	return message{{1, "kube-red"}, {3, tenant}, {4, int32(7)}, {5, subnet}}
}

// updateNetwork changes a network's name servers and routes, and reads them from Neutron.
func updateNetwork(ctx context.Context, t *testing.T, h *host, client *openstack.Client, network madeNetwork) {
	t.Helper()
	changed := networkMessage(network.tenant, field{6, "192.0.2.54"}, field{6, "192.0.2.55"}, field{7, message{{2, "10.244.0.200"}, {3, "198.51.100.0/24"}}})
	h.must(ctx, t, "Networks/UpdateNetwork", 1, message{{1, changed}})
	held, err := subnets.Get(ctx, client.Network, network.subnet).Extract()
	if err != nil {
		t.Fatal(err)
	}
	if !slices.Equal(held.DNSNameservers, []string{"192.0.2.54", "192.0.2.55"}) ||
		!slices.Equal(held.HostRoutes, []subnets.HostRoute{{DestinationCIDR: "198.51.100.0/24", NextHop: "10.244.0.200"}}) ||
		held.CIDR != "10.244.0.0/24" || held.GatewayIP != "10.244.0.1" {
		t.Errorf("after UpdateNetwork, Neutron has %+v", held)
	}
	fixed := networkMessage(network.tenant)
	fixed[3].value = message{{1, "kube-red-subnet"}, {3, "10.244.1.0/24"}}
	if said := h.call(ctx, t, "Networks/UpdateNetwork", message{{1, fixed}}).text(1); !strings.Contains(said, "cidr is 10.244.0.0/24") {
		t.Errorf("UpdateNetwork with another range: %q", said)
	}
}

// balanced are the pods behind a load balancer, and one that asks it.
type balanced struct {
	ips    []string
	client ground.Space
}

func hostPort(ip string, service int32) message {
	return message{{2, ip}, {3, service}, {4, int32(8080)}}
}

func balance(ctx context.Context, t *testing.T, h *host, n madeNetwork, pods balanced) {
	t.Helper()
	const floating = "192.168.100.150"
	lb := message{
		{1, "red_web"},
		{4, "TCP"},
		{6, n.tenant},
		{7, floating},
		{8, message{{2, n.subnet}}},
		{9, hostPort(pods.ips[0], 80)},
		{9, hostPort(pods.ips[1], 80)},
		{9, hostPort(pods.ips[1], 81)},
	}
	if said := h.call(ctx, t, "LoadBalancers/CreateLoadBalancer", message{{1, lb}}).text(2); !strings.Contains(said, "affinity") {
		t.Errorf("an empty affinity: %q", said)
	}
	vip := h.must(ctx, t, "LoadBalancers/CreateLoadBalancer", 2, message{{1, lb}, {2, "None"}}).text(1)
	get(ctx, t, pods.client, vip+":81", "web-1")
	get(ctx, t, cloudFor.lab.External.Space, floating+":80", "web-0", "web-1")
	got, err := decode([]byte(h.must(ctx, t, "LoadBalancers/GetLoadBalancer", 2, message{{1, "red_web"}}).text(1)))
	if err != nil || got.text(1) != "red_web" || got.text(3) != vip || got.text(4) != "TCP" || got.text(5) != "Active" || len(got[9]) != 3 {
		t.Errorf("GetLoadBalancer: %v %v", got, err)
	}
	again := h.must(ctx, t, "LoadBalancers/UpdateLoadBalancer", 2, message{{1, "red_web"}, {3, hostPort(pods.ips[0], 81)}}).text(1)
	if again != vip {
		t.Errorf("the virtual address was %s and is %s", vip, again)
	}
	get(ctx, t, pods.client, vip+":81", "web-0")
	h.must(ctx, t, "LoadBalancers/DeleteLoadBalancer", 1, message{{1, "red_web"}})
	if said := h.call(ctx, t, "LoadBalancers/GetLoadBalancer", message{{1, "red_web"}}).text(2); said != "NotFound" {
		t.Errorf("the load balancer after its deletion: %q", said)
	}
}

// noDevices checks that a node has no device of a pod and no row of one.
func noDevices(t *testing.T, h *host) {
	t.Helper()
	handle, err := h.node.Space.Handle()
	if err != nil {
		t.Fatal(err)
	}
	defer handle.Close()
	links, err := handle.LinkList()
	if err != nil {
		t.Fatal(err)
	}
	for _, l := range links {
		for _, prefix := range []string{"tap", "qbr", "qvb", "qvo"} {
			if strings.HasPrefix(l.Attrs().Name, prefix) {
				t.Errorf("%s is left on %s", l.Attrs().Name, h.node.Name)
			}
		}
	}
	rows, err := cloudFor.group.Run(t.Context(), "", h.node.Space.Enter("ovs-vsctl", "list-ports", weftlab.Integration)...)
	if err != nil || strings.Contains(rows, "qvo") {
		t.Errorf("ports of %s on %s: %s %v", weftlab.Integration, h.node.Name, rows, err)
	}
}

// Callers that are not root are refused on loopback, with their uid in the log; a socket that other machines reach needs mutual TLS.
func TestProviderCallers(t *testing.T) {
	ctx, _ := connect(t)
	h := startHost(ctx, t, cloudFor.nodes[0], "")
	// call begins a connection of HTTP/2 as a user. A provider that serves it sends its settings at once.
	call := func(uid string) (string, error) {
		out, err := cloudFor.group.Run(ctx, "", h.node.Space.Enter("setpriv", "--reuid="+uid, "--clear-groups", "bash", "-c",
			"trap '' PIPE; exec 3<>/dev/tcp/127.0.0.1/4237; echo connected; printf 'PRI * HTTP/2.0\\r\\n\\r\\nSM\\r\\n\\r\\n' >&3; head -c 1 <&3 | wc -c")...)
		return strings.Join(strings.Fields(out), ", "), err
	}
	for uid, want := range map[string]string{"0": "connected, 1", "65534": "connected, 0"} {
		if got, err := call(uid); err != nil || got != want {
			t.Errorf("uid %s: %q, want %q: %v", uid, got, want, err)
		}
	}
	refused := 0
	for line := range strings.Lines(h.said(t)) {
		if strings.Contains(line, "caller refused") && strings.Contains(line, "error=<nil>") { // not the one that only looked for the socket
			refused++
			if !strings.Contains(line, "uid=65534") || !strings.Contains(line, "127.0.0.1:") {
				t.Errorf("the provider's log says: %s", line)
			}
		}
	}
	if refused != 1 {
		t.Errorf("the provider's log says %d times that a caller was refused, want once", refused)
	}
	_, err := cloudFor.group.Run(ctx, "", h.node.Space.Enter(weft(t), "provider", "--config", "/run/kubestack.conf", "--listen", ":4238",
		"--ovsdb", "unix:/run/openvswitch/db.sock", "--records", "/run/weft-provider-2")...)
	if err == nil || !strings.Contains(err.Error(), "mutual TLS") {
		t.Errorf("listening on all addresses without TLS: %v", err)
	}
	if errors.Is(ctx.Err(), context.DeadlineExceeded) {
		t.Error(ctx.Err())
	}
}
