package plugin_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/containernetworking/cni/libcni"
	"github.com/containernetworking/cni/pkg/invoke"
	"github.com/containernetworking/cni/pkg/types"
	types040 "github.com/containernetworking/cni/pkg/types/040"
	types100 "github.com/containernetworking/cni/pkg/types/100"
	"go.uber.org/goleak"

	"weft.dev/weft/internal/attach"
	"weft.dev/weft/internal/cni"
	"weft.dev/weft/internal/cni/cniserver"
	"weft.dev/weft/internal/cni/cnitest"
)

// patience is the time limit of waits for expected events.
const patience = 20 * time.Second

// pluginDir has the plugin, built as in a release. TestMain sets it.
var pluginDir string //nolint:gochecknoglobals // Built once for all tests.

func TestMain(m *testing.M) {
	dir, err := os.MkdirTemp("", "weft-cni")
	if err != nil {
		panic(err)
	}
	build := exec.Command("go", "build", "-trimpath", "-ldflags=-s -w", "-o", filepath.Join(dir, cni.PluginType), "weft.dev/weft/cmd/weft-cni")
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		panic(fmt.Sprintf("building the plugin: %v\n%s", err, out))
	}
	pluginDir = dir
	goleak.VerifyTestMain(m, goleak.Cleanup(func(code int) {
		_ = os.RemoveAll(dir)
		os.Exit(code)
	}))
}

// node is the plugin and the agent of one node.
type node struct {
	dir     string
	handler *cnitest.Handler
	stop    func()
}

// newNode returns a node with a running agent.
func newNode(t testing.TB, before func(context.Context, *cni.Request) error) *node {
	t.Helper()
	n := &node{dir: t.TempDir(), handler: &cnitest.Handler{Before: before}}
	n.makeNetns(t)
	listener, err := cniserver.Listen(n.socket(), uint32(os.Geteuid())) //nolint:gosec // Uids fit.
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	server := &cniserver.Server{Handler: n.handler}
	go func() { done <- server.Serve(ctx, listener) }()
	n.stop = sync.OnceFunc(func() {
		cancel()
		if err := <-done; err != nil {
			t.Errorf("Serve: %v", err)
		}
	})
	t.Cleanup(n.stop)
	return n
}

// makeNetns makes a file in place of the namespace of container 3f9c. Requests for others, whose namespaces do not exist, are the CNI library's.
func (n *node) makeNetns(t testing.TB) {
	t.Helper()
	dir := filepath.Join(n.dir, "netns")
	if err := errors.Join(os.Mkdir(dir, 0o700), os.WriteFile(filepath.Join(dir, "3f9c"), nil, 0o600)); err != nil {
		t.Fatal(err)
	}
}

func (n *node) socket() string  { return filepath.Join(n.dir, "run", "cni.sock") }
func (n *node) records() string { return filepath.Join(n.dir, "attachments") }

// conf is the plugin's configuration.
func (n *node) conf(version string) string {
	return fmt.Sprintf(`{"cniVersion":%q,"name":"weft","type":"weft","socket":%q,"records":%q}`, version, n.socket(), n.records())
}

// libcni returns the CNI library and the network list, as a runtime has them.
func (n *node) libcni(t testing.TB, version string) (*libcni.CNIConfig, *libcni.NetworkConfigList) {
	t.Helper()
	list, err := libcni.ConfListFromBytes(fmt.Appendf(nil, `{"cniVersion":%q,"name":"weft","plugins":[%s]}`, version, n.conf(version)))
	if err != nil {
		t.Fatal(err)
	}
	execute := &invoke.DefaultExec{RawExec: &invoke.RawExec{Stderr: os.Stderr}}
	return libcni.NewCNIConfigWithCacheDir([]string{pluginDir}, filepath.Join(n.dir, "cache"), execute), list
}

