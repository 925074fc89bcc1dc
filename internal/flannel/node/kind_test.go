package node

import (
	"slices"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"

	"weft.dev/weft/internal/flannel/cluster"
)

// The network's presence names the ports of its tunnels, also while its configuration is invalid.
func TestPresenceNamesTunnelPorts(t *testing.T) {
	for text, want := range map[string][]uint16{
		`{"Network": "10.244.0.0/16", "Backend": {"Type": "vxlan", "Port": 8473}}`: {8473},
		`{"Network": 7}`: {8472},
		`{"Network": "10.244.0.0/16", "Backend": {"Type": "host-gw"}}`: nil,
	} {
		config := &corev1.ConfigMap{
			ObjectMeta: metav1.ObjectMeta{Namespace: cluster.Namespaces()[0], Name: cluster.ConfigMap}, Data: map[string]string{cluster.KeyNet: text},
		}
		p, err := present(t.Context(), fake.NewClientBuilder().WithObjects(config).Build())
		if err != nil || !p.Present || !slices.Equal(p.TunnelPorts, want) {
			t.Errorf("%s: %+v, %v, want the ports %v", text, p, err, want)
		}
	}
}
