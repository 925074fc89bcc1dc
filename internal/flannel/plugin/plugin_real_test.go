//go:build real

package plugin_test

import (
	"encoding/json"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"weft.dev/weft/internal/cni"
	"weft.dev/weft/internal/flannel/flanneltest"
)

const subnetEnv = "FLANNEL_NETWORK=10.5.0.0/16\nFLANNEL_SUBNET=10.5.9.1/24\nFLANNEL_MTU=1450\nFLANNEL_IPMASQ=true\n"

// delegates is Debian's directory of the delegate plugins.
const delegates = "/usr/lib/cni"

// rig is a node on which plugins are executed.
type rig struct {
	t    *testing.T
	node *flanneltest.Node
	path string
}

func newRig(t *testing.T) *rig {
	t.Helper()
	r := &rig{t, flanneltest.NewUnderlay(t).Node(), delegates}
	r.env(subnetEnv)
	return r
}

func (r *rig) env(text string) {
	r.t.Helper()
	if err := os.WriteFile(r.node.SubnetFile(), []byte(text), 0o600); err != nil {
		r.t.Fatal(err)
	}
}

// conf returns a configuration with the node's directories. more has further fields, with a comma at the end.
func (r *rig) conf(more string) string {
	return fmt.Sprintf(`{"name":"cbr0","type":"flannel",%s"subnetFile":%q,"dataDir":%q,"records":%q,"ipam":{"dataDir":%q}}`, more, r.node.SubnetFile(),
		r.caches(), filepath.Join(r.node.Dir, "no-records"), r.addresses())
}

func (r *rig) caches() string    { return filepath.Join(r.node.Dir, "flannel") }
func (r *rig) addresses() string { return filepath.Join(r.node.Dir, "networks") }

// call is one execution of a plugin.
type call struct{ program, command, container, ifName, netns string }

// do executes a plugin.
func (r *rig) do(c call, conf string) (string, error) {
	r.t.Helper()
	path := filepath.Join(r.t.TempDir(), "stdin")
	if err := os.WriteFile(path, []byte(conf), 0o600); err != nil {
		r.t.Fatal(err)
	}
	return r.node.Run("env", "CNI_COMMAND="+c.command, "CNI_CONTAINERID="+c.container, "CNI_IFNAME="+c.ifName, "CNI_NETNS="+c.netns, "CNI_PATH="+r.path,
		"sh", "-c", c.program+` < "$0" 2>/dev/null || { code=$?; exit $code; }`, path)
}

func (r *rig) must(c call, conf string) string {
	r.t.Helper()
	out, err := r.do(c, conf)
	if err != nil {
		r.t.Fatalf("%s: %v", c.command, err)
	}
	return out
}

// held are the addresses that host-local has assigned, and files the plugin's caches.
func (r *rig) held() []string  { return list(r.t, filepath.Join(r.addresses(), "cbr0"), "10.") }
func (r *rig) files() []string { return list(r.t, r.caches(), "") }

func list(t *testing.T, dir, prefix string) []string {
	t.Helper()
	entries, err := os.ReadDir(dir)
	if err != nil && !os.IsNotExist(err) {
		t.Fatal(err)
	}
	var out []string
	for _, entry := range entries {
		if strings.HasPrefix(entry.Name(), prefix) {
			out = append(out, entry.Name())
		}
	}
	return out
}

var program string //nolint:gochecknoglobals // set once, by TestMain

func TestMain(m *testing.M) {
	os.Exit(flanneltest.Main(m, func(bin string) { program = filepath.Join(bin, "weft-flannel") }, "weft-flannel"))
}

const kube = `"cniVersion":"0.3.1","delegate":{"hairpinMode":true,"isDefaultGateway":true},`

