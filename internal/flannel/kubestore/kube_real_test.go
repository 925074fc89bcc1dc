//go:build real

package kubestore_test

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/client-go/tools/clientcmd/api"

	"weft.dev/weft/internal/apiservertest"
	"weft.dev/weft/internal/flannel/flanneltest"
)

var (
	server *apiservertest.Server //nolint:gochecknoglobals // set once, by TestMain
	binary string                //nolint:gochecknoglobals // set once, by TestMain
)

func TestMain(m *testing.M) {
	code := apiservertest.Main(m, func(s *apiservertest.Server) error {
		server = s
		bin, err := os.MkdirTemp("", "weft-flannel-")
		if err != nil {
			return err
		}
		binary = filepath.Join(bin, "weft")
		return flanneltest.Build(bin, "weft")
	})
	if binary != "" {
		code = max(code, removed(filepath.Dir(binary)))
	}
	os.Exit(code)
}

func removed(dir string) int {
	if err := os.RemoveAll(dir); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return 0
}

const (
	dual   = `{"Network":"10.5.0.0/16","EnableIPv6":true,"IPv6Network":"fd00:5::/48","EnableNFTables":true,"Backend":{"Type":"vxlan"}}`
	prefix = "flannel.alpha.coreos.com/"
)

// cluster is an underlay whose nodes reach the API server at 192.0.2.254:6443.
type cluster struct {
	*flanneltest.Underlay
	t          *testing.T
	client     *kubernetes.Clientset
	kubeconfig string
	config     string
	weft       string
}

func newCluster(t *testing.T, config string) *cluster {
	t.Helper()
	rest := server.Config()
	client, err := kubernetes.NewForConfig(rest)
	if err != nil {
		t.Fatal(err)
	}
	c := &cluster{Underlay: flanneltest.NewUnderlay(t), t: t, client: client, weft: binary}
	address, err := url.Parse(rest.Host)
	if err != nil {
		t.Fatal(err)
	}
	c.Forward("192.0.2.254:6443", address.Host)
	written := api.NewConfig()
	written.Clusters["c"] = &api.Cluster{Server: "https://192.0.2.254:6443", CertificateAuthorityData: rest.CAData, TLSServerName: address.Hostname(), InsecureSkipTLSVerify: rest.Insecure}
	written.AuthInfos["u"] = &api.AuthInfo{Token: rest.BearerToken}
	written.Contexts["x"] = &api.Context{Cluster: "c", AuthInfo: "u"}
	written.CurrentContext = "x"
	dir := t.TempDir()
	c.kubeconfig, c.config = filepath.Join(dir, "kubeconfig"), filepath.Join(dir, "net-conf.json")
	if err := errors.Join(clientcmd.WriteToFile(*written, c.kubeconfig), os.WriteFile(c.config, []byte(config), 0o600)); err != nil {
		t.Fatal(err)
	}
	return c
}

// create creates a Node object.
func (c *cluster) create(name string, annotations map[string]string, cidrs ...string) {
	c.t.Helper()
	node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name, Annotations: annotations}, Spec: corev1.NodeSpec{PodCIDRs: cidrs}}
	if len(cidrs) > 0 {
		node.Spec.PodCIDR = cidrs[0]
	}
	if _, err := c.client.CoreV1().Nodes().Create(c.t.Context(), node, metav1.CreateOptions{}); err != nil {
		c.t.Fatal(err)
	}
	c.t.Cleanup(func() { c.remove(name) })
}

func (c *cluster) remove(name string) {
	_ = c.client.CoreV1().Nodes().Delete(context.WithoutCancel(c.t.Context()), name, metav1.DeleteOptions{}) // it may not exist
}

func (c *cluster) get(name string) *corev1.Node {
	c.t.Helper()
	node, err := c.client.CoreV1().Nodes().Get(c.t.Context(), name, metav1.GetOptions{})
	if err != nil {
		c.t.Fatal(err)
	}
	return node
}

func (c *cluster) patch(name, patch string) {
	c.t.Helper()
	if _, err := c.client.CoreV1().Nodes().Patch(c.t.Context(), name, types.MergePatchType, []byte(patch), metav1.PatchOptions{}); err != nil {
		c.t.Fatal(err)
	}
}

func (c *cluster) start(n *flanneltest.Node, name, program string, args ...string) *flanneltest.Process {
	argv := append(strings.Fields(program), "--kube-subnet-mgr", "--kubeconfig-file="+c.kubeconfig, "--net-config-path="+c.config,
		"--subnet-file="+n.SubnetFile(), "--iface=eth0", "--ip-masq", "--healthz-port=8081")
	return n.Start([]string{"NODE_NAME=" + name}, append(argv, args...)...)
}

func (c *cluster) startWeft(n *flanneltest.Node, name string) *flanneltest.Process {
	return c.start(n, name, c.weft+" flanneld", "--v=2")
}

