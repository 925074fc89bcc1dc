package node

import (
	"context"
	"encoding/json"
	"fmt"
	"net/netip"
	"slices"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"sigs.k8s.io/controller-runtime/pkg/client"

	stackubev1 "weft.dev/weft/api/stackube/v1"
	"weft.dev/weft/internal/attach"
	"weft.dev/weft/internal/cni"
	"weft.dev/weft/internal/neutron/ports"
	"weft.dev/weft/internal/placement"
)

// portPatience limits how long an ADD waits for a free port. Runtimes then repeat the ADD.
const portPatience = 30 * time.Second

// Plan implements network.Network: it chooses a ready port, and waits for one if there is none.
func (n *Network) Plan(ctx context.Context, req *cni.Request, at placement.Decision, inUse attach.InUse) (attach.Record, error) {
	limits, err := req.Bandwidth()
	if err != nil {
		return attach.Record{}, err
	}
	hostPorts, err := n.publisher.Requested(req)
	if err != nil {
		return attach.Record{}, err
	}
	object, err := n.networkOf(ctx, req.Args.PodNamespace, at.Part)
	if err != nil {
		return attach.Record{}, err
	}
	claimed := func(uuid string, s *ports.Spec) bool {
		if _, taken := inUse.Claims[portClaim(uuid)]; taken {
			return true
		}
		return slices.ContainsFunc(addressClaims(s.Addresses), func(claim string) bool {
			_, taken := inUse.Claims[claim]
			return taken
		})
	}
	waiting, cancel := context.WithTimeout(ctx, portPatience)
	defer cancel()
	for {
		chosen, next, changed := n.ports.Choose(string(object.UID), claimed)
		if chosen != nil {
			rec, err := recordOf(at, chosen, string(object.UID))
			rec.Bandwidth, rec.HostPorts = limits, hostPorts
			rec.HostInterface = hostInterface(req, chosen, limits)
			return rec, err
		}
		var rested <-chan time.Time
		if next > 0 {
			rested = time.After(next)
		}
		select {
		case <-changed:
		case <-rested:
		case <-waiting.Done():
			return attach.Record{}, n.noPort(ctx, object)
		}
	}
}

func portClaim(uuid string) string { return "neutronport " + uuid }

// addressClaims are the claims of a pod's IPv4 addresses, each of which the node routes to one pod. Nodes route no IPv6 addresses: pods of two
// tenants may have the same one.
func addressClaims(addresses []netip.Prefix) []string {
	var claims []string
	for _, p := range addresses {
		if p.Addr().Is4() {
			claims = append(claims, "neutron address "+p.Addr().String())
		}
	}
	return claims
}

// hostInterface returns the name of the host veth for an attachment: the one plugged ahead with its port, or, if there is none, one of its own.
func hostInterface(req *cni.Request, chosen *ports.Choice, limits cni.Bandwidth) string {
	if chosen.Paired {
		return chosen.Slot.Preplugged()
	}
	return vethName(attach.Key{ContainerID: req.ContainerID, IfName: req.IfName}, limits.Limited())
}

// networkOf returns the Network of a pod.
func (n *Network) networkOf(ctx context.Context, namespace, name string) (*stackubev1.Network, error) {
	if name == "" {
		return nil, cni.Errorf(cni.CodeRefused, "no Network named %q is in namespace %q; name one with annotation %s: %s/NAME", namespace, namespace, placement.AnnotationNetwork, Name)
	}
	var object stackubev1.Network
	err := n.deps.Objects.Get(ctx, client.ObjectKey{Namespace: namespace, Name: name}, &object)
	if apierrors.IsNotFound(err) {
		return nil, cni.Errorf(cni.CodeRefused, "there is no Network %s in namespace %s; create it, or change annotation %s", name, namespace, placement.AnnotationNetwork)
	}
	if err != nil {
		return nil, cni.Errorf(cni.CodeTryAgainLater, "Network %s/%s: %w", namespace, name, err)
	}
	if !object.DeletionTimestamp.IsZero() {
		return nil, cni.Errorf(cni.CodeRefused, "Network %s/%s is being deleted", namespace, name)
	}
	return &object, nil
}

// noPort returns why no port is free, in the words of the Network.
func (n *Network) noPort(ctx context.Context, object *stackubev1.Network) error {
	var now stackubev1.Network
	if err := n.deps.Objects.Get(context.WithoutCancel(ctx), client.ObjectKeyFromObject(object), &now); err == nil {
		object = &now
	}
	all, inactive := n.ports.Count(string(object.UID))
	words := fmt.Sprintf("no port of Network %s/%s is free on this node (it has %d, %d of them not ACTIVE, or not bound on br-int since their last pods)", object.Namespace, object.Name, all, inactive)
	if object.Status.State != "" && object.Status.State != stackubev1.StateActive || object.Status.Message != "" {
		words += fmt.Sprintf("; the Network is %s: %s", object.Status.State, object.Status.Message)
	}
	return cni.Errorf(cni.CodeTryAgainLater, "%s", words)
}

// recordOf returns the record of an attachment to the port that was chosen, on the Network with a UID: records' addresses are unique within it.
func recordOf(at placement.Decision, chosen *ports.Choice, network string) (attach.Record, error) {
	kept, err := json.Marshal(ports.Details{
		Port: chosen.UUID, Slot: chosen.Slot, Network: at.Part, Routes: chosen.Spec.Routes, DNS: chosen.Spec.DNS,
	})
	if err != nil {
		return attach.Record{}, fmt.Errorf("details of the attachment's record: %w", err)
	}
	rec := attach.Record{
		Network: Name + "." + network, Addresses: chosen.Spec.Addresses, Gateway: chosen.Spec.Gateways, MAC: chosen.Spec.MAC.String(), MTU: chosen.Spec.MTU,
		Claims: append([]string{portClaim(chosen.UUID)}, addressClaims(chosen.Spec.Addresses)...), Details: kept,
	}
	return rec, nil
}
