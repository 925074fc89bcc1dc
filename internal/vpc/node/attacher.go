// Package node is the part of the agent for VPCs: it attaches pods, and maintains their interfaces on OVN's integration bridge.
//
// The controller decides the pod's address and logical port, and stores them in an IP object. The agent uses only the IP object of the pod
// with the same UID. It creates the pod's interface, and adds the host veth to OVN's integration bridge. An ADD is answered once
// ovn-controller reports that the logical port's flows are installed; the port is closed until then.
package node

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"time"

	types100 "github.com/containernetworking/cni/pkg/types/100"
	"golang.org/x/sync/errgroup"

	"weft.dev/weft/internal/attach"
	"weft.dev/weft/internal/attach/plan"
	"weft.dev/weft/internal/cni"
	"weft.dev/weft/internal/link"
	"weft.dev/weft/internal/link/podlink"
	"weft.dev/weft/internal/ovsport"
	"weft.dev/weft/internal/placement"
	"weft.dev/weft/internal/vpc/binding"
)

// addressTimeout limits how long an ADD waits for the pod's address. The runtime then repeats the ADD.
const addressTimeout = 30 * time.Second

// podGroup is the device group of host veths: their frames are for the switch alone, and rules keep them from the kernel (guard). All of
// Weft's networks use this one.
const podGroup = 77

// hostPrefix is the prefix of the names of host veths. A hash of the attachment follows, so that the name does not depend on the address.
const hostPrefix = "wv"

// Address is what the controller assigned to a pod.
type Address struct {
	// Subnet and SubnetUID are the Subnet's.
	Subnet, SubnetUID string
	// Prefix is the address with the prefix length of the subnet, and Gateway the gateway of the default route.
	Prefix  netip.Prefix
	Gateway netip.Addr
	MAC     string
	// Port is the name of the logical port.
	Port string
	// NATGateway is the VpcNatGateway of a gateway's pod; empty for any other pod.
	NATGateway string
	// MTU is the interface's; 0: that of the nodes' network minus Geneve's header.
	MTU int
}

// Addresses return what the controller assigned to pods.
type Addresses interface {
	// Of returns the address of the pod with the UID; "" means the current pod. It waits for the pod's IP object until ctx ends.
	Of(ctx context.Context, namespace, pod, uid string) (Address, error)
}

// Ports manages the ports of the integration bridge.
type Ports interface {
	Attach(ctx context.Context, port ovsport.Port) error
	Detach(ctx context.Context, devices ...string) error
	List(ctx context.Context) (map[string]ovsport.Port, error)
	// Put corrects rows, without waiting.
	Put(ctx context.Context, ports ...ovsport.Port) error
	// Datapath returns the type of the bridge's datapath.
	Datapath(ctx context.Context) (string, error)
}

// Config is the configuration of an Attacher.
type Config struct {
	Addresses Addresses
	Links     podlink.Links
	Ports     Ports
	// MTU is that of pods whose Subnet has none.
	MTU int
}

// Attacher attaches pods to VPCs.
type Attacher struct{ config Config }

// NewAttacher returns an Attacher.
func NewAttacher(config Config) *Attacher { return &Attacher{config} }

// Plan uses the address that the controller assigned to the pod. It waits for it up to addressTimeout.
func (a *Attacher) Plan(ctx context.Context, req *cni.Request, at placement.Decision, inUse attach.InUse) (attach.Record, error) {
	namespace, pod := req.Args.PodNamespace, req.Args.PodName
	waiting, cancel := context.WithTimeout(ctx, addressTimeout)
	defer cancel()
	address, err := a.config.Addresses.Of(waiting, namespace, pod, req.Args.PodUID)
	if err != nil {
		return attach.Record{}, cni.Errorf(cni.CodeTryAgainLater, "pod %s/%s has no address in a Subnet yet: %v; see the pod's events", namespace, pod, err)
	}
	if at.Part != "" && at.Part != address.Subnet {
		return attach.Record{}, cni.Errorf(cni.CodeTryAgainLater, "pod %s/%s is bound to Subnet %s, and has an address of Subnet %s: delete the pod",
			namespace, pod, at.Part, address.Subnet)
	}
	kept, err := json.Marshal(details{Port: address.Port, Subnet: address.Subnet, Gateway: address.NATGateway})
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
	if holder, taken := inUse.Claims[rec.Claims[0]]; taken {
		return attach.Record{}, cni.Errorf(cni.CodeTryAgainLater, "pod %s/%s: another sandbox of this node still has the address %s: %w",
			namespace, pod, address.Prefix.Addr(), &attach.ConflictError{What: rec.Claims[0], Holder: holder})
	}
	return rec, nil
}

