package provider

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"

	"weft.dev/weft/api/kubestack"
	"weft.dev/weft/internal/neutron/cloud"
	"weft.dev/weft/internal/neutron/plug"
)

type pods struct {
	kubestack.UnimplementedPodsServer
	Options

	records *records
	names   names
}

// podCall is a call about a pod, made while OpenStack is reachable.
type podCall struct {
	*pods

	cloud *cloud.Cloud
}

// alone serves a call while no other one for the pod runs.
func (p *pods) alone(ctx context.Context, req podRequest, do func(*podCall) error) error {
	return p.names.alone(ctx, key(req), func() error {
		reached, err := p.Cloud(ctx)
		if err != nil {
			return err
		}
		return do(&podCall{p, reached})
	})
}

// podRequest is the common part of the three requests about pods.
type podRequest interface {
	GetPodName() string
	GetNamespace() string
	GetContainerRuntime() string
	GetPodInfraContainerID() string
	GetNetwork() *kubestack.Network
}

func key(req podRequest) string { return req.GetNamespace() + "_" + req.GetPodName() }

func check(req podRequest) error {
	if !validName(req.GetPodName()) {
		return fmt.Errorf("podName: %.64q is not the name of a pod", req.GetPodName())
	}
	if !validName(req.GetNamespace()) {
		return fmt.Errorf("namespace: %.64q is not the name of a namespace", req.GetNamespace())
	}
	if req.GetNetwork() == nil {
		return errors.New("network is missing")
	}
	if req.GetNetwork().GetUid() == "" && req.GetNetwork().GetName() == "" {
		return errors.New("network.uid and network.name are empty: give one")
	}
	return nil
}

// portName is KubeStack's name of a port.
func portName(req podRequest, network string) string {
	return "kube_" + req.GetPodName() + "_" + req.GetNamespace() + "_" + network
}

// SetupPod creates the pod's port, connects the pod, and answers once Neutron reports that the port is ACTIVE.
func (p *pods) SetupPod(ctx context.Context, req *kubestack.SetupPodRequest) (*kubestack.CommonResponse, error) {
	err := check(req)
	if err == nil {
		err = p.alone(ctx, req, func(c *podCall) error { return c.setup(ctx, req) })
	}
	return &kubestack.CommonResponse{Error: words(err)}, nil
}

func (p *podCall) setup(ctx context.Context, req podRequest) error {
	space, err := p.space(ctx, req)
	if err != nil {
		return err
	}
	network, err := p.cloud.FindNetwork(ctx, "", req.GetNetwork().GetName(), req.GetNetwork().GetUid())
	if err != nil {
		return err
	}
	group, err := p.cloud.EnsureGroup(ctx, cloud.Group{Project: network.ProjectID})
	if err != nil {
		return err
	}
	if err := p.leave(ctx, req, network.ID); err != nil {
		return err
	}
	held, made, err := p.cloud.EnsurePort(ctx, cloud.Port{
		Owner: "provider/" + key(req), Name: portName(req, network.ID), Project: network.ProjectID, Network: network.ID,
		Host: p.Host, DeviceID: deviceID(req), Groups: []string{group},
	})
	if err != nil {
		return err
	}
	devices, err := p.connect(ctx, req, network, held, space)
	if err != nil {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), callLimit)
		defer cancel()
		return errors.Join(err, p.rollBack(ctx, req, held.ID, created{port: made, devices: devices}))
	}
	return nil
}

// created is what a call has created for a pod. The rest was there before: the call repeats one that succeeded, and the pod may run on it.
type created struct{ port, devices bool }

// rollBack removes what a call has created. While the port stays, the record does too: TeardownPod removes them later.
func (p *podCall) rollBack(ctx context.Context, req podRequest, portID string, by created) error {
	switch {
	case by.port:
		return p.undo(ctx, req, portID)
	case by.devices:
		return p.Plugin.Teardown(ctx, portID)
	}
	return nil
}

// deviceID identifies the sandbox of a port.
func deviceID(req podRequest) string {
	if id := req.GetPodInfraContainerID(); id != "" {
		return id[:min(len(id), 64)]
	}
	return key(req)
}

func (p *pods) space(ctx context.Context, req podRequest) (string, error) {
	switch req.GetContainerRuntime() {
	case runtimeHyper:
		return "", nil
	case runtimeDocker, "":
		return p.Sandboxes.NetNS(ctx, req.GetContainerRuntime(), req.GetPodInfraContainerID())
	}
	return "", fmt.Errorf("containerRuntime: %.32q is unknown: use %s, %s, or leave it empty for a CRI runtime",
		req.GetContainerRuntime(), runtimeDocker, runtimeHyper)
}

// connect connects the pod to its port. made reports that it was not connected before.
func (p *podCall) connect(
	ctx context.Context, req podRequest, network *cloud.HeldNetwork, held *cloud.HeldPort, space string,
) (made bool, err error) {
	port, err := portOf(network, held)
	if err != nil {
		return false, err
	}
	rec := record{PortID: held.ID, Runtime: req.GetContainerRuntime(), Sandbox: req.GetPodInfraContainerID()}
	if err := p.records.put(key(req), rec); err != nil {
		return false, err
	}
	made, err = p.Plugin.Setup(ctx, plug.Pod{Name: req.GetPodName(), Namespace: req.GetNamespace(), Port: port, NetNS: space})
	if err != nil {
		return false, fmt.Errorf("connect pod %s/%s: %w", req.GetNamespace(), req.GetPodName(), err)
	}
	if req.GetContainerRuntime() == runtimeHyper {
		if err := writeHyperSpec(p.PodSpecs, req, port, network); err != nil {
			return made, err
		}
	}
	return made, p.cloud.AwaitActive(ctx, held.ID)
}