func shows(t *testing.T, n *flanneltest.Node, args, want string, present bool) {
	t.Helper()
	flanneltest.Eventually(t, fmt.Sprintf("ip %s has %q: %t", args, want, present), func() error {
		out, err := n.Run(append([]string{strings.Fields(args)[0]}, strings.Fields(args)[1:]...)...)
		if err != nil {
			return err
		}
		if strings.Contains(out, want) != present {
			return errors.New(out)
		}
		return nil
	})
}

// TestMixedNodes: dual stack, with flanneld on the other node; checks what Weft's daemon writes, keeps and follows.
func TestMixedNodes(t *testing.T) {
	c := newCluster(t, dual)
	n1, n2 := c.Node(), c.Node()
	c.create("n1", map[string]string{"example.com/kept": "yes"}, "10.5.1.0/24", "fd00:5:0:1::/64")
	c.create("n2", map[string]string{"example.com/kept": "yes"}, "10.5.2.0/24", "fd00:5:0:2::/64")
	ours := c.startWeft(n1, "n1")
	c.start(n2, "n2", flanneltest.Flanneld(t))
	p1, p2 := n1.Pod(), n2.Pod()
	p1.Reach(t, p2.Address)
	p2.Ping(t, p1.Address) // flanneld's pods have an MTU of 1450, of which 1430 bytes fit into an IPv6 tunnel
	shows(t, n1, "ip -6 route show fd00:5:0:2::/64", "via fd00:5:0:2:: dev flannel-v6.1", true)
	shows(t, n2, "ip -6 route show fd00:5:0:1::/64", "via fd00:5:0:1:: dev flannel-v6.1", true)
	flanneltest.Eventually(t, "flanneld's end of the IPv6 tunnel answers, once the kernel has found its address to be unique", func() error {
		_, err := n1.Run("ping", "-6", "-c1", "-W1", "fd00:5:0:2::")
		return err
	})
	own := c.get("n1")
	for key, want := range map[string]string{
		prefix + "kube-subnet-manager": "true", prefix + "backend-type": "vxlan", prefix + "public-ip": n1.Address(), prefix + "public-ipv6": "2001:db8::1",
		"example.com/kept": "yes",
	} {
		if own.Annotations[key] != want {
			t.Errorf("annotation %s is %q, want %q", key, own.Annotations[key], want)
		}
	}
	flanneltest.Eventually(t, "condition", func() error {
		for _, condition := range c.get("n1").Status.Conditions {
			if condition.Type == corev1.NodeNetworkUnavailable && condition.Status == corev1.ConditionFalse && condition.Reason == "FlannelIsUp" {
				return nil
			}
		}
		return errors.New("not set")
	})
	if out, err := n1.Run("curl", "-sf", "http://127.0.0.1:8081/readyz"); err != nil || out != "flanneld is ready" {
		t.Errorf("%q, %v", out, err)
	}
	env, err := os.ReadFile(n1.SubnetFile())
	if want := "FLANNEL_NETWORK=10.5.0.0/16\nFLANNEL_SUBNET=10.5.1.1/24\nFLANNEL_IPV6_NETWORK=fd00:5::/48\nFLANNEL_IPV6_SUBNET=fd00:5:0:1::1/64\nFLANNEL_MTU=1430\nFLANNEL_IPMASQ=true\n"; err != nil || string(env) != want {
		t.Errorf("subnet.env:\n%s%v", env, err)
	}
	ours.Stop()
	n1.IP("link del flannel.1")
	c.startWeft(n1, "n1") // with the MAC addresses of the annotations
	p1.Reach(t, p2.Address)
	if again := c.get("n1"); again.Annotations[prefix+"backend-data"] != own.Annotations[prefix+"backend-data"] {
		t.Errorf("backend-data was %s, is %s", own.Annotations[prefix+"backend-data"], again.Annotations[prefix+"backend-data"])
	}
}

