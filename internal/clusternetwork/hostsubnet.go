package clusternetwork

import (
	"fmt"
	"net/netip"
	"strconv"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/validation/field"

	networkv1 "weft.dev/weft/api/openshift/v1"
)

// HostSubnet is a valid HostSubnet.
type HostSubnet struct {
	// UID identifies the object: two may briefly share a name or an address.
	UID types.UID
	// Host is the node's name.
	Host string
	// HostIP is where the node's tunnels end.
	HostIP netip.Addr
	// Subnet is the range of the node's pods. It is not valid while the object waits for an assignment.
	Subnet netip.Prefix
	// VNID is the VNID of all traffic from the host, for a host without a Node that has one; otherwise 0.
	VNID uint32
	// NodeUID is the UID of the Node for which the object was created; empty for a host without a Node.
	NodeUID types.UID
}

// ParseHostSubnet parses the object. The error lists everything that is invalid, including a VNID in the annotation.
func ParseHostSubnet(obj *networkv1.HostSubnet) (HostSubnet, error) {
	p := &parser{}
	if obj.Host != obj.Name {
		p.errs = append(p.errs, field.Invalid(field.NewPath("host"), bounded(obj.Host), "must equal metadata.name, "+obj.Name))
	}
	parsed := HostSubnet{
		UID:     obj.UID,
		Host:    obj.Name,
		HostIP:  p.address(field.NewPath("hostIP"), obj.HostIP),
		NodeUID: types.UID(obj.Annotations[networkv1.AnnotationNodeUID]),
	}
	if _, waiting := obj.Annotations[networkv1.AnnotationAssignSubnet]; obj.Subnet != "" || !waiting {
		parsed.Subnet = p.subnet(field.NewPath("subnet"), obj.Subnet)
	}
	if text, ok := obj.Annotations[networkv1.AnnotationFixedVNID]; ok {
		vnid, err := ParseVNID(text)
		if err != nil {
			p.errs = append(p.errs, field.Invalid(
				field.NewPath("metadata", "annotations").Key(networkv1.AnnotationFixedVNID), bounded(text), err.Error()))
		}
		parsed.VNID = vnid
	}
	if err := p.errs.ToAggregate(); err != nil {
		return HostSubnet{}, fmt.Errorf("HostSubnet %q: %w", obj.Name, err)
	}
	return parsed, nil
}

// subnet parses a node's range. It must have room for at least one pod.
func (p *parser) subnet(path *field.Path, text string) netip.Prefix {
	const smallest = 30
	prefix := p.prefix(path, text)
	if prefix.IsValid() && prefix.Bits() > smallest {
		p.errs = append(p.errs, field.Invalid(path, text, "must be a /30 or larger: there is no address for a pod in it"))
	}
	return prefix
}

// ParseVNID parses a VNID in decimal, 0 to 16777215.
func ParseVNID(text string) (uint32, error) {
	vnid, err := strconv.ParseUint(text, 10, 32)
	if err != nil || uint32(vnid) > networkv1.VNIDMax {
		return 0, fmt.Errorf("must be a VNID, a number from 0 to %d", networkv1.VNIDMax)
	}
	return uint32(vnid), nil
}
