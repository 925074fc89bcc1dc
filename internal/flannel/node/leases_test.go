package node

import (
	"context"
	"errors"
	"log/slog"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	clientset "k8s.io/client-go/kubernetes/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"

	"weft.dev/weft/internal/flannel/cluster"
	"weft.dev/weft/internal/flannel/daemon"
	"weft.dev/weft/internal/flannel/lease"
	"weft.dev/weft/internal/flannel/netconf"
	"weft.dev/weft/internal/testwait"
)

// TestInvalidConfigurationLater: when a valid net-conf.json is replaced by an invalid one, the daemon goes on with the valid one, so that other
// nodes' leases are followed.
func TestInvalidConfigurationLater(t *testing.T) {
	config := &corev1.ConfigMap{
		ObjectMeta: metav1.ObjectMeta{Namespace: cluster.Namespaces()[0], Name: cluster.ConfigMap},
		Data:       map[string]string{cluster.KeyNet: `{"Network":"10.244.0.0/16","Backend":{"Type":"vxlan"}}`},
	}
	objects := fake.NewClientBuilder().WithObjects(config).Build()
	keys, err := lease.NewKeys(lease.DefaultPrefix)
	if err != nil {
		t.Fatal(err)
	}
	log := &testwait.Log{}
	l := &daemonLeases{flags: &netconf.Flags{}, log: slog.New(slog.NewTextHandler(log, nil)), objects: objects, changed: make(chan struct{}, 1)}
	l.store = l.newStore(clientset.NewClientset(), "n1", keys)
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- l.Run(ctx, func(daemon.State) {}) }()
	defer func() {
		cancel()
		if err := <-ended; !errors.Is(err, context.Canceled) {
			t.Error(err)
		}
	}()
	// There is no Node: a daemon that has its configuration waits for it.
	waits := func(daemons int) func() error {
		return func() error {
			if text := log.String(); strings.Count(text, "waiting for this node's object") < daemons {
				return errors.New(text)
			}
			return nil
		}
	}
	testwait.Eventually(t, "the daemon has the configuration", waits(1))
	for i, invalid := range []string{
		`{"Network":"10.244.0.0/16","Backend":{"Type":"vxlam"}}`,
		`{"Network":"10.244.0.0/16","EnableIPv6":true,"IPv6Network":"fd00:244::/48","Backend":{"Type":"ipip"}}`, // no node can serve it
	} {
		config.Data[cluster.KeyNet] = invalid
		if err := objects.Update(ctx, config); err != nil {
			t.Fatal(err)
		}
		l.changed <- struct{}{}
		testwait.Eventually(t, "the daemon goes on with the former configuration", waits(2+i))
	}
	if text := log.String(); strings.Count(text, "the former one stays in effect") < 2 || strings.Contains(text, "no lease of this node is in effect") {
		t.Error(text)
	}
}