// leave removes the port that a pod of the same name had on another network, with its devices: the new record replaces the former one, from
// which TeardownPod would find them.
func (p *podCall) leave(ctx context.Context, req podRequest, network string) error {
	former, err := p.records.get(key(req))
	if err != nil || former == nil {
		return nil //nolint:nilerr // a broken record is replaced
	}
	held, err := p.cloud.FindPort(ctx, network, portName(req, network))
	if err != nil || held != nil && held.ID == former.PortID {
		return err
	}
	return p.undo(ctx, req, former.PortID)
}

// portOf validates what Neutron reports of a port before it is used.
func portOf(network *cloud.HeldNetwork, held *cloud.HeldPort) (plug.Port, error) {
	mac, err := net.ParseMAC(held.MACAddress)
	if err != nil || len(mac) != 6 || mac[0]&1 != 0 {
		return plug.Port{}, fmt.Errorf("port %s: Neutron gives the MAC address %.32q, which no interface can have", held.ID, held.MACAddress)
	}
	out := plug.Port{ID: held.ID, MAC: mac, MTU: network.MTU}
	for _, ip := range held.FixedIPs {
		for _, s := range network.Held {
			if s.ID != ip.SubnetID {
				continue
			}
			addr, err := netip.ParseAddr(ip.IPAddress)
			cidr, cidrErr := netip.ParsePrefix(s.CIDR)
			if err != nil || cidrErr != nil || !cidr.Contains(addr) {
				return plug.Port{}, fmt.Errorf("port %s: Neutron gives the address %.64q of subnet %.64q", held.ID, ip.IPAddress, s.CIDR)
			}
			out.Addrs = append(out.Addrs, netip.PrefixFrom(addr, cidr.Bits()))
			if gateway, err := netip.ParseAddr(s.GatewayIP); err == nil && gateway.Zone() == "" && !out.Gateway.IsValid() {
				out.Gateway = gateway
			}
		}
	}
	if len(out.Addrs) == 0 {
		return plug.Port{}, fmt.Errorf("port %s: Neutron gives no address: the network needs a subnet with free ones", held.ID)
	}
	return out, nil
}

// undo removes the pod's devices, port and record, in this order, so that a failed step can be retried. The port stays if it is bound to
// another host now, because the pod has moved.
func (p *podCall) undo(ctx context.Context, req podRequest, portID string) error {
	if err := p.Plugin.Teardown(ctx, portID); err != nil {
		return err
	}
	if err := p.cloud.RemovePortOf(ctx, portID, p.Host); err != nil {
		return err
	}
	return p.records.drop(key(req))
}

// TeardownPod removes a pod's port and the host's devices, also if one of the two is already removed.
func (p *pods) TeardownPod(ctx context.Context, req *kubestack.TeardownPodRequest) (*kubestack.CommonResponse, error) {
	err := check(req)
	if err == nil {
		err = p.alone(ctx, req, func(c *podCall) error { return c.teardown(ctx, req) })
	}
	return &kubestack.CommonResponse{Error: words(err)}, nil
}

func (p *podCall) teardown(ctx context.Context, req podRequest) error {
	rec, err := p.records.get(key(req))
	if err != nil {
		return err
	}
	if rec != nil {
		if asked := req.GetPodInfraContainerID(); asked != "" && rec.Sandbox != "" && asked != rec.Sandbox {
			return nil
		}
		return p.undo(ctx, req, rec.PortID)
	}
	held, err := p.port(ctx, req)
	if err != nil || held == nil {
		return err
	}
	return p.undo(ctx, req, held.ID)
}

// port finds a pod's port in OpenStack; nil if there is none.
func (p *podCall) port(ctx context.Context, req podRequest) (*cloud.HeldPort, error) {
	network, err := p.cloud.FindNetwork(ctx, "", req.GetNetwork().GetName(), req.GetNetwork().GetUid())
	if errors.Is(err, cloud.ErrNotFound) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	return p.cloud.FindPort(ctx, network.ID, portName(req, network.ID))
}

// PodStatus returns the first address of a pod's port, and none if there is no port.
func (p *pods) PodStatus(ctx context.Context, req *kubestack.PodStatusRequest) (*kubestack.PodStatusResponse, error) {
	if err := check(req); err != nil {
		return &kubestack.PodStatusResponse{Error: text(err)}, nil
	}
	reached, err := p.Cloud(ctx)
	if err != nil {
		return &kubestack.PodStatusResponse{Error: text(err)}, nil
	}
	held, err := (&podCall{p, reached}).port(ctx, req)
	if err != nil || held == nil || len(held.FixedIPs) == 0 {
		return &kubestack.PodStatusResponse{Error: words(err)}, nil
	}
	return &kubestack.PodStatusResponse{Ip: held.FixedIPs[0].IPAddress}, nil
}
