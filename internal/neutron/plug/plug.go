// Package plug is the interface between KubeStack's provider and the plug-ins that connect a pod to a switch. Plug-ins are chosen by name,
// in kubestack.conf.
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

// Pod is a pod that a plug-in connects.
type Pod struct {
	Name      string
	Namespace string
	Port      Port
	// NetNS is the path of the pod's network namespace; "" for runtimes whose pods have none that can be entered: the plug-in then creates
	// only the host's side.
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
	// Setup connects a pod. Calling it again for the same port is harmless. made reports that the pod was not connected before the call. If
	// Setup fails, it removes what it created, and nothing of a pod that was connected before.
	Setup(ctx context.Context, pod Pod) (made bool, err error)
	// Teardown removes what Setup created for a port, also if incomplete; it is no error if there is nothing.
	Teardown(ctx context.Context, portID string) error
	// Close releases the plug-in's resources. Pods stay connected.
	Close()
}

// Factory opens a plug-in for the integration bridge with that name.
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
