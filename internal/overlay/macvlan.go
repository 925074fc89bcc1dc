package overlay

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	types100 "github.com/containernetworking/cni/pkg/types/100"

	networkv1 "weft.dev/weft/api/openshift/v1"
	"weft.dev/weft/internal/attach"
	"weft.dev/weft/internal/attach/plan"
	"weft.dev/weft/internal/cni"
	"weft.dev/weft/internal/link"
	"weft.dev/weft/internal/overlay/host"
)

// macvlanName is the name of an egress router's second interface, as in OpenShift SDN: the routers' images use it.
const macvlanName = "macvlan0"

// egressRouter returns the second interface that a pod's annotation requests; nil if it requests none. Only for a request is it checked
// whether the pod is privileged.
func (n *Network) egressRouter(ctx context.Context, req *cni.Request) (*attach.Macvlan, error) {
	parent, wants := "", false
	if req.NetConf != nil {
		parent, wants = req.NetConf.RuntimeConfig.PodAnnotations[networkv1.AnnotationAssignMacvlan]
	}
	if !wants || parent == "false" {
		return nil, nil //nolint:nilnil // None is an answer here.
	}
	refuse := func(code cni.Code, format string, args ...any) error {
		return cni.Errorf(code, "pod %s/%s: annotation %s: %w", req.Args.PodNamespace, req.Args.PodName, networkv1.AnnotationAssignMacvlan, fmt.Errorf(format, args...))
	}
	if parent == "true" {
		parent = ""
	} else if err := link.ValidateName(parent); err != nil {
		return nil, refuse(cni.CodeInvalidConfig, "%.64q: it is true, false, or the name of an interface of the node", parent)
	}
	if req.IfName == macvlanName {
		return nil, refuse(cni.CodeInvalidConfig, "the pod's own interface is called %s already", macvlanName)
	}
	if n.opts.Privileged == nil || n.engines.Macvlans == nil {
		return nil, refuse(cni.CodeUnsupportedField, "this agent makes no second interfaces")
	}
	privileged, err := n.opts.Privileged(ctx, req.Args)
	if err != nil {
		return nil, refuse(cni.CodeTryAgainLater, "whether the pod may have it: %w: try again later", err)
	}
	if !privileged {
		return nil, refuse(cni.CodeInvalidConfig, "only a pod with a privileged container or init container may have an interface in the node's network")
	}
	device, err := n.engines.Macvlans.MacvlanParent(ctx, parent)
	if err != nil {
		return nil, refuse(cni.CodeInvalidConfig, "%w", err)
	}
	if of := keptFromMacvlans(&device); of != "" {
		return nil, refuse(cni.CodeInvalidConfig, "%s is %s: name an interface of the node that is in its network", device.Name, of)
	}
	return &attach.Macvlan{Parent: device.Name, MTU: device.MTU, Addresses: device.Addresses}, nil
}

// keptFromMacvlans says whose device it is if no macvlan may be on it, otherwise it returns "". On Weft's own devices, a macvlan would let
// a pod see and send packets that bypass the switch's flows.
func keptFromMacvlans(device *link.MacvlanParent) string {
	switch {
	case device.Loopback:
		return "the loopback device"
	case slices.Contains([]string{host.Tun, host.Bridge, host.Tunnel}, device.Name), slices.Contains([]string{"ovs-system", "ovs-netdev"}, device.Name),
		strings.HasPrefix(device.Name, "vxlan_sys_"): // the kernel's tunnel device of a switch in the kernel
		return "the switch's"
	case device.Group == host.PodGroup, device.Weft:
		return "Weft's"
	}
	return ""
}

// macvlan returns an attachment's second interface. The attachment must have one.
func macvlan(rec *attach.Record) link.Macvlan {
	return link.Macvlan{Netns: rec.Netns, Name: macvlanName, Parent: rec.Macvlan.Parent, Owner: rec.Key().Owner()}
}

// programMacvlan creates an attachment's second interface, if it has one, and adds it to the result for the runtime.
func (n *Network) programMacvlan(ctx context.Context, rec *attach.Record, result *types100.Result) error {
	if rec.Macvlan == nil {
		return nil
	}
	mac, err := n.engines.Macvlans.CreateMacvlan(ctx, macvlan(rec))
	if err != nil {
		return err
	}
	result.Interfaces = append(result.Interfaces, &types100.Interface{Name: macvlanName, Mac: mac.String(), Mtu: rec.Macvlan.MTU, Sandbox: rec.Netns})
	return nil
}

// checkMacvlan checks an attachment's second interface, if it has one.
func (n *Network) checkMacvlan(ctx context.Context, rec *attach.Record) error {
	if rec.Macvlan == nil {
		return nil
	}
	return n.engines.Macvlans.CheckMacvlan(ctx, macvlan(rec))
}

// checkPair checks an attachment's own interface. An egress router may have changed its default route after its start.
func (n *Network) checkPair(ctx context.Context, rec *attach.Record, pair link.Pair) error {
	err := n.engines.Pods.Check(ctx, pair)
	if rec.Macvlan == nil || err == nil {
		return err
	}
	pair.PodRoutes = plan.WithoutDefault(pair.PodRoutes)
	if n.engines.Pods.Check(ctx, pair) == nil {
		return nil
	}
	return err
}

// removeMacvlans removes second interfaces from pods' namespaces that still exist; with a namespace, the kernel removes its interfaces.
func (n *Network) removeMacvlans(ctx context.Context, recs []attach.Record) error {
	var errs []error
	for i := range recs {
		if recs[i].Macvlan != nil && recs[i].BootID == n.opts.BootID && n.engines.Macvlans != nil {
			errs = append(errs, n.engines.Macvlans.DeleteMacvlan(ctx, macvlan(&recs[i])))
		}
	}
	return errors.Join(errs...)
}
