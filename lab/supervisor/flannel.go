package supervisor

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"slices"

	"golang.org/x/sync/errgroup"

	"weft.dev/weft/lab/controlplane"
	"weft.dev/weft/lab/flannelbuild"
	"weft.dev/weft/lab/machine"
	"weft.dev/weft/lab/plan"
	"weft.dev/weft/lab/process"
)

const (
	debianPlugins  = "/usr/lib/cni" // of Debian's containernetworking-plugins
	flanneldHealth = 8081
)

// missingFlannel returns the original programs that have not been built, for a lab with nodes that run them in place of Weft.
func missingFlannel(l plan.Lab) []flannelbuild.Program {
	if !slices.ContainsFunc(l.AllNodes(), func(n plan.Node) bool { return l.RunsFlanneld(n.Name) }) {
		return nil
	}
	programs := []flannelbuild.Program{flannelbuild.Flanneld(), flannelbuild.Plugin()}
	return slices.DeleteFunc(programs, func(p flannelbuild.Program) bool { return !p.Missing() })
}

// conflist is cni-conf.json of flannel's manifest; without portmap, flannel's entry has its capability.
func conflist(l plan.Lab) string {
	const head, delegate, ports = `{"name":"cbr0","cniVersion":"0.3.1","plugins":[{"type":"flannel",`,
		`"delegate":{"hairpinMode":true,"isDefaultGateway":true}`, `"capabilities":{"portMappings":true}`
	if l.NoPortmap {
		return head + ports + "," + delegate + `}]}`
	}
	return head + delegate + `},{"type":"portmap",` + ports + `}]}`
}

func netConf(l plan.Lab) string {
	six := ""
	if l.DualStack {
		six = fmt.Sprintf(`"EnableIPv6":true,"IPv6Network":%q,`, l.IPv6.Flannel)
	}
	return fmt.Sprintf(`{"Network":%q,%s"EnableNFTables":true,"Backend":{"Type":%q}}`, l.FlannelCIDR, six, l.Backend)
}

// flannelConfig is the ConfigMap of flannel's manifest.
func flannelConfig(l plan.Lab) string {
	return fmt.Sprintf(`apiVersion: v1
kind: ConfigMap
metadata:
  name: kube-flannel-cfg
  namespace: kube-system
data:
  net-conf.json: '%s'
  cni-conf.json: '%s'
`, netConf(l), conflist(l))
}

// flannelAgent are the agent's flags for a flannel network.
func flannelAgent(l plan.Lab) []string {
	if !l.Network.Flannel() {
		return nil
	}
	return []string{"--flannel"}
}

// installFlannelPlugin installs the plugins of a flannel network in the runtime's directory.
func installFlannelPlugin(l plan.Lab, n plan.Node) error {
	if l.RunsFlanneld(n.Name) {
		raw, err := os.ReadFile(flannelbuild.Plugin().Path())
		if err != nil {
			return fmt.Errorf("install flannel's plugin on %s: %w", n.Name, err)
		}
		if err := machine.WriteFile(filepath.Join(n.Dir, "root", "opt/cni/bin", "flannel"), raw, 0o755); err != nil {
			return err
		}
		return installBorrowed(n, "portmap", "bridge", "host-local")
	}
	raw, err := os.ReadFile(filepath.Join(l.WeftBin, "weft-flannel"))
	if err != nil {
		return fmt.Errorf("install the plugin flannel on %s: %w (build it: go build -o BIN ./cmd/...)", n.Name, err)
	}
	if err := machine.WriteFile(filepath.Join(n.Dir, "root", "opt/cni/bin", "flannel"), raw, 0o755); err != nil {
		return err
	}
	if l.FlannelStore == plan.StoreEtcd { // without an agent, the plugin executes its delegate itself
		return installBorrowed(n, "portmap", "bridge", "host-local")
	}
	return installBorrowed(n, "portmap")
}

// installBorrowed copies Debian's plugins to a node.
func installBorrowed(n plan.Node, names ...string) error {
	for _, name := range names {
		raw, err := os.ReadFile(filepath.Join(debianPlugins, name))
		if err != nil {
			return fmt.Errorf("install the plugin %s on %s: %w (apt-get install containernetworking-plugins)", name, n.Name, err)
		}
		if err := machine.WriteFile(filepath.Join(n.Dir, "root", "opt/cni/bin", name), raw, 0o755); err != nil {
			return err
		}
	}
	return nil
}

