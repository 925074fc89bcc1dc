//go:build real

package clean_test

import (
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"weft.dev/weft/internal/cleanup"
	"weft.dev/weft/internal/flannel/clean"
)

// made has the commands of ip(8) and nft(8) that create what an agent leaves on a node with one pod, and a bridge of another program.
const made = `
ip link add cni0 type bridge
ip link set cni0 alias weft-link/flannel
ip link add veth1 group 78 type veth peer name eth9
ip link set veth1 alias weft-pod/attachment/c1/eth0
ip link set veth1 master cni0
ip link add veth2 group 78 type veth peer name eth7
ip link set veth2 master cni0
ip link add flannel.1 type vxlan id 1 dstport 8472
ip addr add 10.244.1.0/32 dev flannel.1
ip link set flannel.1 up
ip nexthop add id 183765248 via 10.244.9.0 dev flannel.1 onlink proto 88
ip route add 10.244.9.0/24 nhid 183765248 proto 88
ip link add docker0 type bridge
nft add table ip weft-flannel
nft add table inet weft-flannel
nft add table inet weft-flannel-pods
nft add map inet weft-flannel-pods verdicts { type ipv4_addr : verdict ; }
nft add table bridge weft-flannel-guard
nft add table bridge weft-flannel-ports
nft add table ip flannel-ipv4
`

// node is a network namespace and a root directory of the test, in the state in which an agent leaves them.
func node(t *testing.T) (o cleanup.Options, run func(line string) string) {
	t.Helper()
	runtime.LockOSThread() // and never unlocked: the thread ends with the test
	if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
		t.Fatal(err)
	}
	run = func(line string) string {
		t.Helper()
		words := strings.Fields(line)
		out, err := exec.CommandContext(t.Context(), words[0], words[1:]...).CombinedOutput()
		if err != nil {
			t.Fatalf("%s: %v\n%s", line, err, out)
		}
		return string(out)
	}
	for line := range strings.Lines(strings.TrimSpace(made)) {
		run(line)
	}
	o = cleanup.Options{
		Root: t.TempDir(), StateDir: "/var/lib/weft", RunDir: "/run/weft", CNIConfDir: "/etc/cni/net.d", CNIConf: "10-weft.conflist",
		Plugin: "/opt/cni/bin/weft", Socket: "/run/weft/cni/cni.sock", Records: "/var/lib/weft/attachments", Parts: []cleanup.Part{clean.Part()},
	}
	for file, text := range map[string]string{
		"etc/cni/net.d/10-flannel.conflist": "{}", "run/flannel/subnet.env": "", "var/lib/weft/attachments/a.json": `{"network":"flannel","podName":"a"}`,
	} {
		path := filepath.Join(o.Root, file)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return o, run
}

func exists(o cleanup.Options, path string) bool {
	_, err := os.Stat(o.At(path))
	return err == nil
}

// TestGiveBack: tables, records and marks are removed; pods, bridge, tunnel device, configuration and subnet.env stay.
func TestGiveBack(t *testing.T) {
	o, run := node(t)
	o.GiveBack = "flannel"
	if err := cleanup.Run(t.Context(), o); err != nil {
		t.Fatal(err)
	}
	if got := strings.TrimSpace(run("nft list tables")); got != "table ip flannel-ipv4" {
		t.Errorf("tables %q", got)
	}
	links := run("ip -o link show")
	for _, name := range []string{"cni0", "veth1", "flannel.1", "docker0"} {
		if !strings.Contains(links, name) {
			t.Errorf("link %s is gone: %s", name, links)
		}
	}
	if strings.Contains(links, "weft") || strings.Contains(links, "group 78") || !strings.Contains(links, "master cni0") {
		t.Errorf("links %s", links)
	}
	if route := run("ip route show 10.244.9.0/24"); !strings.HasPrefix(route, "10.244.9.0/24 via 10.244.9.0 dev flannel.1") {
		t.Errorf("the route to another node: %q", route)
	}
	if objects := run("ip nexthop show"); objects != "" {
		t.Errorf("nexthop objects: %q", objects)
	}
	if exists(o, "/var/lib/weft") || !exists(o, "/etc/cni/net.d/10-flannel.conflist") || !exists(o, "/run/flannel/subnet.env") {
		t.Error("records stay, or flannel's files are gone")
	}
}

// TestGiveBackRefused: a node is left as it is if no program exists that could take its network back, or if it has pods of another network.
func TestGiveBackRefused(t *testing.T) {
	o, run := node(t)
	o.GiveBack = "overlay"
	if err := cleanup.Run(t.Context(), o); err == nil || !strings.Contains(err.Error(), "it is one of flannel") {
		t.Errorf("error %v", err)
	}
	o.GiveBack = "flannel"
	other := o.At("/var/lib/weft/attachments/b.json")
	if err := os.WriteFile(other, []byte(`{"network":"overlay","podNamespace":"shop","podName":"b"}`), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := cleanup.Run(t.Context(), o); err == nil || !strings.Contains(err.Error(), "pod shop/b is on network overlay: drain the node") {
		t.Errorf("error %v", err)
	}
	if got := strings.Count(run("nft list tables"), "\n"); got != 6 {
		t.Errorf("%d tables, want 6", got)
	}
}

// TestRemove: everything of the agent is removed, and what flanneld or other programs have created stays.
func TestRemove(t *testing.T) {
	o, run := node(t)
	for _, line := range []string{
		"ip link add eth0 type veth peer name eth8", "ip link set eth8 up", "ip link set eth0 up", "ip addr add 192.0.2.1/24 dev eth0", "ip addr add 2001:db8::1/64 dev eth0 nodad",
		"ip route add 10.244.2.0/24 via 192.0.2.2 dev eth0 proto 88", "ip route add fd00:244:0:2::/64 via 2001:db8::2 dev eth0 proto 88",
		"ip route add 198.51.100.0/24 via 192.0.2.2 dev eth0",
	} {
		run(line)
	}
	if err := cleanup.Run(t.Context(), o); err != nil {
		t.Fatal(err)
	}
	if routes := run("ip route") + run("ip -6 route"); strings.Contains(routes, "244") || !strings.Contains(routes, "198.51.100.0/24") {
		t.Errorf("routes %s", routes)
	}
	links := run("ip -o link show")
	if strings.Contains(links, "cni0") || strings.Contains(links, "veth1") || strings.Contains(links, "flannel.1") || !strings.Contains(links, "docker0") {
		t.Errorf("links %s", links)
	}
	if got := strings.TrimSpace(run("nft list tables")); got != "table ip flannel-ipv4" {
		t.Errorf("tables %q", got)
	}
	if exists(o, "/etc/cni/net.d/10-flannel.conflist") || exists(o, "/run/flannel/subnet.env") {
		t.Error("files stay")
	}
	// Without Weft's marks, the same files and device are flanneld's.
	run("ip link add flannel.1 type vxlan id 1 dstport 8472")
	if err := os.MkdirAll(o.At("/run/flannel"), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(o.At("/run/flannel/subnet.env"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := cleanup.Run(t.Context(), o); err != nil {
		t.Fatal(err)
	}
	if !exists(o, "/run/flannel/subnet.env") || !strings.Contains(run("ip -o link show"), "flannel.1") {
		t.Error("flanneld's device or file is gone")
	}
}