// TestLikeFlannel: the result, the addresses and the leftovers are those of flannel's own plugin, and either plugin removes what the other
// created.
func TestLikeFlannel(t *testing.T) {
	ours, theirs := program, flanneltest.Plugin(t)
	for _, more := range []string{kube, ``, `"cniVersion":"0.4.0","delegate":{"type":"ptp"},`} {
		r := newRig(t)
		var results []string
		for i, program := range []string{theirs, ours} {
			space := r.node.Sandbox(fmt.Sprint("s", i))
			container := fmt.Sprintf("c%d", i)
			out := r.must(call{program, "ADD", container, "eth0", space.Path()}, r.conf(more))
			results = append(results, neutral(out))
			if mtu := space.IP("link show eth0"); !strings.Contains(mtu, "mtu 1450") {
				t.Errorf("%s", mtu)
			}
		}
		if results[0] != results[1] {
			t.Errorf("%s: flannel's plugin\n%s\nweft-flannel\n%s", more, results[0], results[1])
		}
		r.must(call{ours, "DEL", "c0", "eth0", ""}, r.conf(more))
		r.must(call{theirs, "DEL", "c1", "eth0", ""}, r.conf(more))
		if len(r.held())+len(r.files()) > 0 {
			t.Errorf("left: %v %v", r.held(), r.files())
		}
	}
}

// neutral masks what differs between two pods.
func neutral(result string) string {
	for pattern, mask := range map[string]string{
		`([0-9a-f]{2}:){5}[0-9a-f]{2}`: "MAC", `veth[0-9a-f]+`: "VETH", `10\.5\.9\.\d+/`: "ADDRESS/", `/var/run/netns/[^"]*`: "NETNS",
	} {
		result = regexp.MustCompile(pattern).ReplaceAllString(result, mask)
	}
	var v any
	if err := json.Unmarshal([]byte(result), &v); err != nil {
		return result
	}
	out, _ := json.Marshal(v)
	return string(out)
}

// TestVersions: every version of CNI is served, and the result is in the version of the configuration, whichever of them the delegate has.
func TestVersions(t *testing.T) {
	ours, r := program, newRig(t)
	var versions struct{ SupportedVersions []string }
	if err := json.Unmarshal([]byte(r.must(call{program: ours, command: "VERSION"}, `{"cniVersion":"1.1.0"}`)), &versions); err != nil {
		t.Fatal(err)
	}
	all := []string{"0.1.0", "0.2.0", "0.3.0", "0.3.1", "0.4.0", "1.0.0", "1.1.0"}
	if !slices.Equal(versions.SupportedVersions, all) {
		t.Errorf("versions %q, want %q", versions.SupportedVersions, all)
	}
	newest := t.TempDir() // Debian's delegates end at 1.0.0
	const delegate = "#!/bin/sh\n[ \"$CNI_COMMAND\" != ADD ] || echo '{\"cniVersion\":\"1.1.0\",\"ips\":[{\"address\":\"10.5.9.9/24\"}]}'\n"
	if err := os.WriteFile(filepath.Join(newest, "bridge"), []byte(delegate), 0o700); err != nil { //nolint:gosec // a program
		t.Fatal(err)
	}
	for i, version := range all {
		space := r.node.Sandbox(fmt.Sprint("s", i))
		if version == "1.1.0" {
			r.path = newest
		}
		conf := r.conf(fmt.Sprintf(`"cniVersion":%q,`, version))
		var result struct{ CNIVersion string }
		if err := json.Unmarshal([]byte(r.must(call{ours, "ADD", "c", "eth0", space.Path()}, conf)), &result); err != nil || result.CNIVersion != version {
			t.Errorf("version %s: the result has version %q, %v", version, result.CNIVersion, err)
		}
		r.must(call{ours, "DEL", "c", "eth0", space.Path()}, conf)
		if len(r.held())+len(r.files()) > 0 {
			t.Errorf("version %s leaves %v %v", version, r.held(), r.files())
		}
	}
}

