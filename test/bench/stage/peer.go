package stage

import (
	"context"
	"fmt"
	"net"
	"os"
	"path/filepath"

	"weft.dev/weft/lab"
	"weft.dev/weft/lab/plan"
	"weft.dev/weft/lab/podruntime"
	"weft.dev/weft/lab/process"
)

// pluginDir is the directory of Debian's containernetworking-plugins.
const pluginDir = "/usr/lib/cni"

// bridgeConf is the peer's network in its cheapest form: without masquerading and port mappings, each of which would start further
// programs. The range has room for the curve.
const bridgeConf = `{
  "cniVersion": "1.0.0",
  "name": "peer",
  "plugins": [{
    "type": "bridge", "bridge": "cni0", "isGateway": true,
    "ipam": {"type": "host-local", "ranges": [[{"subnet": "10.244.0.0/20"}]], "routes": [{"dst": "0.0.0.0/0"}]}
  }]
}
`

// peer makes a node of the same kind as the lab's. Its network is Debian's bridge and host-local plugins, run by the same container
// runtime.
func (s *Stage) peer(ctx context.Context, name string) (Node, error) {
	place, space, err := s.space(ctx, name, []plan.Bind{
		{Target: "/etc/cni/net.d"}, {Target: "/opt/cni/bin"}, {Target: "/var/lib/cni"},
	})
	if err != nil {
		return Node{}, err
	}
	if err := installPeer(filepath.Join(place.Dir, "root")); err != nil {
		return Node{}, err
	}
	sock := filepath.Join(place.RunDir, filepath.Base(podruntime.Socket))
	err = s.group.Start(ctx, process.Program{
		Name: name + "/pods", Argv: space.Enter(s.self(), "pods"),
		Ready: func(ctx context.Context) error {
			c, err := new(net.Dialer).DialContext(ctx, "unix", sock)
			if err != nil {
				return fmt.Errorf("reach the pod runtime of %s: %w", name, err)
			}
			return c.Close()
		},
	})
	if err != nil {
		return Node{}, err
	}
	meter := Meter{parents: []int{s.group.Pid(name + "/pods")}}
	return Node{
		Node: lab.Node{Name: name, Netns: space.NetPath(), RunDir: place.RunDir, Dir: place.Dir, Space: space},
		cpu:  func(context.Context) (Meter, error) { return meter, nil },
	}, nil
}

func installPeer(dir string) error {
	for _, plugin := range []string{"bridge", "host-local"} {
		raw, err := os.ReadFile(filepath.Join(pluginDir, plugin))
		if err != nil {
			return fmt.Errorf("find the peer: %w (apt-get install --no-install-recommends containernetworking-plugins)", err)
		}
		if err := os.WriteFile(filepath.Join(dir, "opt/cni/bin", plugin), raw, 0o755); err != nil { //nolint:gosec // a program
			return fmt.Errorf("install the peer: %w", err)
		}
	}
	if err := os.WriteFile(filepath.Join(dir, "etc/cni/net.d", "10-peer.conflist"), []byte(bridgeConf), 0o600); err != nil {
		return fmt.Errorf("configure the peer: %w", err)
	}
	return nil
}