func (n *node) runtimeConf(container string) *libcni.RuntimeConf {
	return &libcni.RuntimeConf{
		ContainerID: container,
		NetNS:       filepath.Join(n.dir, "netns", container),
		IfName:      "eth0",
		Args: [][2]string{
			{"IgnoreUnknown", "1"},
			{"K8S_POD_NAMESPACE", "shop"},
			{"K8S_POD_NAME", "web-1"},
			{"K8S_POD_INFRA_CONTAINER_ID", container},
			{"K8S_POD_UID", "5f0c"},
		},
	}
}

// run executes the plugin without libcni.
func (n *node) run(t testing.TB, command, stdin string, env ...string) (stdout string, err error) {
	t.Helper()
	cmd := n.command(t.Context(), command, stdin, env...)
	var out bytes.Buffer
	cmd.Stdout = &out
	err = cmd.Run()
	return out.String(), err
}

func (n *node) command(ctx context.Context, command, stdin string, env ...string) *exec.Cmd {
	cmd := exec.CommandContext(ctx, filepath.Join(pluginDir, cni.PluginType))
	cmd.Env = append([]string{
		"CNI_COMMAND=" + command, "CNI_CONTAINERID=3f9c", "CNI_NETNS=" + n.dir + "/netns/3f9c", "CNI_IFNAME=eth0", "CNI_PATH=" + pluginDir,
	}, env...)
	cmd.Stdin = strings.NewReader(stdin)
	return cmd
}

func wantSpecError(t *testing.T, err error, code cni.Code, part string) {
	t.Helper()
	var spec *types.Error
	if !errors.As(err, &spec) || spec.Code != uint(code) || !strings.Contains(spec.Msg, part) {
		t.Errorf("error %+v, want code %d with %q", err, code, part)
	}
}

// TestVersions runs the whole life of an attachment in every version of the specification.
func TestVersions(t *testing.T) {
	for i, version := range []string{"0.3.1", "0.4.0", "1.0.0", "1.1.0", "0.3.1", "0.4.0", "1.0.0", "1.1.0"} {
		t.Run(version, func(t *testing.T) {
			n := newNode(t, nil)
			if i >= 4 { // by the CNI library
				if err := os.Remove(filepath.Join(n.dir, "netns", "3f9c")); err != nil {
					t.Fatal(err)
				}
			}
			lib, list := n.libcni(t, version)
			rt := n.runtimeConf("3f9c")
			if _, err := lib.ValidateNetworkList(t.Context(), list); err != nil {
				t.Fatal(err)
			}
			result, err := lib.AddNetworkList(t.Context(), list, rt)
			if err != nil {
				t.Fatal(err)
			}
			wantResult(t, result, version)
			err = lib.CheckNetworkList(t.Context(), list, rt)
			if version == "0.3.1" && err == nil || version != "0.3.1" && err != nil {
				t.Errorf("CHECK: %v", err)
			}
			for range 2 {
				if err := lib.DelNetworkList(t.Context(), list, rt); err != nil {
					t.Errorf("DEL: %v", err)
				}
			}
			if n.handler.Attached() != 0 {
				t.Error("attached after DEL")
			}
			add := n.handler.Requests()[0]
			want := cni.Args{PodNamespace: "shop", PodName: "web-1", PodUID: "5f0c", InfraContainerID: "3f9c"}
			if add.Args != want || add.ContainerID != "3f9c" || add.IfName != "eth0" || add.Netns != rt.NetNS || add.Path != pluginDir {
				t.Errorf("the agent got %+v", add)
			}
		})
	}
}

func wantResult(t *testing.T, result types.Result, version string) {
	t.Helper()
	if result.Version() != version {
		t.Errorf("version %s, want %s", result.Version(), version)
	}
	switch r := result.(type) {
	case *types040.Result:
		if len(r.IPs) != 1 || r.IPs[0].Version != "4" || r.IPs[0].Address.String() != "10.128.0.1/14" {
			t.Errorf("result %+v", r)
		}
	case *types100.Result:
		if len(r.IPs) != 1 || r.IPs[0].Address.String() != "10.128.0.1/14" || r.Interfaces[0].Name != "eth0" {
			t.Errorf("result %+v", r)
		}
	default:
		t.Errorf("result of type %T", result)
	}
}

