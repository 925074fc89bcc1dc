// Package kubenode defines the programs of a node with a kubelet: containerd, kubelet, kube-proxy. All paths are the usual ones, within
// the node.
package kubenode

import (
	"context"
	"fmt"
	"net/netip"
	"path/filepath"

	"sigs.k8s.io/yaml"

	"weft.dev/weft/lab/addon"
	"weft.dev/weft/lab/controlplane"
	"weft.dev/weft/lab/ground"
	"weft.dev/weft/lab/machine"
	"weft.dev/weft/lab/plan"
	"weft.dev/weft/lab/process"
)

// Pause is the sandbox image of every pod.
const Pause = "weft.local/pause:1"

const socket = "/run/containerd/containerd.sock"

// Node is a node with a kubelet.
type Node struct {
	plan.Node
	Space ground.Space
	Group *process.Group
	Plane *controlplane.Plane
}

// containerdConfig is for containerd 1.6 (version 2 of the format). The opt plugin has another directory because the default,
// /opt/containerd, would be made on the machine.
const containerdConfig = `version = 2
root = "/var/lib/containerd"
state = "/run/containerd"
[grpc]
  address = "` + socket + `"
[plugins."io.containerd.internal.v1.opt"]
  path = "/var/lib/containerd/opt"
[plugins."io.containerd.grpc.v1.cri"]
  sandbox_image = "` + Pause + `"
  disable_apparmor = true
  restrict_oom_score_adj = true
  [plugins."io.containerd.grpc.v1.cri".cni]
    bin_dir = "/opt/cni/bin"
    conf_dir = "/etc/cni/net.d"
  [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc]
    runtime_type = "io.containerd.runc.v2"
  [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc.options]
    SystemdCgroup = false
`

// Containerd is the node's container runtime.
func (n Node) Containerd() (process.Program, error) {
	path := filepath.Join(n.Dir, "containerd.toml")
	if err := machine.WriteFile(path, []byte(containerdConfig), 0o644); err != nil {
		return process.Program{}, err
	}
	return process.Program{
		Name: n.Name + "/containerd", Argv: n.Space.Enter("containerd", "-c", path),
		Ready: func(ctx context.Context) error {
			_, err := n.Group.Run(ctx, "", n.Space.Enter("ctr", "--connect-timeout=1s", "version")...)
			return err
		},
	}, nil
}

// Import loads an image archive into the node's containerd.
func (n Node) Import(ctx context.Context, archive string) error {
	if _, err := n.Group.Run(ctx, "", n.Space.Enter("ctr", "-n", "k8s.io", "images", "import", archive)...); err != nil {
		return fmt.Errorf("load %s on %s: %w", filepath.Base(archive), n.Name, err)
	}
	return nil
}

type fields = map[string]any

// Kubelet is the node's kubelet. Its pods' cgroups are below the lab's, so that two kubelets never see each other's pods.
func (n Node) Kubelet() (process.Program, error) {
	if err := machine.MakeCgroups(n.Cgroup); err != nil {
		return process.Program{}, err
	}
	file := n.Plane.CA.Path
	id := controlplane.Kubelet(n.Node)
	config, err := n.write("kubelet.yaml", fields{
		"apiVersion": "kubelet.config.k8s.io/v1beta1", "kind": "KubeletConfiguration",
		"cgroupDriver": "cgroupfs", "cgroupRoot": "/" + n.Cgroup, "cgroupsPerQOS": true, "enforceNodeAllocatable": []string{},
		"failSwapOn": false, "failCgroupV1": false, "localStorageCapacityIsolation": false, "makeIPTablesUtilChains": false,
		"authentication": fields{
			"anonymous": fields{"enabled": false}, "webhook": fields{"enabled": true}, "x509": fields{"clientCAFile": n.Plane.CA.CAFile()},
		},
		"authorization": fields{"mode": "Webhook"},
		"tlsCertFile":   file(id + ".crt"), "tlsPrivateKeyFile": file(id + ".key"),
		"containerRuntimeEndpoint": "unix://" + socket, "volumePluginDir": "/var/lib/kubelet/volume-plugins",
		"clusterDNS": []string{addon.DNSAddress().String()}, "clusterDomain": "cluster.local", "resolvConf": "", "serializeImagePulls": false,
		"evictionHard":                fields{"memory.available": "50Mi", "nodefs.available": "1%", "imagefs.available": "1%"},
		"imageGCHighThresholdPercent": 100,
		"nodeStatusUpdateFrequency":   "5s",
		"syncFrequency":               "10s",
	})
	if err != nil {
		return process.Program{}, err
	}
	return process.Program{Name: n.Name + "/kubelet", Argv: n.Space.Enter(
		filepath.Join(n.Plane.Bin, "kubelet"), "--kubeconfig="+n.Plane.KubeconfigOf(id), "--config="+config,
		"--hostname-override="+n.Name, "--node-ip="+n.IP.String(),
	)}, nil
}

// Proxy is the node's kube-proxy. It does not change conntrack's limits: a namespace may not set them.
func (n Node) Proxy() (process.Program, error) {
	config, err := n.write("kube-proxy.yaml", fields{
		"apiVersion": "kubeproxy.config.k8s.io/v1alpha1", "kind": "KubeProxyConfiguration",
		"mode": "nftables", "hostnameOverride": n.Name, "clusterCIDR": n.proxied().String(),
		"clientConnection":   fields{"kubeconfig": n.Plane.KubeconfigOf(controlplane.Proxy)},
		"conntrack":          fields{"maxPerCore": 0, "min": 0, "tcpEstablishedTimeout": "0s", "tcpCloseWaitTimeout": "0s"},
		"metricsBindAddress": "127.0.0.1:10249",
	})
	if err != nil {
		return process.Program{}, err
	}
	return process.Program{Name: n.Name + "/kube-proxy", Argv: n.Space.Enter(filepath.Join(n.Plane.Bin, "kube-proxy"), "--config="+config)}, nil
}

// proxied is the range of the pods whose connections to Services are handled by kube-proxy, which masquerades those of all other sources.
// For the overlay's pods, the switch handles Services.
func (n Node) proxied() netip.Prefix {
	if n.Plane.Lab.Network == plan.NetworkBoth {
		return n.Plane.Lab.FlannelCIDR
	}
	return n.Plane.Lab.ClusterCIDR
}

func (n Node) write(name string, doc fields) (string, error) {
	raw, err := yaml.Marshal(doc)
	if err != nil {
		return "", fmt.Errorf("encode %s of %s: %w", name, n.Name, err)
	}
	path := filepath.Join(n.Dir, name)
	return path, machine.WriteFile(path, raw, 0o600)
}
