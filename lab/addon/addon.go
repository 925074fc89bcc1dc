// Package addon has what the lab runs in its clusters besides Weft, as a cluster's installer would.
package addon

import (
	_ "embed" // for the manifests
	"net/netip"
)

// CoreDNSImage is the image of CoreDNS' pods.
const CoreDNSImage = "weft.local/coredns:dev"

// DNSAddress is the address of the cluster's DNS: clusterIP in CoreDNS' manifest, and clusterDNS in the kubelets' configuration.
func DNSAddress() netip.Addr { return netip.AddrFrom4([4]byte{172, 30, 0, 10}) }

// CoreDNS is the manifest of the cluster's DNS: two pods and their Service.
//
//go:embed coredns.yaml
var CoreDNS string //nolint:gochecknoglobals // embedded files are variables
