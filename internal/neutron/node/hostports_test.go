package node

import (
	"strings"
	"testing"

	"weft.dev/weft/internal/cni"
	"weft.dev/weft/internal/node"
)

// A host port that is reserved, or invalid, is refused with the pod's name.
func TestHostPortsRefused(t *testing.T) {
	n := &Network{node: &node.Node{Reserved: func(port cni.HostPort) string {
		if port.Port == 9 {
			return "the probes of other nodes"
		}
		return ""
	}}}
	request := func(mapping cni.PortMapping) *cni.Request {
		r := &cni.Request{Args: cni.Args{PodNamespace: "shop", PodName: "web"}, NetConf: &cni.NetConf{}}
		r.NetConf.RuntimeConfig.PortMappings = []cni.PortMapping{mapping}
		return r
	}
	for words, mapping := range map[string]cni.PortMapping{
		"reserved for the probes of other nodes": {HostPort: 9, ContainerPort: 80},
		"portMappings[0].containerPort":          {HostPort: 8080},
		"portMappings[0].hostIP":                 {HostPort: 8080, ContainerPort: 80, HostIP: "fd00::1"},
	} {
		_, err := n.hostPorts(request(mapping))
		if err == nil || !strings.Contains(err.Error(), words) || !strings.Contains(err.Error(), "pod shop/web") {
			t.Errorf("%+v: %v, want %q", mapping, err, words)
		}
	}
	ports, err := n.hostPorts(request(cni.PortMapping{HostPort: 8080, ContainerPort: 80, HostIP: "0.0.0.0"}))
	if err != nil || len(ports) != 1 || ports[0] != (cni.HostPort{Port: 8080, Protocol: "tcp", ContainerPort: 80}) {
		t.Errorf("host ports %v, %v", ports, err)
	}
}
