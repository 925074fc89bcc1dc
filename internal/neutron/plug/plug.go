// Package plug is the seam between KubeStack's provider and what plugs a pod into a switch. Plug-ins are chosen by name, in
// kubestack.conf.
package plug

import (
	"context"
	"fmt"
	"maps"
	"net"
	"net/netip"
	"slices"
	"strings"
)

// Pod is what a plug-in connects.
type Pod struct {
	Name      string
	Namespace string
	Port      Port
	// NetNS is the path of the pod's network namespace; "" for runtimes whose pods have none to be entered: the plug-in then
	// makes only the host's side.
	NetNS string
}

// Port is the Neutron port of a pod.
type Port struct {
	ID      string // UUID
	MAC     net.HardwareAddr
	Addrs   []netip.Prefix
	Gateway netip.Addr // zero: none
	MTU     int
}

// Plugin connects pods. Calls for one port do not overlap.
type Plugin interface {
	// Setup connects a pod. Calling it again for the same port is harmless. When it fails, nothing of it is left.
	Setup(ctx context.Context, pod Pod) error
	// Teardown removes what Setup made for a port, also when that was not all; it is no error if there is nothing.
	Teardown(ctx context.Context, portID string) error
	// Close ends what the plug-in holds open. Pods stay connected.
	Close()
}

// Factory opens a plug-in for the integration bridge of that name.
type Factory func(ctx context.Context, bridge string) (Plugin, error)

// Registry is the plug-ins by their names.
type Registry map[string]Factory

// Open opens the plug-in of that name.
func (r Registry) Open(ctx context.Context, name, bridge string) (Plugin, error) {
	factory, ok := r[name]
	if !ok {
		known := strings.Join(slices.Sorted(maps.Keys(r)), ", ")
		return nil, fmt.Errorf("[Plugin] plugin-name: %q is unknown: use one of %s", name, known)
	}
	return factory(ctx, bridge)
}