// TestTwoInterfaces: both of a container's interfaces are removed; flannel's plugin loses the first and leaks its address.
func TestTwoInterfaces(t *testing.T) {
	ours, r := program, newRig(t)
	space := r.node.Sandbox("s")
	for _, ifName := range []string{"eth0", "net1"} {
		r.must(call{ours, "ADD", "c", ifName, space.Path()}, r.conf(kube))
	}
	if len(r.held()) != 2 || len(r.files()) != 2 {
		t.Errorf("%v %v", r.held(), r.files())
	}
	for range 2 { // the second finds nothing, and succeeds
		r.must(call{ours, "DEL", "c", "net1", space.Path()}, r.conf(kube))
		if len(r.held()) != 1 || len(r.files()) != 1 {
			t.Errorf("after the DEL of net1: %v %v", r.held(), r.files())
		}
	}
	for range 2 {
		r.must(call{ours, "DEL", "c", "eth0", space.Path()}, r.conf(kube))
	}
	if len(r.held())+len(r.files()) > 0 {
		t.Errorf("left: %v %v", r.held(), r.files())
	}
}

// TestFailedDelIsTriedAgain: after a DEL in which the delegate failed, the next DEL has what it needs; flannel's plugin leaks the address.
func TestFailedDelIsTriedAgain(t *testing.T) {
	ours, r := program, newRig(t)
	space := r.node.Sandbox("s")
	r.must(call{ours, "ADD", "c", "eth0", space.Path()}, r.conf(kube))
	r.path = filepath.Join(r.node.Dir, "empty")
	if out, err := r.do(call{ours, "DEL", "c", "eth0", space.Path()}, r.conf(kube)); err == nil {
		t.Errorf("DEL without a delegate succeeded: %s", out)
	}
	r.path = delegates
	if err := os.Remove(r.node.SubnetFile()); err != nil { // DEL does not need it
		t.Fatal(err)
	}
	r.must(call{ours, "DEL", "c", "eth0", ""}, r.conf(kube))
	if len(r.held())+len(r.files()) > 0 {
		t.Errorf("left: %v %v", r.held(), r.files())
	}
}

// TestDamagedCache: DEL reports a file that it cannot read and keeps it; flannel's plugin succeeds, and the address leaks.
func TestDamagedCache(t *testing.T) {
	ours, r := program, newRig(t)
	r.must(call{ours, "ADD", "c", "eth0", r.node.Sandbox("s").Path()}, r.conf(kube))
	path := filepath.Join(r.caches(), "c")
	whole, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, whole[:10], 0o600); err != nil {
		t.Fatal(err)
	}
	if out, err := r.do(call{ours, "DEL", "c", "eth0", ""}, r.conf(kube)); err == nil || !strings.Contains(err.Error(), path) {
		t.Errorf("DEL with a damaged file: %s, %v; want an error that names %s", out, err, path)
	}
	if err := os.WriteFile(path, whole, 0o600); err != nil {
		t.Fatal(err)
	}
	r.must(call{ours, "DEL", "c", "eth0", ""}, r.conf(kube))
	if len(r.held())+len(r.files()) > 0 {
		t.Errorf("left: %v %v", r.held(), r.files())
	}
}

// TestCheck makes the delegate check: what is missing in the pod is found.
func TestCheck(t *testing.T) {
	ours, r := program, newRig(t)
	space := r.node.Sandbox("s")
	const version = `"cniVersion":"0.4.0",`
	result := r.must(call{ours, "ADD", "c", "eth0", space.Path()}, r.conf(version))
	conf := r.conf(version + `"prevResult":` + result + `,`)
	r.must(call{ours, "CHECK", "c", "eth0", space.Path()}, conf)
	space.IP("addr flush dev eth0")
	if out, err := r.do(call{ours, "CHECK", "c", "eth0", space.Path()}, conf); err == nil {
		t.Errorf("a pod without its address is well: %s", out)
	}
	if _, err := r.do(call{ours, "CHECK", "other", "eth0", space.Path()}, conf); err == nil || !strings.Contains(err.Error(), `"code":3`) {
		t.Errorf("a container that is not known: %v", err)
	}
	r.must(call{ours, "DEL", "c", "eth0", space.Path()}, conf)
}

