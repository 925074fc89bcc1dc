// Package vpcmatrix measures, in a lab with VPCs, what the pods of the example (deploy/examples/vpc) reach, with the source address that
// the receiver sees, and that packets with a spoofed source arrive nowhere. It also measures rows that must fail.
package vpcmatrix

import (
	"context"
	"fmt"
	"net"
	"net/netip"
	"strings"

	"weft.dev/weft/lab"
	"weft.dev/weft/lab/reach"
)

// The pods of the example, as namespace/name.
const (
	first       = "ns1/vpc1-pod"
	floating    = "ns1/vpc1-other"
	second      = "ns2/vpc2-pod"
	secondOther = "ns2/vpc2-other"
	overlay     = "default/overlay-pod"
)

// tries is the maximum number of requests if one must arrive: a gateway may lag behind its objects.
const tries = 10

// Options are the expectations of the rows.
type Options struct {
	// SNAT is the source address of vpc1-pod outside. Zero: no rule translates it, and it must reach nothing there.
	SNAT netip.Addr
	// FloatingIP is the floating IP of vpc1-other. Zero: the rows with gateways are left out.
	FloatingIP netip.Addr
}

// Run measures the connectivity. An error means that it could not be measured.
func Run(ctx context.Context, c *lab.Cluster, o Options) (*reach.Report, error) {
	k, err := c.Client()
	if err != nil {
		return nil, err
	}
	pods, err := reach.Pods(ctx, c, k, first, floating, second, secondOther, overlay)
	if err != nil {
		return nil, fmt.Errorf("%w: kubectl apply -f deploy/examples/vpc", err)
	}
	report := reach.Measure(ways(c, pods, o), tries)
	spoofed, err := reach.Spoof(pods[first], pods[floating], netip.AddrFrom4([4]byte{10, 0, 1, 77}), net.HardwareAddr{0x0a, 0x58, 10, 0, 1, 77})
	if err != nil {
		return nil, err
	}
	report.Rows = append(report.Rows, spoofed...)
	return report, nil
}

const (
	webPort  = 80
	askPath  = "/clientip" // agnhost's netexec answers with the sender's address
	rootPath = "/"         // and so does the lab's reporter
)

func ways(c *lab.Cluster, pods map[string]reach.Pod, o Options) []reach.Way {
	var all []reach.Way
	add := func(name, from, to string, want netip.Addr) {
		all = append(all, reach.Way{
			Row: reach.Row{Name: name, From: from, To: to, Want: want}, Netns: pods[from].Netns, At: netip.AddrPortFrom(pods[to].IP, webPort), Path: askPath,
		})
	}
	var none netip.Addr
	add("pod to pod, in a VPC", first, floating, pods[first].IP)
	add("pod to pod, in a VPC", floating, first, pods[floating].IP)
	add("pod to pod, in a second VPC of the same range", second, secondOther, pods[second].IP)
	add("between VPCs", second, floating, none)
	// The range of the first VPC includes the addresses of the second one: the request must not leave it.
	add("between VPCs", first, unshared(pods), none)
	add("from a VPC to the cluster's network", first, overlay, none)
	add("from the cluster's network to a VPC", overlay, floating, none)
	outside := func(name, from string, at lab.Outside, want netip.Addr) {
		to, err := netip.ParseAddrPort(strings.Trim(strings.TrimPrefix(at.URL, "http://"), "/"))
		all = append(all, reach.Way{Row: reach.Row{Name: name, From: from, To: at.URL, Want: want}, Netns: pods[from].Netns, At: to, Path: rootPath})
		if err != nil {
			all[len(all)-1].Problem = err.Error()
		}
	}
	outside("from a VPC without a gateway to outside", second, c.Outside, none)
	outside("by SNAT to the outside network", first, c.External, o.SNAT)
	outside("by SNAT to outside", first, c.Outside, o.SNAT)
	if o.FloatingIP.IsValid() {
		outside("by the floating IP to outside", floating, c.Outside, o.FloatingIP)
		all = append(all, reach.Way{
			Row:   reach.Row{Name: "from the outside network to the floating IP", From: "external", To: o.FloatingIP.String(), Want: c.External.IP},
			Netns: c.External.Netns, At: netip.AddrPortFrom(o.FloatingIP, webPort), Path: askPath,
		})
	}
	return all
}

// unshared returns a pod of the second VPC whose address no pod of the first one has.
func unshared(pods map[string]reach.Pod) string {
	for _, name := range []string{second, secondOther} {
		if ip := pods[name].IP; ip != pods[first].IP && ip != pods[floating].IP {
			return name
		}
	}
	return second
}
