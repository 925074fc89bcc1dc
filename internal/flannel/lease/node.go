package lease

import (
	"errors"
	"fmt"
	"net/netip"
	"regexp"
	"strings"
)

// DefaultPrefix is the prefix of flannel's annotations.
const DefaultPrefix = "flannel.alpha.coreos.com"

// Keys are the keys of a Node's annotations.
type Keys struct {
	Managed, BackendType        string
	Data, Data6                 string
	PublicIP, PublicIP6         string
	Overwrite, Overwrite6       string
	NodePublicIP, NodePublicIP6 string
}

// NewKeys returns the keys of a prefix: a host name, optionally with a slash and a name to which a hyphen is added.
func NewKeys(prefix string) (Keys, error) {
	host, name, named := strings.Cut(prefix, "/")
	valid := regexp.MustCompile(`^([a-z0-9_-]+\.)+[a-z0-9_-]+$`).MatchString(host) && regexp.MustCompile(`^[a-z0-9_-]*$`).MatchString(name)
	if !valid {
		return Keys{}, fmt.Errorf("%q is not a prefix of annotations: a host name in lower case such as %s, and one name after a slash at most",
			prefix, DefaultPrefix)
	}
	start := host + "/"
	if named && name != "" {
		start += strings.TrimSuffix(name, "-") + "-"
	}
	return Keys{
		Managed: start + "kube-subnet-manager", BackendType: start + "backend-type",
		Data: start + "backend-data", Data6: start + "backend-v6-data",
		PublicIP: start + "public-ip", PublicIP6: start + "public-ipv6",
		Overwrite: start + "public-ip-overwrite", Overwrite6: start + "public-ipv6-overwrite",
		NodePublicIP: start + "node-public-ip", NodePublicIP6: start + "node-public-ipv6",
	}, nil
}

// Node has the parts of a Node object that form its lease.
type Node struct {
	Annotations map[string]string
	// PodCIDRs is spec.podCIDRs, or spec.podCIDR alone.
	PodCIDRs []string
}

// Families are the families of the network.
type Families struct{ V4, V6 bool }

// FromNode returns the lease of a Node's annotations and podCIDRs; false if flannel does not manage the node. An invalid family is left
// out, and the error names the annotation: the other family is usable.
func (k *Keys) FromNode(node Node, families Families) (Lease, bool, error) {
	if node.Annotations[k.Managed] != "true" {
		return Lease{}, false, nil
	}
	l := Lease{Backend: strings.ToLower(node.Annotations[k.BackendType])}
	subnets, err := ParsePodCIDRs(node.PodCIDRs)
	if err != nil {
		return Lease{}, true, err
	}
	var errs []error
	for _, v4 := range []bool{true, false} {
		wanted, subnet, publicKey, dataKey := families.V4, subnets[0], k.PublicIP, k.Data
		if !v4 {
			wanted, subnet, publicKey, dataKey = families.V6, subnets[1], k.PublicIP6, k.Data6
		}
		if !wanted || !subnet.IsValid() {
			continue
		}
		f := family{subnet: subnet}
		if f.publicIP, err = checkPublicIP(node.Annotations[publicKey], v4); err != nil {
			errs = append(errs, fmt.Errorf("annotation %s: %w", publicKey, err))
			continue
		}
		if f.data, err = parseData(l.Backend, node.Annotations[dataKey]); err != nil {
			errs = append(errs, fmt.Errorf("annotation %s: %w", dataKey, err))
			continue
		}
		l.setFamily(v4, f)
	}
	return l, true, errors.Join(errs...)
}

// ParsePodCIDRs returns the IPv4 and the IPv6 range of a node, masked; an absent one is invalid.
func ParsePodCIDRs(texts []string) ([2]netip.Prefix, error) {
	var out [2]netip.Prefix
	for _, text := range texts {
		p, err := netip.ParsePrefix(text)
		if err != nil || p.Addr().Is4In6() {
			return out, fmt.Errorf("spec.podCIDRs: %q is not a range such as 10.244.1.0/24", text)
		}
		i := 0
		if p.Addr().Is6() {
			i = 1
		}
		if out[i].IsValid() {
			return out, fmt.Errorf("spec.podCIDRs: %v has two ranges of one family; one of IPv4 and one of IPv6 at most", texts)
		}
		out[i] = p.Masked()
	}
	return out, nil
}

// Annotations returns the annotations that the node writes for its lease. Overwrites that the administrator has set in present have
// precedence over the lease's addresses; an empty value is an annotation to remove.
func (k *Keys) Annotations(l *Lease, present map[string]string) map[string]string {
	out := map[string]string{k.Managed: "true", k.BackendType: l.Backend}
	if l.Subnet.IsValid() {
		out[k.Data] = Marshal(l.Data)
		out[k.PublicIP] = firstText(present[k.Overwrite], l.PublicIP.String())
	}
	if l.Subnet6.IsValid() {
		out[k.Data6] = Marshal(l.Data6)
		out[k.PublicIP6] = firstText(present[k.Overwrite6], l.PublicIP6.String())
	}
	return out
}

func firstText(texts ...string) string {
	for _, text := range texts {
		if text != "" {
			return text
		}
	}
	return ""
}