func TestStatusAndGC(t *testing.T) {
	var mu sync.Mutex
	var status error
	n := newNode(t, func(_ context.Context, req *cni.Request) error {
		mu.Lock()
		defer mu.Unlock()
		if req.Command == cni.CommandStatus {
			return status
		}
		return nil
	})
	lib, list := n.libcni(t, "1.1.0")
	if err := lib.GetStatusNetworkList(t.Context(), list); err != nil {
		t.Errorf("STATUS: %v", err)
	}
	for _, code := range []cni.Code{cni.CodeNotAvailable, cni.CodeLimitedConnectivity} {
		mu.Lock()
		status = cni.Errorf(code, "no switch")
		mu.Unlock()
		wantSpecError(t, lib.GetStatusNetworkList(t.Context(), list), code, "no switch")
	}

	// The library sends DEL for attachments that it has cached and that are not valid, and GC for those without a cache entry.
	for _, container := range []string{"aa", "bb", "cc"} {
		if _, err := lib.AddNetworkList(t.Context(), list, n.runtimeConf(container)); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.RemoveAll(filepath.Join(n.dir, "cache")); err != nil {
		t.Fatal(err)
	}
	keep := []types.GCAttachment{{ContainerID: "bb", IfName: "eth0"}}
	if err := lib.GCNetworkList(t.Context(), list, &libcni.GCArgs{ValidAttachments: keep}); err != nil {
		t.Errorf("GC: %v", err)
	}
	if got := n.handler.Attached(); got != 1 {
		t.Errorf("%d attached after GC, want 1", got)
	}
	if err := lib.GCNetworkList(t.Context(), list, &libcni.GCArgs{}); err != nil {
		t.Errorf("GC of a node without pods: %v", err)
	}
	if got := n.handler.Attached(); got != 0 {
		t.Errorf("%d attached after GC, want 0", got)
	}
	_, err := n.run(t, "GC", n.conf("1.1.0"))
	if err == nil {
		t.Error("GC without its list was accepted")
	}
}

// Annotations larger than a request do not make ADD or DEL fail.
func TestManyAnnotations(t *testing.T) {
	n := newNode(t, nil)
	conf := strings.TrimSuffix(n.conf("1.0.0"), "}") + `,"runtimeConfig":{"io.kubernetes.cri.pod-annotations":{"a":"` + strings.Repeat("<", 256<<10) +
		`","` + cni.AnnotationAssignMacvlan + `":"eth1"}}}`
	for _, command := range []string{"ADD", "DEL"} {
		if out, err := n.run(t, command, conf); err != nil {
			t.Errorf("%s: %v: %.300s", command, err, out)
		}
	}
	requests := n.handler.Requests()
	if len(requests) != 2 || len(requests[0].NetConf.RuntimeConfig.PodAnnotations) != 1 ||
		requests[0].NetConf.RuntimeConfig.PodAnnotations[cni.AnnotationAssignMacvlan] != "eth1" || len(requests[1].NetConf.RuntimeConfig.PodAnnotations) > 0 {
		t.Errorf("%d requests", len(requests))
	}
}

// TestHandlerErrors: the runtime gets the agent's codes.
func TestHandlerErrors(t *testing.T) {
	var mu sync.Mutex
	var failure error
	n := newNode(t, func(context.Context, *cni.Request) error {
		mu.Lock()
		defer mu.Unlock()
		return failure
	})
	lib, list := n.libcni(t, "1.0.0")
	for code, err := range map[cni.Code]error{
		cni.CodeUnsupportedField: cni.Errorf(cni.CodeUnsupportedField, "reason"),
		cni.CodeUnknownContainer: fmt.Errorf("reason: %w", cni.Errorf(cni.CodeUnknownContainer, "gone")),
		cni.CodeInvalidConfig:    cni.Errorf(cni.CodeInvalidConfig, "reason"),
		cni.CodeTryAgainLater:    cni.Errorf(cni.CodeTryAgainLater, "reason"),
		cni.CodeInternal:         errors.New("reason"),
	} {
		mu.Lock()
		failure = err
		mu.Unlock()
		_, err := lib.AddNetworkList(t.Context(), list, n.runtimeConf("3f9c"))
		wantSpecError(t, err, code, "reason")
		wantSpecError(t, lib.DelNetworkList(t.Context(), list, n.runtimeConf("3f9c")), code, "reason")
	}
}

func TestAgentAway(t *testing.T) {
	n := newNode(t, nil)
	lib, list := n.libcni(t, "1.1.0")
	rt := n.runtimeConf("3f9c")
	if _, err := lib.AddNetworkList(t.Context(), list, rt); err != nil {
		t.Fatal(err)
	}
	n.stop()
	away := "the weft agent is not running on this node (socket " + n.socket() + "): try again later"
	_, err := lib.AddNetworkList(t.Context(), list, n.runtimeConf("other"))
	wantSpecError(t, err, cni.CodeTryAgainLater, away)
	wantSpecError(t, lib.CheckNetworkList(t.Context(), list, rt), cni.CodeTryAgainLater, away)
	wantSpecError(t, lib.GetStatusNetworkList(t.Context(), list), cni.CodeNotAvailable, away)
	if err := lib.GCNetworkList(t.Context(), list, &libcni.GCArgs{}); err == nil {
		t.Error("GC succeeded without the agent")
	}

	// No record: there is nothing to remove.
	if err := lib.DelNetworkList(t.Context(), list, rt); err != nil {
		t.Errorf("DEL without a record: %v", err)
	}
	store, err := attach.Open(n.records())
	if err != nil {
		t.Fatal(err)
	}
	if err := store.Put(t.Context(), attach.Record{
		Network: "weft", ContainerID: "3f9c", IfName: "eth0", Netns: rt.NetNS, BootID: "boot", State: attach.Attached, Created: time.Now(),
	}); err != nil {
		t.Fatal(err)
	}
	if err := store.Close(); err != nil {
		t.Fatal(err)
	}
	wantSpecError(t, lib.DelNetworkList(t.Context(), list, rt), cni.CodeTryAgainLater, away)
	if err := lib.DelNetworkList(t.Context(), list, n.runtimeConf("other")); err != nil {
		t.Errorf("DEL of another, without a record: %v", err)
	}
}

// TestStdout: without libcni in between, the output is one object of the specification, with its version.
func TestStdout(t *testing.T) {
	n := newNode(t, nil)
	for name, test := range map[string]struct {
		command, stdin string
		env            []string
		code           cni.Code
		part           string
	}{
		"version too old": {"ADD", n.conf("0.3.0"), nil, cni.CodeIncompatibleVersion, "incompatible"},
		"no version":      {"ADD", `{"name":"weft","type":"weft"}`, nil, cni.CodeIncompatibleVersion, "incompatible"},
		"version unknown": {"ADD", n.conf("9.0.0"), nil, cni.CodeIncompatibleVersion, "incompatible"},
		"no name":         {"ADD", `{"cniVersion":"1.1.0"}`, nil, cni.CodeInvalidConfig, "name"},
		"hostile name":    {"ADD", `{"cniVersion":"1.1.0","name":"../x"}`, nil, cni.CodeInvalidConfig, "name"},
		"empty":           {"ADD", "", nil, cni.CodeDecode, ""},
		"container":       {"ADD", n.conf("1.1.0"), []string{"CNI_CONTAINERID=../x"}, cni.CodeInvalidEnvironment, "containerID"},
		"no container":    {"ADD", n.conf("1.1.0"), []string{"CNI_CONTAINERID="}, cni.CodeInvalidEnvironment, "CNI_CONTAINERID"},
		"newline":         {"ADD", n.conf("1.1.0"), []string{"CNI_CONTAINERID=a\n"}, cni.CodeInvalidEnvironment, "containerID"},
		"interface":       {"DEL", n.conf("1.1.0"), []string{"CNI_IFNAME=a/b"}, cni.CodeInvalidEnvironment, "interface"},
		"netns":           {"ADD", n.conf("1.1.0"), []string{"CNI_NETNS=a/../b"}, cni.CodeInvalidEnvironment, "CNI_NETNS"},
		"own netns":       {"ADD", n.conf("1.1.0"), []string{"CNI_NETNS=/proc/self/ns/net"}, cni.CodeInvalidNetns, "node's own"},
		"args":            {"ADD", n.conf("1.1.0"), []string{"CNI_ARGS=K8S_POD_NAME=a;b"}, cni.CodeInvalidEnvironment, `CNI_ARGS: "b" is not`},
		"pod name":        {"CHECK", n.conf("1.1.0"), []string{"CNI_ARGS=K8S_POD_NAME=../a"}, cni.CodeInvalidEnvironment, "K8S_POD_NAME"},
		"command":         {"UPDATE", n.conf("1.1.0"), nil, cni.CodeInvalidEnvironment, "CNI_COMMAND"},
		"CHECK too old":   {"CHECK", n.conf("0.3.1"), nil, cni.CodeIncompatibleVersion, "CHECK"},
		"STATUS too old":  {"STATUS", n.conf("1.0.0"), nil, cni.CodeIncompatibleVersion, "STATUS"},
		"GC too old":      {"GC", n.conf("1.0.0"), nil, cni.CodeIncompatibleVersion, "GC"},
		"unknown":         {"CHECK", n.conf("1.1.0"), nil, cni.CodeUnknownContainer, "3f9c"},
		"MAC":             {"ADD", strings.Replace(n.conf("1.1.0"), "{", `{"runtimeConfig":{"mac":"x"},`, 1), nil, cni.CodeInvalidConfig, "mac"},
	} {
		t.Run(name, func(t *testing.T) {
			stdout, err := n.run(t, test.command, test.stdin, test.env...)
			if exit := new(exec.ExitError); !errors.As(err, &exit) || exit.ExitCode() != 1 {
				t.Errorf("exit: %v", err)
			}
			wantPrinted(t, stdout, test.code, test.part)
		})
	}
	for _, req := range n.handler.Requests() {
		if req.Command != cni.CommandCheck {
			t.Errorf("%s reached the agent", req)
		}
	}
}

// wantPrinted fails unless stdout is one error object with all fields that the specification requires.
func wantPrinted(t *testing.T, stdout string, code cni.Code, part string) {
	t.Helper()
	var printed struct {
		CNIVersion string   `json:"cniVersion"`
		Code       cni.Code `json:"code"`
		Msg        string   `json:"msg"`
		Details    string   `json:"details"`
	}
	decoder := json.NewDecoder(strings.NewReader(stdout))
	decoder.DisallowUnknownFields()
	if err := decoder.Decode(&printed); err != nil {
		t.Fatalf("%q: %v", stdout, err)
	}
	if decoder.More() || printed.CNIVersion == "" || printed.Code != code || !strings.Contains(printed.Msg, part) {
		t.Errorf("printed %s, want code %d with %q", stdout, code, part)
	}
}

// TestTruncatedStdin cuts the configuration at every byte (a few at a time: each costs a process).
func TestTruncatedStdin(t *testing.T) {
	n := newNode(t, nil)
	conf := n.conf("1.1.0")
	for at := 0; at < len(conf); at += 7 {
		stdout, err := n.run(t, "ADD", conf[:at])
		if err == nil {
			t.Errorf("%d bytes of a configuration were enough", at)
		}
		wantPrinted(t, stdout, cni.CodeDecode, "")
	}
	if len(n.handler.Requests()) != 0 {
		t.Error("half a configuration reached the agent")
	}
}

func TestVersionCommand(t *testing.T) {
	n := &node{dir: t.TempDir()}
	stdout, err := n.run(t, "VERSION", "", "CNI_CONTAINERID=", "CNI_NETNS=")
	if err != nil {
		t.Fatal(err)
	}
	var got struct {
		CNIVersion        string   `json:"cniVersion"`
		SupportedVersions []string `json:"supportedVersions"`
	}
	if err := json.Unmarshal([]byte(stdout), &got); err != nil {
		t.Fatal(err)
	}
	if !slices.Equal(got.SupportedVersions, []string{"0.3.1", "0.4.0", "1.0.0", "1.1.0"}) || got.CNIVersion != "1.1.0" {
		t.Errorf("%+v", got)
	}
}

// TestKilled: if the runtime kills the plugin, the context of the agent's handler ends.
func TestKilled(t *testing.T) {
	entered, left := make(chan struct{}), make(chan error, 1)
	n := newNode(t, func(ctx context.Context, _ *cni.Request) error {
		close(entered)
		<-ctx.Done()
		left <- context.Cause(ctx)
		return context.Cause(ctx)
	})
	cmd := n.command(t.Context(), "ADD", n.conf("1.1.0"))
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	select {
	case <-entered:
	case <-time.After(patience):
		t.Fatal("the ADD did not arrive")
	}
	if err := cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	select {
	case err := <-left:
		if !errors.Is(err, context.Canceled) {
			t.Errorf("the handler's context: %v", err)
		}
	case <-time.After(patience):
		t.Error("the handler did not learn that the plugin was killed")
	}
	_ = cmd.Wait()
}

// TestGarbageAgent: if another program owns the socket, the plugin neither hangs nor ends without an error.
func TestGarbageAgent(t *testing.T) {
	n := &node{dir: t.TempDir()}
	n.makeNetns(t)
	if err := os.Mkdir(filepath.Dir(n.socket()), 0o700); err != nil {
		t.Fatal(err)
	}
	listener, err := net.Listen("unix", n.socket())
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			_, _ = conn.Read(make([]byte, 64<<10))
			_, _ = conn.Write([]byte("\x00\x01\x02 garbage\n"))
			_ = conn.Close()
		}
	}()
	for _, command := range []string{"ADD", "DEL", "CHECK"} {
		stdout, err := n.run(t, command, n.conf("1.1.0"))
		if err == nil {
			t.Errorf("%s succeeded", command)
		}
		wantPrinted(t, stdout, cni.CodeTryAgainLater, "before it answered")
	}
	stdout, _ := n.run(t, "STATUS", n.conf("1.1.0"))
	wantPrinted(t, stdout, cni.CodeNotAvailable, "before it answered")
	_ = listener.Close()
	<-done
}