// TestGC removes what the runtime does not list, and nothing if there is no list at all.
func TestGC(t *testing.T) {
	ours, r := program, newRig(t)
	for _, container := range []string{"kept", "gone"} {
		r.must(call{ours, "ADD", container, "eth0", r.node.Sandbox(container).Path()}, r.conf(`"cniVersion":"1.0.0",`))
	}
	r.must(call{ours, "GC", "", "", ""}, r.conf(`"cniVersion":"1.1.0",`))
	if len(r.files()) != 2 || len(r.held()) != 2 {
		t.Errorf("without a list: %v %v", r.files(), r.held())
	}
	r.must(call{ours, "GC", "", "", ""}, r.conf(`"cniVersion":"1.1.0","cni.dev/valid-attachments":[{"containerID":"kept","ifname":"eth0"}],`))
	if files := r.files(); len(files) != 1 || files[0] != "kept" || len(r.held()) != 1 {
		t.Errorf("with a list: %v %v", files, r.held())
	}
	r.must(call{ours, "GC", "", "", ""}, r.conf(`"cniVersion":"1.1.0","cni.dev/valid-attachments":[],`))
	if len(r.files())+len(r.held()) > 0 {
		t.Errorf("with an empty list: %v %v", r.files(), r.held())
	}
}

// TestGCOfFlannelsFile: the file of flannel's plugin does not name the interface. It stays while an interface of the container is valid that has
// no file of its own, so that the DEL of that interface finds it.
func TestGCOfFlannelsFile(t *testing.T) {
	ours, theirs, r := program, flanneltest.Plugin(t), newRig(t)
	space := r.node.Sandbox("s")
	r.must(call{theirs, "ADD", "c", "net1", space.Path()}, r.conf(kube))
	r.must(call{ours, "ADD", "c", "net2", space.Path()}, r.conf(kube))
	collect := func(valid string) {
		r.must(call{ours, "GC", "", "", ""}, r.conf(`"cniVersion":"1.1.0","cni.dev/valid-attachments":[`+valid+`],`))
	}
	collect(`{"containerID":"c","ifname":"net1"},{"containerID":"c","ifname":"net2"}`)
	if len(r.held()) != 2 || len(r.files()) != 2 {
		t.Errorf("both are valid: %v %v", r.held(), r.files())
	}
	r.must(call{ours, "DEL", "c", "net1", space.Path()}, r.conf(kube))
	if files := r.files(); len(r.held()) != 1 || len(files) != 1 || files[0] != "c@net2" {
		t.Errorf("after the DEL of net1: %v %v", r.held(), files)
	}
	collect("")
	if len(r.held())+len(r.files()) > 0 {
		t.Errorf("none is valid: %v %v", r.held(), r.files())
	}
}

// TestNotReady: without a subnet, ADD returns "try again later" and STATUS reports that the node cannot serve.
func TestNotReady(t *testing.T) {
	ours, r := program, newRig(t)
	r.must(call{ours, "STATUS", "", "", ""}, r.conf(`"cniVersion":"1.1.0",`))
	for _, c := range []struct{ env, command, version, want string }{
		{"", "STATUS", "1.1.0", `"code":50`},
		{"", "ADD", "1.0.0", `"code":11`},
		{"FLANNEL_MTU=1450\n", "ADD", "1.0.0", "missing FLANNEL_NETWORK or FLANNEL_IPV6_NETWORK"},
		{"FLANNEL_MTU\n", "STATUS", "1.1.0", "FLANNEL_MTU=VALUE is expected"},
	} {
		if c.env == "" {
			if err := os.Remove(r.node.SubnetFile()); err != nil && !os.IsNotExist(err) {
				t.Fatal(err)
			}
		} else {
			r.env(c.env)
		}
		out, err := r.do(call{ours, c.command, "c", "eth0", r.node.Path()}, r.conf(`"cniVersion":"`+c.version+`",`))
		if err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s with %q: %s, %v; want %s", c.command, c.env, out, err, c.want)
		}
	}
	if len(r.files()) > 0 {
		t.Errorf("left: %v", r.files())
	}
}

