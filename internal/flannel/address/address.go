// Package address chooses the addresses of a node's pods: the addresses that a pod asks for by annotation, those that are kept for the next
// pod of a name, or any.
package address

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"time"
)

const (
	// AnnotationIP of a pod is the address that it asks for, or one address of each family, separated by a comma.
	AnnotationIP = "network.weft.dev/ip"
	// AnnotationSticky of a pod is how long its addresses are kept for the next pod of its namespace and name, as in "10m".
	AnnotationSticky = "network.weft.dev/sticky"
	// Longest is the maximum of AnnotationSticky.
	Longest = 7 * 24 * time.Hour
)

// maxQuoted is the number of bytes of an invalid value that an error quotes.
const maxQuoted = 64

// Gateway returns the node's own address in a range: the first one.
func Gateway(subnet netip.Prefix) netip.Addr { return subnet.Masked().Addr().Next() }

// ForPod reports whether an address of a range can be a pod's: the first two and IPv4's last one, which is for broadcasts, cannot.
func ForPod(subnet netip.Prefix, addr netip.Addr) bool {
	return subnet.Contains(addr) && addr.Compare(Gateway(subnet)) > 0 && (addr.Is6() || subnet.Contains(addr.Next()))
}

// Place returns which of the ranges an address of a pod is in.
func Place(ranges []netip.Prefix, addr netip.Addr) (at int, is bool) {
	at = slices.IndexFunc(ranges, func(r netip.Prefix) bool { return addr.Zone() == "" && ForPod(r, addr) })
	return at, at >= 0
}

// Asked returns the addresses that a pod asks for, in the order of the node's ranges. It is invalid where the pod asks for none.
func Asked(annotations map[string]string, ranges []netip.Prefix) ([]netip.Addr, error) {
	asked := make([]netip.Addr, len(ranges))
	text, has := annotations[AnnotationIP]
	if !has {
		return asked, nil
	}
	wrong := func(part, why string) error {
		return fmt.Errorf("annotation %s: %.*q %s: write an address of this node's subnets, one of each family at most, such as %q",
			AnnotationIP, maxQuoted, part, why, example(ranges))
	}
	for part := range strings.SplitSeq(text, ",") {
		part = strings.TrimSpace(part)
		addr, err := netip.ParseAddr(part)
		if err != nil || addr.Zone() != "" {
			return nil, wrong(part, "is not an IP address")
		}
		at, is := Place(ranges, addr)
		if !is {
			return nil, wrong(part, fmt.Sprintf("is not an address for pods in %s", list(ranges)))
		}
		if asked[at].IsValid() {
			return nil, wrong(part, fmt.Sprintf("is the second address in %s", ranges[at]))
		}
		asked[at] = addr
	}
	return asked, nil
}

// example returns a valid value of AnnotationIP.
func example(ranges []netip.Prefix) string {
	var parts []string
	for _, r := range ranges {
		parts = append(parts, Gateway(r).Next().String())
	}
	return strings.Join(parts, ",")
}

func list(ranges []netip.Prefix) string {
	var parts []string
	for _, r := range ranges {
		parts = append(parts, r.String())
	}
	return strings.Join(parts, " and ")
}

// Duration returns how long a pod's addresses are kept; 0: they are not.
func Duration(annotations map[string]string) (time.Duration, error) {
	text, has := annotations[AnnotationSticky]
	if !has {
		return 0, nil
	}
	d, err := time.ParseDuration(strings.TrimSpace(text))
	if err != nil || d <= 0 || d > Longest {
		return 0, fmt.Errorf("annotation %s: %.*q is not a time above 0 and at most %s: write how long the pod's addresses are kept after it, such as \"10m\" or \"24h\"",
			AnnotationSticky, maxQuoted, text, hours(Longest))
	}
	return d, nil
}

// hours formats a duration of whole hours as in annotations.
func hours(d time.Duration) string { return fmt.Sprintf("%dh", int(d.Hours())) }