func TestConcurrent(t *testing.T) {
	n := newNode(t, nil)
	lib, list := n.libcni(t, "1.1.0")
	var wg sync.WaitGroup
	for i := range 32 {
		wg.Go(func() {
			rt := n.runtimeConf(fmt.Sprint("c", i))
			if _, err := lib.AddNetworkList(t.Context(), list, rt); err != nil {
				t.Error(err)
			}
			if err := lib.CheckNetworkList(t.Context(), list, rt); err != nil {
				t.Error(err)
			}
			if i%2 == 0 {
				if err := lib.DelNetworkList(t.Context(), list, rt); err != nil {
					t.Error(err)
				}
			}
		})
	}
	wg.Wait()
	if got := n.handler.Attached(); got != 16 {
		t.Errorf("%d attached, want 16", got)
	}
}

// BenchmarkExec measures an ADD from exec to answer, and as its lower bound the VERSION command, which does not use the agent.
func BenchmarkExec(b *testing.B) {
	n := newNode(b, nil)
	for _, command := range []string{"VERSION", "STATUS", "ADD", "DEL"} {
		b.Run(command, func(b *testing.B) {
			var cpu time.Duration
			for b.Loop() {
				cmd := n.command(b.Context(), command, n.conf("1.1.0"))
				if out, err := cmd.Output(); err != nil {
					b.Fatalf("%v: %s", err, out)
				}
				cpu += cmd.ProcessState.UserTime() + cmd.ProcessState.SystemTime()
			}
			b.ReportMetric(float64(cpu.Microseconds())/float64(b.N), "cpu-µs/op")
		})
	}
}