// TestDelegatesError: the error of a delegate is on standard output, in one JSON object with the delegate's own code; the delegate's DEL is
// executed, and nothing remains.
func TestDelegatesError(t *testing.T) {
	ours, r := program, newRig(t)
	r.path = t.TempDir()
	const delegate = `#!/bin/sh
echo "$CNI_COMMAND" >> "$CNI_PATH/commands"
[ "$CNI_COMMAND" = ADD ] || exit 0
echo '{"cniVersion":"1.0.0","code":114,"msg":"no such parent","details":"of the delegate"}'
exit 1
`
	if err := os.WriteFile(filepath.Join(r.path, "bridge"), []byte(delegate), 0o700); err != nil { //nolint:gosec // a program
		t.Fatal(err)
	}
	out, err := r.do(call{ours, "ADD", "c", "eth0", r.node.Path()}, r.conf(`"cniVersion":"1.0.0",`))
	if err == nil {
		t.Fatalf("ADD succeeds: %s", out)
	}
	_, printed, _ := strings.Cut(err.Error(), "exit status 1: ")
	var failure struct {
		Code         int
		Msg, Details string
	}
	if err := json.Unmarshal([]byte(printed), &failure); err != nil || failure.Code != 114 || !strings.Contains(failure.Msg, "no such parent") || failure.Details != "of the delegate" {
		t.Errorf("%q: %+v, %v; want the delegate's code 114 and its texts", printed, failure, err)
	}
	if commands, err := os.ReadFile(filepath.Join(r.path, "commands")); err != nil || string(commands) != "ADD\nDEL\n" {
		t.Errorf("the delegate executed %q, %v; want ADD and DEL", commands, err)
	}
	if len(r.files()) > 0 {
		t.Errorf("left: %v", r.files())
	}
}

// TestAgentServesRecordedPods: on a node with Weft's records, an ADD waits for the agent and executes no delegate.
func TestAgentServesRecordedPods(t *testing.T) {
	ours, r := program, newRig(t)
	records := filepath.Join(r.node.Dir, "no-records")
	if err := os.Mkdir(records, 0o700); err != nil {
		t.Fatal(err)
	}
	conf := r.conf(`"cniVersion":"1.0.0","socket":"` + filepath.Join(r.node.Dir, "cni.sock") + `",`)
	space := r.node.Sandbox("s")
	if _, err := r.do(call{ours, "ADD", "c", "eth0", space.Path()}, conf); err == nil || !strings.Contains(err.Error(), `"code":11`) {
		t.Errorf("ADD without the agent: %v", err)
	}
	if len(r.held())+len(r.files()) > 0 {
		t.Errorf("delegated: %v %v", r.held(), r.files())
	}
	r.must(call{ours, "DEL", "c", "eth0", ""}, conf)

	listener, err := net.Listen("unix", filepath.Join(r.node.Dir, "cni.sock"))
	if err != nil {
		t.Fatal(err)
	}
	requests := make(chan string, 1)
	go func() {
		conn, err := listener.Accept()
		if err != nil {
			close(requests)
			return
		}
		request := make([]byte, 64<<10)
		size, _ := conn.Read(request)
		_, _ = io.WriteString(conn, "HTTP/1.0 200 OK\r\n"+cni.HeaderPrint+": 1.0.0\r\nContent-Length: 8\r\n\r\n{\"a\": 1}")
		_ = conn.Close()
		requests <- string(request[:size])
	}()
	printed := r.must(call{ours, "ADD", "c", "eth0", space.Path()}, conf)
	_ = listener.Close()
	if request := <-requests; printed != `{"a": 1}` || !strings.Contains(request, "\r\n"+cni.HeaderPrint+": 1.0.0\r\n") {
		t.Errorf("printed %q after the request %q", printed, request)
	}
}
