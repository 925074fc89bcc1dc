//go:build real

package node_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/containernetworking/cni/libcni"
	"github.com/containernetworking/cni/pkg/invoke"
	"github.com/containernetworking/cni/pkg/version"
	"github.com/containernetworking/plugins/pkg/ns"

	"weft.dev/weft/internal/attach/lifecycle"
	"weft.dev/weft/internal/cni"
	"weft.dev/weft/internal/flannel/node"
)

// plugins execute the plugins of a list as the container runtime does: flannel's entry is the agent's, all others are programs on the node.
type plugins struct {
	version.PluginDecoder

	agent *lifecycle.Handler
	node  ns.NetNS
	// withPorts are the plugins that were executed for an ADD with host ports.
	withPorts []string
}

var _ invoke.Exec = (*plugins)(nil)

func (*plugins) FindInPath(plugin string, _ []string) (string, error) { return plugin, nil }

func (p *plugins) ExecPlugin(ctx context.Context, plugin string, stdin []byte, environ []string) ([]byte, error) {
	values := map[string]string{}
	for _, text := range environ {
		key, value, _ := strings.Cut(text, "=")
		values[key] = value
	}
	conf, err := cni.ParseNetConf(stdin)
	if err != nil {
		return nil, err
	}
	if values["CNI_COMMAND"] == string(cni.CommandAdd) && len(conf.RuntimeConfig.PortMappings) > 0 {
		p.withPorts = append(p.withPorts, plugin)
	}
	if plugin != "flannel" {
		var out, failed bytes.Buffer
		command := exec.CommandContext(ctx, "nsenter", "--net="+p.node.Path(), filepath.Join("/usr/lib/cni", plugin)) //nolint:gosec // the list's plugin
		command.Env, command.Stdin, command.Stdout, command.Stderr = environ, bytes.NewReader(stdin), &out, &failed
		if err := command.Run(); err != nil {
			return nil, fmt.Errorf("%s: %w: %s %s", plugin, err, out.String(), failed.String())
		}
		return out.Bytes(), nil
	}
	request := &cni.Request{
		Command: cni.Command(values["CNI_COMMAND"]), ContainerID: values["CNI_CONTAINERID"], IfName: values["CNI_IFNAME"], Netns: values["CNI_NETNS"],
		Args: cni.Args{PodNamespace: "default", PodName: values["CNI_CONTAINERID"]}, NetConf: conf,
	}
	if request.Command == cni.CommandDel {
		return nil, p.agent.Del(ctx, request)
	}
	result, err := p.agent.Add(ctx, request)
	if err != nil {
		return nil, err
	}
	var list struct{ CNIVersion string }
	if err := json.Unmarshal(stdin, &list); err != nil {
		return nil, err
	}
	converted, err := result.GetAsVersion(list.CNIVersion)
	if err != nil {
		return nil, err
	}
	return json.Marshal(converted)
}

// portmapRules returns how many pods have rules of portmap on a node.
func portmapRules(t *testing.T, at ns.NetNS) int {
	t.Helper()
	var out []byte
	err := at.Do(func(ns.NetNS) (err error) {
		out, err = exec.Command("iptables-save", "-t", "nat").CombinedOutput()
		return err
	})
	if err != nil {
		t.Fatal(err, string(out))
	}
	return strings.Count(string(out), ":CNI-DN-")
}

// weftRules reports whether a host port is in the agent's rules.
func weftRules(t *testing.T, at ns.NetNS, port string) bool {
	t.Helper()
	var out []byte
	err := at.Do(func(ns.NetNS) (err error) {
		out, err = exec.Command("nft", "list", "table", "inet", "weft-flannel").CombinedOutput()
		return err
	})
	if err != nil {
		t.Fatal(err, string(out))
	}
	return strings.Contains(string(out), port)
}

