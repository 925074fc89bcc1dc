// Package node is the part of the agent for VPCs. So far it attaches pods; nothing is wired to it yet.
//
// The controller decides the pod's address and logical port, and records them in an IP object. The agent takes them for the pod of that
// very UID, makes the pod's interface, and puts the host's end on OVN's integration bridge. An ADD is answered once ovn-controller
// reports that the logical port's flows are installed; the port is closed until then.
package node

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"

	types100 "github.com/containernetworking/cni/pkg/types/100"

	"weft.dev/weft/internal/attach"
	"weft.dev/weft/internal/attach/plan"
	"weft.dev/weft/internal/cni"
	"weft.dev/weft/internal/link"
	"weft.dev/weft/internal/ovsport"
	"weft.dev/weft/internal/vpc/binding"
)

// hostPrefix is the prefix of the names of host ends. A hash of the attachment follows, so that the name does not depend on the address.
const hostPrefix = "wv"

// Address is what the controller gave a pod.
type Address struct {
	// Subnet and SubnetUID are the Subnet's.
	Subnet, SubnetUID string
	// Prefix is the address with the length of the subnet, and Gateway the gateway of the default route.
	Prefix  netip.Prefix
	Gateway netip.Addr
	MAC     string
	// Port is the name of the logical port.
	Port string
	// MTU is the interface's; 0: that of the nodes' network less Geneve's header.
	MTU int
}

// Addresses know what the controller gave pods.
type Addresses interface {
	// Of returns the address of the pod with the UID. It waits for the pod's IP object until ctx ends.
	Of(ctx context.Context, namespace, pod, uid string) (Address, error)
}

// Ports are the integration bridge's.
type Ports interface {
	Attach(ctx context.Context, port ovsport.Port) error
	Detach(ctx context.Context, devices ...string) error
	List(ctx context.Context) (map[string]ovsport.Port, error)
}

// Config says what an Attacher works with.
type Config struct {
	Addresses Addresses
	Links     link.PodLinks
	Ports     Ports
	// MTU is that of pods whose Subnet says nothing.
	MTU int
	// TxOffloadOff turns transmit offloads off, as Open vSwitch's userspace datapath needs.
	TxOffloadOff bool
}

// Attacher attaches pods to VPCs. Its methods are network.Network's.
type Attacher struct{ config Config }

// NewAttacher returns an Attacher.
func NewAttacher(config Config) *Attacher { return &Attacher{config} }

// Plan takes the address that the controller gave the pod.
func (a *Attacher) Plan(ctx context.Context, req *cni.Request, uid string) (attach.Record, error) {
	namespace, pod := req.Args.PodNamespace, req.Args.PodName
	address, err := a.config.Addresses.Of(ctx, namespace, pod, uid)
	if err != nil {
		return attach.Record{}, cni.Errorf(cni.CodeTryAgainLater, "pod %s/%s has no address in a Subnet yet: %v; see the pod's events", namespace, pod, err)
	}
	kept, err := json.Marshal(details{Port: address.Port, Subnet: address.Subnet})
	if err != nil {
		return attach.Record{}, fmt.Errorf("encode what the record keeps of pod %s/%s: %w", namespace, pod, err)
	}
	sum := sha256.Sum256([]byte(req.ContainerID + "/" + req.IfName))
	network := binding.Network + "." + address.SubnetUID
	rec := attach.Record{
		Network: network, Addresses: []netip.Prefix{address.Prefix}, Gateway: []netip.Addr{address.Gateway}, MAC: address.MAC,
		HostInterface: hostPrefix + hex.EncodeToString(sum[:6]), MTU: address.MTU,
		Claims:  []string{"address " + network + " " + address.Prefix.Addr().String()},
		Details: kept,
	}
	if rec.MTU == 0 {
		rec.MTU = a.config.MTU
	}
	return rec, nil
}

// Connect makes the interface and its port, and returns once the port's flows are installed.
func (a *Attacher) Connect(ctx context.Context, rec *attach.Record) (*types100.Result, error) {
	pair, port, err := a.desired(rec)
	if err != nil {
		return nil, err
	}
	created, err := a.config.Links.Create(ctx, pair)
	if err != nil {
		return nil, fmt.Errorf("interface of %s: %w", rec.Key(), err)
	}
	if err := a.config.Ports.Attach(ctx, port); err != nil {
		if errors.Is(err, ovsport.ErrNotInstalled) {
			return nil, cni.Errorf(cni.CodeTryAgainLater, "%v; does ovn-controller run on this node, and does it reach the southbound database?", err)
		}
		return nil, err //nolint:wrapcheck // it names the port
	}
	return plan.Result(rec, &plan.Settings{}, created.HostMAC), nil
}

// desired returns the interface and the port that the record says.
func (a *Attacher) desired(rec *attach.Record) (link.Pair, ovsport.Port, error) {
	name, err := portOf(rec)
	if err != nil {
		return link.Pair{}, ovsport.Port{}, err
	}
	pair, err := plan.Pair(rec, &plan.Settings{TxOffloadOff: a.config.TxOffloadOff})
	if err != nil {
		return link.Pair{}, ovsport.Port{}, err //nolint:wrapcheck // it names the attachment
	}
	pair.PodRoutes = nil
	for _, gateway := range rec.Gateway {
		pair.PodRoutes = append(pair.PodRoutes, link.Route{Dst: netip.PrefixFrom(netip.IPv4Unspecified(), 0), Gateway: gateway})
	}
	return pair, ovsport.Port{Device: rec.HostInterface, IfaceID: name, Owner: rec.Key().Owner()}, nil
}

// Close removes the interface, and with it the pod's traffic.
func (a *Attacher) Close(ctx context.Context, rec attach.Record) error {
	return a.config.Links.Delete(ctx, rec.HostInterface) //nolint:wrapcheck // the caller names the attachment
}

// Remove removes ports and interfaces in one batch.
func (a *Attacher) Remove(ctx context.Context, recs []attach.Record) map[attach.Key]error {
	devices := make([]string, 0, len(recs))
	for i := range recs {
		devices = append(devices, recs[i].HostInterface)
	}
	err := errors.Join(a.config.Ports.Detach(ctx, devices...), a.config.Links.Delete(ctx, devices...))
	failed := map[attach.Key]error{}
	for i := range recs {
		if err != nil {
			failed[recs[i].Key()] = err
		}
	}
	return failed
}

// Check compares what the node has with the record.
func (a *Attacher) Check(ctx context.Context, rec attach.Record) error {
	pair, port, err := a.desired(&rec)
	if err != nil {
		return err
	}
	ports, err := a.config.Ports.List(ctx)
	if have := ports[rec.HostInterface]; err == nil && have != port {
		err = fmt.Errorf("port %s is for logical port %q of %q, want %q of %q", rec.HostInterface, have.IfaceID, have.Owner, port.IfaceID, port.Owner)
	}
	return errors.Join(err, a.config.Links.Check(ctx, pair))
}
