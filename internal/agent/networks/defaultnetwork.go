package networks

import (
	"errors"
	"fmt"

	"weft.dev/weft/internal/network"
	"weft.dev/weft/internal/overlay"
	"weft.dev/weft/internal/placement"
)

// serving returns the names of the networks that are present, the overlay first.
func (n *Networks) serving() []string {
	var names []string
	n.mu.Lock()
	if n.home.Present || len(n.kinds) == 0 {
		names = append(names, overlay.NetworkName)
	}
	n.mu.Unlock()
	for _, k := range n.kinds {
		if presence, running, _ := k.state(); presence.Present || running {
			names = append(names, k.Name)
		}
	}
	return names
}

// Default returns the name of the default network and the reason; "" if there is none.
func (n *Networks) Default() (name, reason string) {
	if len(n.kinds) == 0 {
		return overlay.NetworkName, "it is the only network"
	}
	n.mu.Lock()
	home := n.home
	n.mu.Unlock()
	all := []struct {
		name string
		network.Presence
	}{{overlay.NetworkName, home}}
	for _, k := range n.kinds {
		presence, _, _ := k.state()
		all = append(all, struct {
			name string
			network.Presence
		}{k.Name, presence})
	}
	for _, p := range all {
		if p.Present && p.Default {
			return p.name, p.Why + " has annotation " + placement.AnnotationDefault
		}
	}
	for _, p := range all {
		if p.Present && p.Cluster {
			return p.name, "it is the cluster's default network (" + p.Why + ")"
		}
	}
	return "", ""
}

// Decided returns nil once the presence of every network is known.
func (n *Networks) Decided() error {
	if len(n.kinds) == 0 {
		return nil
	}
	var unknown []error
	n.mu.Lock()
	if !n.known {
		unknown = append(unknown, fmt.Errorf("network %s: the API server has not sent the list of ClusterNetworks yet", overlay.NetworkName))
	}
	n.mu.Unlock()
	for _, k := range n.kinds {
		if err := k.decided(); err != nil {
			unknown = append(unknown, err)
		}
	}
	if len(unknown) > 0 {
		return fmt.Errorf("the API server has not reported yet which networks are configured: %w", errors.Join(unknown...))
	}
	return nil
}

// Problems returns why networks that are present cannot serve pods, except for the default network.
func (n *Networks) Problems() error {
	standard, _ := n.Default()
	var errs []error
	for _, k := range n.kinds {
		presence, running, err := k.state()
		if err != nil && k.Name != standard && (presence.Present || running) {
			errs = append(errs, fmt.Errorf("network %s: %w", k.Name, err))
		}
	}
	return errors.Join(errs...)
}

// Ready returns nil if the default network can serve pods.
func (n *Networks) Ready() error {
	standard, _ := n.Default()
	for _, k := range n.kinds {
		if k.Name == standard {
			_, _, err := k.state()
			return err
		}
	}
	return n.options.Overlay.Ready()
}