// TestHostPortsWithPortmap: a host port is served once, whatever cni-conf.json has beside flannel's plugin, in the runtime's configuration that
// the agent writes: by portmap if it has the capability, as in flannel's own manifest, else by the agent. A DEL leaves no rule of either.
func TestHostPortsWithPortmap(t *testing.T) {
	for name, c := range map[string]struct {
		beside string
		by     string
		agent  bool
	}{
		"flannel's own manifest":         {`,{"type":"portmap","capabilities":{"portMappings":true}}`, "portmap", false},
		"portmap without the capability": {`,{"type":"portmap"}`, "flannel", true},
		"no portmap":                     {"", "flannel", true},
	} {
		t.Run(name, func(t *testing.T) {
			s := newStage(t)
			outside := uplink(t, s.space)
			s.conf = fmt.Sprintf(`{"name":"cbr0","cniVersion":"0.3.1","plugins":[{"type":"flannel","dataDir":%q,"ipam":{"dataDir":%q},`+
				`"delegate":{"hairpinMode":true,"isDefaultGateway":true}}%s]}`, filepath.Join(s.dir, "flannel"), filepath.Join(s.dir, "networks"), c.beside)
			text, err := node.Conflist([]byte(s.conf))
			if err != nil {
				t.Fatal(err)
			}
			list, err := libcni.NetworkConfFromBytes(text)
			if err != nil {
				t.Fatal(err)
			}
			executed := &plugins{agent: serve(t, s), node: s.space}
			runtime := libcni.NewCNIConfigWithCacheDir([]string{"/usr/lib/cni"}, filepath.Join(s.dir, "cache"), executed)
			pod := space(t)
			conf := &libcni.RuntimeConf{
				ContainerID: "web", IfName: "eth0", NetNS: pod.Path(),
				CapabilityArgs: map[string]any{"portMappings": []map[string]any{{"hostPort": 8080, "containerPort": 80, "protocol": "tcp"}}},
			}
			if _, err := runtime.AddNetworkList(t.Context(), list, conf); err != nil {
				t.Fatal(err)
			}
			mirrors(t, pod, 80)
			for _, to := range []string{"192.0.2.1:8080", "[2001:db8::1]:8080"} {
				want := map[bool]string{true: "192.0.2.9", false: "2001:db8::9"}[netip.MustParseAddrPort(to).Addr().Is4()]
				if got, err := asks(outside, to, 10*time.Second); err != nil || got != want {
					t.Errorf("%s: the pod sees %q, %v, want %s", to, got, err, want)
				}
			}
			if !slices.Equal(executed.withPorts, []string{c.by}) {
				t.Errorf("host ports were passed to %q, want %s", executed.withPorts, c.by)
			}
			if agent, portmap := weftRules(t, s.space, "8080"), portmapRules(t, s.space); agent != c.agent || (portmap == 1) == c.agent {
				t.Errorf("rules of the agent: %t, of portmap: %d", agent, portmap)
			}
			if err := runtime.DelNetworkList(t.Context(), list, conf); err != nil {
				t.Fatal(err)
			}
			if agent, portmap := weftRules(t, s.space, "8080"), portmapRules(t, s.space); agent || portmap > 0 {
				t.Errorf("after DEL, rules of the agent: %t, of portmap: %d", agent, portmap)
			}
			if _, err := asks(outside, "192.0.2.1:8080", time.Second); err == nil {
				t.Error("after DEL, the host port answers")
			}
		})
	}
}

// TestPortmapNeedsItsPorts: portmap's DEL without host ports leaves its rules. Therefore the runtime's configuration passes them to portmap as
// long as cni-conf.json does: the pods for which it made rules, such as those taken over from flannel's plugin, need it at their DEL.
func TestPortmapNeedsItsPorts(t *testing.T) {
	s := newStage(t)
	_ = uplink(t, s.space)
	executed := &plugins{agent: serve(t, s), node: s.space}
	runtime := libcni.NewCNIConfigWithCacheDir([]string{"/usr/lib/cni"}, filepath.Join(s.dir, "cache"), executed)
	lists := map[bool]*libcni.NetworkConfigList{}
	for with, capability := range map[bool]string{true: `,"capabilities":{"portMappings":true}`, false: ""} {
		text := strings.Replace(s.conf, `]}`, `,{"type":"portmap"`+capability+`}]}`, 1)
		list, err := libcni.NetworkConfFromBytes([]byte(text))
		if err != nil {
			t.Fatal(err)
		}
		lists[with] = list
	}
	pods := map[bool]*libcni.RuntimeConf{}
	for with := range maps.Keys(lists) {
		pods[with] = &libcni.RuntimeConf{
			ContainerID: fmt.Sprint("web-", with), IfName: "eth0", NetNS: space(t).Path(),
			CapabilityArgs: map[string]any{"portMappings": []map[string]any{{"hostPort": 8080 + len(pods), "containerPort": 80, "protocol": "tcp"}}},
		}
		if _, err := runtime.AddNetworkList(t.Context(), lists[true], pods[with]); err != nil {
			t.Fatal(err)
		}
	}
	if err := errors.Join(runtime.DelNetworkList(t.Context(), lists[true], pods[true]), runtime.DelNetworkList(t.Context(), lists[false], pods[false])); err != nil {
		t.Fatal(err)
	}
	if left := portmapRules(t, s.space); left != 1 {
		t.Errorf("portmap left the rules of %d pods, want those of the one that was removed without its ports", left)
	}
}