// Connect creates the interface and its port, and returns once the port's flows are installed.
func (a *Attacher) Connect(ctx context.Context, rec *attach.Record) (*types100.Result, error) {
	nothing := func(context.Context) error { return nil }
	return a.connect(ctx, rec, steps{before: nothing, meanwhile: nothing})
}

// steps are what a gateway's attachment requires beside its interface.
type steps struct {
	// before must have ended before the interface is on the bridge. It needs no interface.
	before func(context.Context) error
	// meanwhile is called once the interface exists, while its port's flows are being installed.
	meanwhile func(context.Context) error
}

// connect is Connect, with further steps.
func (a *Attacher) connect(ctx context.Context, rec *attach.Record, of steps) (*types100.Result, error) {
	pair, port, err := a.desired(ctx, rec)
	if err != nil {
		return nil, err
	}
	var created podlink.Created
	group, within := errgroup.WithContext(ctx)
	group.Go(func() (err error) {
		if created, err = a.config.Links.Create(within, pair); err != nil {
			return fmt.Errorf("interface of %s: %w", rec.Key(), err)
		}
		return nil
	})
	group.Go(func() error { return of.before(within) })
	if err := group.Wait(); err != nil {
		return nil, err //nolint:wrapcheck // both say what failed
	}
	group, within = errgroup.WithContext(ctx)
	group.Go(func() error {
		err := a.config.Ports.Attach(within, port)
		if errors.Is(err, ovsport.ErrNotInstalled) {
			return cni.Errorf(cni.CodeTryAgainLater, "%v; does ovn-controller run on this node, and does it reach the southbound database?", err)
		}
		return err //nolint:wrapcheck // it names the port
	})
	group.Go(func() error { return of.meanwhile(within) })
	if err := group.Wait(); err != nil {
		return nil, err //nolint:wrapcheck // both say what failed
	}
	return plan.Result(rec, &plan.Settings{}, created.HostMAC), nil
}

// desired returns the interface and the port that the record defines.
func (a *Attacher) desired(ctx context.Context, rec *attach.Record) (podlink.Pair, ovsport.Port, error) {
	port, err := portOf(rec)
	if err != nil {
		return podlink.Pair{}, ovsport.Port{}, err
	}
	datapath, err := a.config.Ports.Datapath(ctx)
	if err != nil {
		return podlink.Pair{}, ovsport.Port{}, cni.Errorf(cni.CodeTryAgainLater, "%v", err)
	}
	pair, err := plan.Pair(rec, &plan.Settings{HostGroup: podGroup, TxOffloadOff: datapath == ovsport.Netdev})
	if err != nil {
		return podlink.Pair{}, ovsport.Port{}, err //nolint:wrapcheck // it names the attachment
	}
	pair.PodRoutes = nil
	if gatewayOf(rec) != "" {
		return pair, port, nil // its routes are part of its state
	}
	for _, gateway := range rec.Gateway {
		pair.PodRoutes = append(pair.PodRoutes, link.Route{Dst: netip.PrefixFrom(netip.IPv4Unspecified(), 0), Gateway: gateway})
	}
	return pair, port, nil
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
	pair, port, err := a.desired(ctx, &rec)
	if err != nil {
		return err
	}
	ports, err := a.config.Ports.List(ctx)
	if have := ports[rec.HostInterface]; err == nil && have != port {
		err = fmt.Errorf("port %s is for logical port %q of %q, want %q of %q", rec.HostInterface, have.IfaceID, have.Owner, port.IfaceID, port.Owner)
	}
	return errors.Join(err, a.config.Links.Check(ctx, pair))
}