// TestFollows: a peer that changes in one family, gets another MAC address, is deleted and created again with other subnets. flanneld
// misses the first change and leaves entries of the others.
func TestFollows(t *testing.T) {
	c := newCluster(t, dual)
	n1 := c.Node()
	c.create("n1", nil, "10.5.1.0/24", "fd00:5:0:1::/64")
	p := c.startWeft(n1, "n1")
	peer := func(public, mac string) map[string]string {
		return map[string]string{
			prefix + "kube-subnet-manager": "true", prefix + "backend-type": "vxlan", prefix + "public-ip": public, prefix + "public-ipv6": "2001:db8::9",
			prefix + "backend-data": `{"VNI":1,"VtepMAC":"` + mac + `"}`, prefix + "backend-v6-data": `{"VNI":1,"VtepMAC":"02:00:00:00:06:09"}`,
		}
	}
	c.create("n9", peer("192.0.2.9", "02:00:00:00:00:09"), "10.5.9.0/24", "fd00:5:0:9::/64")
	shows(t, n1, "bridge fdb show dev flannel.1", "02:00:00:00:00:09 dst 192.0.2.9", true)
	c.patch("n9", `{"metadata":{"annotations":{"`+prefix+`public-ip":"192.0.2.19"}}}`)
	shows(t, n1, "bridge fdb show dev flannel.1", "02:00:00:00:00:09 dst 192.0.2.19", true)
	c.patch("n9", `{"metadata":{"annotations":{"`+prefix+`backend-data":"{\"VNI\":1,\"VtepMAC\":\"02:00:00:00:00:99\"}"}}}`)
	shows(t, n1, "bridge fdb show dev flannel.1", "02:00:00:00:00:99", true)
	shows(t, n1, "bridge fdb show dev flannel.1", "02:00:00:00:00:09", false)
	c.patch("n9", `{"metadata":{"annotations":{"`+prefix+`backend-data":"{\"VNI\":1,\"VtepMAC\":\"01:00:00:00:00:99\"}"}}}`)
	shows(t, n1, "ip route show 10.5.9.0/24", "flannel.1", false)
	shows(t, n1, "ip -6 route show fd00:5:0:9::/64", "flannel-v6.1", true) // only the invalid family is left out
	if !strings.Contains(p.Log(), "VtepMAC 01:00:00:00:00:99 is not a unicast address") {
		t.Error("the invalid annotation is not reported")
	}
	c.remove("n9")
	shows(t, n1, "ip -6 route", "fd00:5:0:9::", false)
	c.create("n9", peer("192.0.2.9", "02:00:00:00:00:09"), "10.5.90.0/24", "fd00:5:0:90::/64")
	shows(t, n1, "ip route show 10.5.90.0/24", "flannel.1", true)
	shows(t, n1, "ip route show 10.5.9.0/24", "flannel.1", false)
}

// TestOwnNode: a node waits for its podCIDRs, writes an overwritten address, and restarts its generation when it gets other podCIDRs.
func TestOwnNode(t *testing.T) {
	c := newCluster(t, `{"Network":"10.5.0.0/16","Backend":{"Type":"vxlan"}}`)
	n1 := c.Node()
	c.create("n1", map[string]string{prefix + "public-ip-overwrite": "198.51.100.7"})
	p := c.startWeft(n1, "n1")
	flanneltest.Eventually(t, "the reason is reported", func() error {
		if !strings.Contains(p.Log(), "node n1 has no podCIDR of IPv4: run kube-controller-manager with --allocate-node-cidrs") {
			return errors.New(p.Log())
		}
		return nil
	})
	for path, want := range map[string][]string{"readyz": {"flanneld is not ready: waiting for a subnet", "503"}, "healthz": {"flanneld is running", "200"}} {
		out, err := n1.Run("curl", "-s", "-w", " %{http_code}", "http://127.0.0.1:8081/"+path)
		if err != nil || !strings.HasPrefix(out, want[0]) || !strings.HasSuffix(out, want[1]) {
			t.Errorf("%s: %q, %v; want %s", path, out, err, want)
		}
	}
	for _, condition := range c.get("n1").Status.Conditions {
		if condition.Reason == "FlannelIsUp" {
			t.Errorf("condition %+v of a node that has no subnet yet", condition)
		}
	}
	c.patch("n1", `{"spec":{"podCIDR":"10.5.1.0/24","podCIDRs":["10.5.1.0/24"]}}`)
	if subnet := n1.Subnet("FLANNEL_SUBNET"); subnet != "10.5.1.1/24" {
		t.Errorf("subnet %s", subnet)
	}
	if public := c.get("n1").Annotations[prefix+"public-ip"]; public != "198.51.100.7" {
		t.Errorf("public-ip is %s", public)
	}
	c.remove("n1")
	c.create("n1", nil, "10.5.2.0/24")
	flanneltest.Eventually(t, "the new podCIDR is in effect", func() error {
		if subnet := n1.Subnet("FLANNEL_SUBNET"); subnet != "10.5.2.1/24" {
			return errors.New(subnet)
		}
		return nil
	})
	shows(t, n1, "ip addr show flannel.1", "inet 10.5.2.0/32", true)
	if c.get("n1").Annotations[prefix+"kube-subnet-manager"] != "true" {
		t.Error("the new object has no lease")
	}
}

