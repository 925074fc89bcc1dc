package objects

import (
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"net/netip"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/resourceversion"

	kubeovn "weft.dev/weft/api/kubeovn/v1"
)

// maxName is the longest name of an object (RFC 1123 subdomain).
const maxName = 253

// IPName returns the name of the IP object of an address. The API server refuses a second object of that name: so an address is assigned
// once, even if a deposed controller writes late.
func IPName(subnet string, addr netip.Addr) string { return shortened(subnet + "." + addr.String()) }

// PodKey returns the holder of an address: "<pod>.<namespace>".
func PodKey(namespace, pod string) string { return shortened(pod + "." + namespace) }

// Ended reports whether the pod's containers have ended for good, so that its address is free.
func Ended(pod *corev1.Pod) bool {
	return pod.Status.Phase == corev1.PodSucceeded || pod.Status.Phase == corev1.PodFailed
}

// HolderOf returns the PodKey of the pod that an IP object names.
func HolderOf(ip *kubeovn.IP) string { return PodKey(ip.Spec.Namespace, ip.Spec.PodName) }

// AddressOf returns the address that an IP object assigns. An IP object whose address is not an IPv4 address assigns none.
func AddressOf(ip *kubeovn.IP) (netip.Addr, error) {
	var problems Problems
	addr, _ := problems.addr4("spec.v4IpAddress", ip.Spec.V4IPAddress, "10.0.1.2")
	return addr, problems.Err()
}

func shortened(name string) string {
	if len(name) <= maxName {
		return name
	}
	sum := sha256.Sum256([]byte(name))
	digest := hex.EncodeToString(sum[:8])
	return strings.TrimRight(name[:maxName-len(digest)-1], ".-") + "-" + digest
}

// FirstIP returns which of a pod's IP objects is valid, of those for which keep is true; nil if there is none. Two controllers may each
// have assigned the pod an address: the object that was created first counts, for the controller and for the agent. IP objects are never
// updated, so that resource versions are in the order of creation.
func FirstIP(ips []*kubeovn.IP, keep func(*kubeovn.IP) bool) *kubeovn.IP {
	var first *kubeovn.IP
	for _, ip := range ips {
		if keep(ip) && (first == nil || CompareIPs(ip, first) < 0) {
			first = ip
		}
	}
	return first
}

// CompareIPs orders IP objects by their creation.
func CompareIPs(a, b *kubeovn.IP) int {
	order, err := resourceversion.CompareResourceVersion(a.ResourceVersion, b.ResourceVersion)
	if err != nil {
		order = 0 // not written yet
	}
	return cmp.Or(a.CreationTimestamp.Compare(b.CreationTimestamp.Time), order, cmp.Compare(a.Name, b.Name))
}