// flannel starts flannel's daemons, and the etcd for their leases.
type flannel struct {
	lab    plan.Lab
	group  *process.Group
	spaces *spaces
	plane  *controlplane.Plane
}

// leasesKey is the key where flannel's daemons expect the configuration of the network.
const leasesKey = "/coreos.com/network/config"

// startLeases starts the etcd for leases, with the configuration of the network in it.
func (f flannel) startLeases(ctx context.Context) error {
	if err := f.group.Start(ctx, f.plane.Leases()); err != nil {
		return err
	}
	body, err := json.Marshal(map[string][]byte{"key": []byte(leasesKey), "value": []byte(netConf(f.lab))}) // etcd's JSON gateway has base64, as this
	if err != nil {
		return fmt.Errorf("encode flannel's configuration: %w", err)
	}
	request, err := http.NewRequestWithContext(ctx, http.MethodPost, f.plane.LeasesURL()+"/v3/kv/put", bytes.NewReader(body))
	if err != nil {
		return fmt.Errorf("put flannel's configuration into etcd: %w", err)
	}
	space := f.spaces.of(partControl)
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true, DialContext: space.Dial}}
	answer, err := client.Do(request)
	if err != nil {
		return fmt.Errorf("put flannel's configuration into etcd: %w", err)
	}
	defer func() { _ = answer.Body.Close() }()
	if answer.StatusCode != http.StatusOK {
		return fmt.Errorf("put flannel's configuration into etcd: %s", answer.Status)
	}
	return nil
}

// startDaemons runs flannel's daemon on every node, Weft's or the original, with leases in etcd.
func (f flannel) startDaemons(ctx context.Context) error {
	var g errgroup.Group
	for _, n := range f.lab.AllNodes() {
		argv, name := []string{filepath.Join(f.lab.WeftBin, "weft"), "flanneld"}, n.Name+"/weft-flanneld"
		if f.lab.RunsFlanneld(n.Name) {
			argv, name = []string{flannelbuild.Flanneld().Path()}, n.Name+"/flanneld"
		}
		argv = append(argv, "--etcd-endpoints="+f.plane.LeasesURL())
		g.Go(func() error { return f.startDaemon(ctx, n, name, argv) })
	}
	return g.Wait()
}

// startOriginal runs the original flanneld on a node, with leases in Kubernetes.
func (f flannel) startOriginal(ctx context.Context, n plan.Node) error {
	conf := filepath.Join(n.Dir, "net-conf.json")
	if err := machine.WriteFile(conf, []byte(netConf(f.lab)), 0o644); err != nil {
		return err
	}
	return f.startDaemon(ctx, n, n.Name+"/flanneld", []string{
		flannelbuild.Flanneld().Path(), "--kube-subnet-mgr", "--kubeconfig-file=" + f.plane.KubeconfigOf(controlplane.Weft), "--net-config-path=" + conf,
	})
}

// startDaemon runs a flannel daemon on a node until it is ready, and writes the runtime's configuration, as flannel's manifest does.
func (f flannel) startDaemon(ctx context.Context, n plan.Node, name string, argv []string) error {
	space := f.spaces.of(n.Name)
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true, DialContext: space.Dial}}
	err := f.group.Start(ctx, process.Program{
		Name: name, Env: []string{"NODE_NAME=" + n.Name},
		Argv: space.Enter(append(argv, "--iface="+uplink, "--ip-masq", fmt.Sprintf("--healthz-port=%d", flanneldHealth))...),
		Ready: func(ctx context.Context) error {
			request, err := http.NewRequestWithContext(ctx, http.MethodGet, fmt.Sprintf("http://127.0.0.1:%d/readyz", flanneldHealth), nil)
			if err != nil {
				return err
			}
			answer, err := client.Do(request)
			if err != nil {
				return fmt.Errorf("%s: %w", name, err)
			}
			_ = answer.Body.Close()
			if answer.StatusCode != http.StatusOK {
				return fmt.Errorf("%s is not ready: %s", name, answer.Status)
			}
			return nil
		},
	})
	if err != nil {
		return err
	}
	return machine.WriteFile(filepath.Join(n.Dir, "root", "etc/cni/net.d", "10-flannel.conflist"), []byte(conflist(f.lab)), 0o644)
}
