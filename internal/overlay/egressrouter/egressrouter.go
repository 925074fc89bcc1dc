// Package egressrouter gives the pods of egress routers a second interface: a macvlan on an interface of the node, as in OpenShift SDN. A
// pod requests it by an annotation. It keeps no state: the records of attachments say which pods have one.
package egressrouter

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	types100 "github.com/containernetworking/cni/pkg/types/100"

	networkv1 "weft.dev/weft/api/openshift/v1"
	"weft.dev/weft/internal/attach"
	"weft.dev/weft/internal/cni"
	"weft.dev/weft/internal/link"
	"weft.dev/weft/internal/link/podlink"
	"weft.dev/weft/internal/overlay/host"
)

// name is the name of an egress router's second interface, as in OpenShift SDN: the routers' images use it.
const name = "macvlan0"

// Routers creates the second interfaces of egress routers.
type Routers struct {
	// Macvlans creates the interfaces. Nil: pods that need one are refused.
	Macvlans podlink.Macvlans
	// Privileged reports whether a pod has a privileged container or init container. Nil: egress routers are refused.
	Privileged func(ctx context.Context, pod cni.Args) (bool, error)
	// BootID is the node's boot: interfaces of former boots are gone.
	BootID string
}

// Requested returns the second interface that a pod's annotation requests; nil if it requests none. Only for a request is it checked
// whether the pod is privileged.
func (r *Routers) Requested(ctx context.Context, req *cni.Request) (*attach.Macvlan, error) {
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
	if req.IfName == name {
		return nil, refuse(cni.CodeInvalidConfig, "the pod's own interface is called %s already", name)
	}
	if r.Privileged == nil || r.Macvlans == nil {
		return nil, refuse(cni.CodeUnsupportedField, "this agent makes no second interfaces")
	}
	privileged, err := r.Privileged(ctx, req.Args)
	if err != nil {
		return nil, refuse(cni.CodeTryAgainLater, "whether the pod may have it: %w: try again later", err)
	}
	if !privileged {
		return nil, refuse(cni.CodeInvalidConfig, "only a pod with a privileged container or init container may have an interface in the node's network")
	}
	device, err := r.Macvlans.MacvlanParent(ctx, parent)
	if err != nil {
		return nil, refuse(cni.CodeInvalidConfig, "%w", err)
	}
	if of := reserved(&device); of != "" {
		return nil, refuse(cni.CodeInvalidConfig, "%s is %s: name an interface of the node that is in its network", device.Name, of)
	}
	return &attach.Macvlan{Parent: device.Name, MTU: device.MTU, Addresses: device.Addresses}, nil
}

// reserved says whose device it is if no macvlan may be on it, otherwise it returns "". On Weft's own devices, a macvlan would let a pod
// see and send packets that bypass the switch's flows.
func reserved(device *podlink.MacvlanParent) string {
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
func macvlan(rec *attach.Record) podlink.Macvlan {
	return podlink.Macvlan{Netns: rec.Netns, Name: name, Parent: rec.Macvlan.Parent, Owner: rec.Key().Owner()}
}

// Create creates an attachment's second interface, if it has one, and adds it to the result for the runtime.
func (r *Routers) Create(ctx context.Context, rec *attach.Record, result *types100.Result) error {
	if rec.Macvlan == nil {
		return nil
	}
	mac, err := r.Macvlans.CreateMacvlan(ctx, macvlan(rec))
	if err != nil {
		return err
	}
	result.Interfaces = append(result.Interfaces, &types100.Interface{Name: name, Mac: mac.String(), Mtu: rec.Macvlan.MTU, Sandbox: rec.Netns})
	return nil
}

// Check checks an attachment's second interface, if it has one.
func (r *Routers) Check(ctx context.Context, rec *attach.Record) error {
	if rec.Macvlan == nil {
		return nil
	}
	return r.Macvlans.CheckMacvlan(ctx, macvlan(rec))
}

// Remove removes second interfaces from pods' namespaces that still exist; with a namespace, the kernel removes its interfaces.
func (r *Routers) Remove(ctx context.Context, recs ...attach.Record) error {
	var errs []error
	for i := range recs {
		if recs[i].Macvlan != nil && recs[i].BootID == r.BootID && r.Macvlans != nil {
			errs = append(errs, r.Macvlans.DeleteMacvlan(ctx, macvlan(&recs[i])))
		}
	}
	return errors.Join(errs...)
}
