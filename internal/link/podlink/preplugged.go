package podlink

import (
	"context"
	"errors"
	"strings"

	"weft.dev/weft/internal/link"
)

// Preplugged is a pre-plugged port: a veth pair that is created before its pod and outlives it. It has the host veth, which is a port of the
// switch, and the veth peer (far, in this package), of the same name, in a separate namespace. A pod's interface on it is a macvlan of the
// veth peer. When a link changes, a switch iterates over all its ports; when a pod is added or removed this way, no link of the switch
// changes.
//
// The macvlan's mode is passthru: the kernel allows only one such macvlan per device. So nothing that a former pod has kept can be on a
// port together with the next pod's interface.
type Preplugged struct {
	// Name is the name of both ends; it must pass ValidateName, also with "-in" appended.
	Name string
	// MTU of both ends in bytes; 0 is the kernel's default, 1500.
	MTU int
	// HostGroup is as in Pair.
	HostGroup uint32
	// TxOffloadOff is as in Pair, for the veth peer.
	TxOffloadOff bool
}

// PrepluggedPort is the state of a pre-plugged port.
type PrepluggedPort struct {
	// MTU is the host veth's, in bytes.
	MTU int
	// TxOffloadOff reports whether transmit offloads are off on the veth peer.
	TxOffloadOff bool
	// Idle reports whether the veth peer exists, no interface on it is up, and it has no shape.
	Idle bool
	// Gone reports that the pair does not exist, but a part of its shape does.
	Gone bool
}

// PrepluggedLinks creates and lists pre-plugged ports. *[podveth.Pods] does it in the kernel, *[Fake] in memory. PodLinks.Delete removes them,
// and with them the interfaces on them.
type PrepluggedLinks interface {
	// CreatePreplugged creates ports with their veth peers in the namespace at path. ErrNoNamespace and ErrNotNamespace are about that
	// namespace. After an error none of the ports exists.
	CreatePreplugged(ctx context.Context, path string, pairs ...Preplugged) error
	// ListPreplugged returns the existing pre-plugged ports, by name. Without the namespace at path none is idle.
	ListPreplugged(ctx context.Context, path string) (map[string]PrepluggedPort, error)
}

var (
	// ErrOccupied reports that an interface is on a pre-plugged port that should be free.
	ErrOccupied = errors.New("another interface is on the pre-plugged port")
	// ErrUnusable reports that a pod's interface cannot be created on a pre-plugged port, for a reason that is not the pod's.
	ErrUnusable = errors.New("the pre-plugged port is unusable")
)

// prepluggedOwner is the prefix of the owners of pre-plugged ports.
const prepluggedOwner = "port/"

// PrepluggedOwner returns the owner of a pre-plugged port, as in List.
func PrepluggedOwner(name string) string { return prepluggedOwner + name }

// PrepluggedAlias is the alias of the host veth of a pre-plugged port.
func PrepluggedAlias(name string) string { return link.PodAliasPrefix + PrepluggedOwner(name) }

// PrepluggedMTU is the MTU of a pre-plugged port, or the default for 0.
func PrepluggedMTU(mtu int) int {
	if mtu == 0 {
		return defaultMTU
	}
	return mtu
}

// IsPreplugged reports whether an owner is a pre-plugged port's.
func IsPreplugged(owner string) bool { return strings.HasPrefix(owner, prepluggedOwner) }
