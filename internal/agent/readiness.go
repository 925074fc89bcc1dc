package agent

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"sync"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"weft.dev/weft/internal/agent/cniconf"
	"weft.dev/weft/internal/agent/engines"
	"weft.dev/weft/internal/agent/networks"
	"weft.dev/weft/internal/network"
	"weft.dev/weft/internal/overlay"
	"weft.dev/weft/internal/steps"
)

// readiness reports to the container runtime and the cluster that pods can be attached: by the runtime's configuration, which is that of
// the default network, and by the Node's condition.
type readiness struct {
	clients  kubernetes.Interface
	node     string
	log      *slog.Logger
	networks *networks.Networks
	// conf is the configuration of the overlay, and overlay reports whether the overlay can serve.
	conf    cniconf.File
	overlay func() bool

	// mu guards what follows. It is held while the runtime's configuration is written.
	mu sync.Mutex
	// name and data are the runtime's configuration that was written last, empty before pods are served.
	name string
	data []byte
	// early is the node as read at the start; nil: it is not read.
	early <-chan *corev1.Node
}

// write writes a network's configuration as the node's. From then on, restore keeps it.
func (r *readiness) write(name string, data []byte) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if _, err := cniconf.Write(filepath.Join(r.conf.Dir, name), data); err != nil {
		return err
	}
	r.name, r.data = name, data
	return nil
}

// restore writes the configuration of that name again if it is the node's and is not as it was written, and returns its path then.
func (r *readiness) restore(name string) (put string, err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.name != name {
		return "", nil
	}
	path := filepath.Join(r.conf.Dir, name)
	if written, err := cniconf.Write(path, r.data); !written {
		return "", err
	}
	return path, nil
}

// configure writes the runtime's configuration and the node's condition for the default network, if that is not the overlay, or
// if it becomes the overlay again.
func (r *readiness) configure(ctx context.Context, e *engines.Engines) error {
	return steps.Keep(ctx, r.log, r.networks.Changed(), "the runtime's configuration", func() error {
		if r.networks.Decided() != nil {
			return nil //nolint:nilerr // pods could not be placed yet; what is decided wakes this
		}
		standard, _ := r.networks.Default()
		if standard == overlay.NetworkName && r.overlay() {
			return r.configureOverlay(ctx, e)
		}
		conf, brings := r.networks.Configurations()[standard]
		if !brings || !r.networks.CanServe(standard) {
			return nil // there is none, it brings no configuration, or it wakes this once it can serve
		}
		return r.configureKind(ctx, e, standard, conf)
	})
}

// configureKind writes a network's configuration as the node's.
func (r *readiness) configureKind(ctx context.Context, e *engines.Engines, name string, conf network.Conflist) error {
	data, err := conf.Content()
	if err != nil {
		return fmt.Errorf("CNI configuration of network %s: %w", name, err)
	}
	if err := r.write(conf.Name, data); err != nil {
		return err
	}
	if err := r.withdrawConf(conf.Name); err != nil {
		return err
	}
	return r.ready(ctx, e.Kernel.Firewall.Warning())
}

// configureOverlay writes the overlay's configuration as the node's.
func (r *readiness) configureOverlay(ctx context.Context, e *engines.Engines) error {
	if err := r.writeOverlay(); err != nil {
		return err
	}
	if err := r.withdrawConf(cniconf.Name); err != nil {
		return err
	}
	return r.ready(ctx, e.Kernel.Firewall.Warning())
}

// overlayReady writes the overlay's configuration and the node's condition.
func (r *readiness) overlayReady(ctx context.Context, warning string) error {
	if err := r.writeOverlay(); err != nil {
		return err
	}
	return r.ready(ctx, warning)
}

func (r *readiness) writeOverlay() error {
	data, err := r.conf.Content()
	if err != nil {
		return err
	}
	return r.write(cniconf.Name, data)
}

// withdrawConf removes the configurations that the agent wrote for other networks, because a node has only one. A file of the same name
// with other content belongs to another program, and stays.
func (r *readiness) withdrawConf(now string) error {
	mine, err := r.conf.Content()
	if err != nil {
		return err
	}
	written := map[string][]byte{cniconf.Name: mine}
	for _, conf := range r.networks.Configurations() {
		if data, err := conf.Content(); err == nil {
			written[conf.Name] = data
		}
	}
	for name, data := range written {
		path := filepath.Join(r.conf.Dir, name)
		if name == now || !cniconf.IsThere(path, data) {
			continue
		}
		if err := os.Remove(path); err != nil {
			return fmt.Errorf("CNI configuration of a network that is not the default: %w", err)
		}
	}
	return nil
}

// ready sets the node's condition to ready.
func (r *readiness) ready(ctx context.Context, warning string) error {
	want := readyCondition(warning)
	if early := r.takeEarly(); early != nil {
		if node := <-early; node != nil && hasCondition(node, want) {
			return nil
		}
	}
	return report(ctx, r.clients, r.node, want)
}

// lookAhead returns the program that reads the node while the agent starts, for the first report: after a restart the condition is already so,
// and the agent is ready without another request.
func (r *readiness) lookAhead(ctx context.Context) func() error {
	early := make(chan *corev1.Node, 1)
	r.mu.Lock()
	r.early = early
	r.mu.Unlock()
	return func() error {
		defer close(early)
		ctx, cancel := context.WithTimeout(ctx, reportTimeout)
		defer cancel()
		if node, err := r.clients.CoreV1().Nodes().Get(ctx, r.node, metav1.GetOptions{}); err == nil { // the report returns the error
			early <- node
		}
		return nil
	}
}

// takeEarly returns what lookAhead reads, once: any report outdates it.
func (r *readiness) takeEarly() <-chan *corev1.Node {
	r.mu.Lock()
	defer r.mu.Unlock()
	early := r.early
	r.early = nil
	return early
}

// notReady sets the node's condition while nothing is served yet, and reports whether that worked. A node that already serves pods continues
// with its state.
func (r *readiness) notReady(ctx context.Context, why error) bool {
	r.takeEarly()
	err := reportNotReady(ctx, r.clients, r.node, why)
	if err != nil && ctx.Err() == nil {
		r.log.Warn("reporting to the API server failed", "error", err)
	}
	return err == nil
}