// TestChangedWhileItWaits: what another program removes while the node waits for its podCIDRs is created again before pods can have
// addresses. The second daemon ends there, because it cannot write subnet.env.
func TestChangedWhileItWaits(t *testing.T) {
	for what, removes := range map[string][]string{
		"the rules":  {"nft", "flush", "ruleset"},
		"the device": {"ip", "link", "del", "flannel.1"},
		"an entry":   {"bridge", "fdb", "del", "02:00:00:00:00:09", "dev", "flannel.1"},
	} {
		t.Run(what, func(t *testing.T) {
			c := newCluster(t, `{"Network":"10.5.0.0/16","Backend":{"Type":"vxlan"}}`)
			n1 := c.Node()
			c.create("n1", nil, "10.5.1.0/24")
			c.create("n9", map[string]string{
				prefix + "kube-subnet-manager": "true", prefix + "backend-type": "vxlan", prefix + "public-ip": "192.0.2.9",
				prefix + "backend-data": `{"VNI":1,"VtepMAC":"02:00:00:00:00:09"}`,
			}, "10.5.9.0/24")
			first := c.startWeft(n1, "n1")
			n1.Subnet("FLANNEL_SUBNET")
			shows(t, n1, "bridge fdb show dev flannel.1", "02:00:00:00:00:09 dst 192.0.2.9", true)
			first.Stop()
			c.remove("n1")
			c.create("n1", nil)
			second := c.start(n1, "n1", c.weft+" flanneld", "--subnet-file=/proc/none/subnet.env")
			flanneltest.Eventually(t, "the daemon waits", func() error {
				if !strings.Contains(second.Log(), "node n1 has no podCIDR of IPv4") {
					return errors.New(second.Log())
				}
				return nil
			})
			if _, err := n1.Run(removes...); err != nil {
				t.Fatal(err)
			}
			c.patch("n1", `{"spec":{"podCIDR":"10.5.1.0/24","podCIDRs":["10.5.1.0/24"]}}`)
			flanneltest.Eventually(t, "the daemon ends", func() error {
				if ended, _ := second.Ended(); !ended {
					return errors.New(second.Log())
				}
				return nil
			})
			for _, want := range [][]string{
				{"192.0.2.9", "nft", "list", "set", "ip", "weft-flannel", "nodes"},
				{"goto tunnel", "nft", "list", "chain", "ip", "weft-flannel", "tunnels"},
				{"10.5.1.0/32", "ip", "addr", "show", "flannel.1"},
				{"02:00:00:00:00:09 dst 192.0.2.9", "bridge", "fdb", "show", "dev", "flannel.1"},
				{"via 10.5.9.0", "ip", "route", "show", "10.5.9.0/24"},
			} {
				if out, err := n1.Run(want[1:]...); err != nil || !strings.Contains(out, want[0]) {
					t.Errorf("%v: %v, without %s\n%s", want[1:], err, want[0], out)
				}
			}
		})
	}
}

// TestStartsWithoutItsDevice: a daemon that starts while its rules are in effect and its device is gone removes no node's address from the
// rules: they also keep pods from sending packets of the tunnel to nodes.
func TestStartsWithoutItsDevice(t *testing.T) {
	c := newCluster(t, `{"Network":"10.5.0.0/16","Backend":{"Type":"vxlan"}}`)
	n1 := c.Node()
	c.create("n1", nil, "10.5.1.0/24")
	peer := func(name, public, mac, subnet string) {
		c.create(name, map[string]string{
			prefix + "kube-subnet-manager": "true", prefix + "backend-type": "vxlan", prefix + "public-ip": public,
			prefix + "backend-data": `{"VNI":1,"VtepMAC":"` + mac + `"}`,
		}, subnet)
	}
	peer("n8", "192.0.2.8", "02:00:00:00:00:08", "10.5.8.0/24")
	peer("n9", "192.0.2.9", "02:00:00:00:00:09", "10.5.9.0/24")
	first := c.startWeft(n1, "n1")
	shows(t, n1, "nft list set ip weft-flannel nodes", "192.0.2.9", true)
	first.Stop()
	n1.IP("link del flannel.1")
	c.remove("n8") // its address is the only one that goes
	monitor := n1.Start(nil, "nft", "monitor")
	flanneltest.Eventually(t, "changes are reported", func() error {
		if _, err := n1.Run("nft", "add", "table", "ip", "marker"); err != nil {
			return err
		}
		if _, err := n1.Run("nft", "delete", "table", "ip", "marker"); err != nil || strings.Contains(monitor.Log(), "marker") {
			return err
		}
		return errors.New("not yet")
	})
	c.startWeft(n1, "n1")
	shows(t, n1, "bridge fdb show dev flannel.1", "02:00:00:00:00:09 dst 192.0.2.9", true)
	flanneltest.Eventually(t, "the address of the node that went meanwhile is removed", func() error {
		if !strings.Contains(monitor.Log(), "192.0.2.8") {
			return errors.New(monitor.Log())
		}
		return nil
	})
	if strings.Contains(monitor.Log(), "192.0.2.9") {
		t.Errorf("the address of a node was removed:\n%s", monitor.Log())
	}
}
