package supervisor

import (
	"context"
	"fmt"
	"net/http"
	"os"
	"path/filepath"

	"weft.dev/weft/lab/machine"
	"weft.dev/weft/lab/plan"
	"weft.dev/weft/lab/process"
)

// Folders of programs that are not the project's: Debian's containernetworking-plugins, and the original flanneld with its plugin, which
// the tests of internal/flannel build on first use.
const (
	debianPlugins  = "/usr/lib/cni"
	flannelCache   = "/var/cache/weft-lab/flannel"
	flanneldFile   = "flanneld-v0.28.9"
	originalPlugin = "flannel-plugin-v0.9.1"
	flanneldHealth = 8081
)

// conflist is cni-conf.json of flannel's manifest.
const conflist = `{"name":"cbr0","cniVersion":"0.3.1","plugins":[` +
	`{"type":"flannel","delegate":{"hairpinMode":true,"isDefaultGateway":true}},{"type":"portmap","capabilities":{"portMappings":true}}]}`

func netConf(l plan.Lab) string {
	return fmt.Sprintf(`{"Network":%q,"EnableNFTables":true,"Backend":{"Type":%q}}`, l.FlannelCIDR, l.Backend)
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
`, netConf(l), conflist)
}

// flannelAgent are the agent's flags for a flannel network.
func (s *Supervisor) flannelAgent() []string {
	if !s.lab.Network.Flannel() {
		return nil
	}
	return []string{"--flannel"}
}

// installFlannelPlugin puts the plugins of a flannel network where the runtime looks for them.
func (s *Supervisor) installFlannelPlugin(n plan.Node) error {
	if s.lab.RunsFlanneld(n.Name) {
		raw, err := os.ReadFile(filepath.Join(flannelCache, originalPlugin))
		if err != nil {
			return fmt.Errorf("install flannel's plugin on %s: %w (go test -tags real ./internal/flannel/plugin builds it)", n.Name, err)
		}
		if err := machine.WriteFile(filepath.Join(n.Dir, "root", "opt/cni/bin", "flannel"), raw, 0o755); err != nil {
			return err
		}
		return installBorrowed(n, "portmap", "bridge", "host-local")
	}
	raw, err := os.ReadFile(filepath.Join(s.lab.WeftBin, "weft-flannel"))
	if err != nil {
		return fmt.Errorf("install the plugin flannel on %s: %w (build it: go build -o BIN ./cmd/...)", n.Name, err)
	}
	if err := machine.WriteFile(filepath.Join(n.Dir, "root", "opt/cni/bin", "flannel"), raw, 0o755); err != nil {
		return err
	}
	return installBorrowed(n, "portmap")
}

// installBorrowed copies plugins of Debian's to a node.
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

// bringFlanneld runs the original flanneld on a node, and gives the runtime its configuration, as flannel's manifest does.
func (s *Supervisor) bringFlanneld(ctx context.Context, n plan.Node, kubeconfig string) error {
	conf := filepath.Join(n.Dir, "net-conf.json")
	if err := machine.WriteFile(conf, []byte(netConf(s.lab)), 0o644); err != nil {
		return err
	}
	space := s.space(n.Name)
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true, DialContext: space.Dial}}
	err := s.group.Start(ctx, process.Program{
		Name: n.Name + "/flanneld", Env: []string{"NODE_NAME=" + n.Name},
		Argv: space.Enter(filepath.Join(flannelCache, flanneldFile), "--kube-subnet-mgr", "--kubeconfig-file="+kubeconfig, "--net-config-path="+conf,
			"--iface="+uplink, "--ip-masq", fmt.Sprintf("--healthz-port=%d", flanneldHealth)),
		Ready: func(ctx context.Context) error {
			request, err := http.NewRequestWithContext(ctx, http.MethodGet, fmt.Sprintf("http://127.0.0.1:%d/readyz", flanneldHealth), nil)
			if err != nil {
				return err
			}
			answer, err := client.Do(request)
			if err != nil {
				return fmt.Errorf("flanneld of %s: %w", n.Name, err)
			}
			_ = answer.Body.Close()
			if answer.StatusCode != http.StatusOK {
				return fmt.Errorf("flanneld of %s is not ready: %s", n.Name, answer.Status)
			}
			return nil
		},
	})
	if err != nil {
		return err
	}
	return machine.WriteFile(filepath.Join(n.Dir, "root", "etc/cni/net.d", "10-flannel.conflist"), []byte(conflist), 0o644)
}
