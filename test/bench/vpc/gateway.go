package vpc

import (
	"context"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	kubeovn "weft.dev/weft/api/kubeovn/v1"
	"weft.dev/weft/test/bench/measure"
	"weft.dev/weft/test/traffic"
)

// Floating is the time from kubectl's start until the last of the floating IPs answers, in ms.
const Floating = "floating-ips"

// floatingIPs is the number of concurrent floating IPs: addresses from firstFloating on.
const (
	floatingIPs   = 50
	firstFloating = 150
	// firstByHand is the first address of the other side: the host outside has cached the MAC addresses of both sides.
	firstByHand = 200
)

func floatingIP(i int) string { return outside(firstFloating + i) }

func outside(i int) string { return fmt.Sprintf("192.168.100.%d", i) }

// internalIP returns the address behind floating IP i. The last one belongs to the pod that answers.
func internalIP(i int) string {
	if i == floatingIPs-1 {
		return server
	}
	return fmt.Sprintf("10.0.1.%d", 100+i)
}

// FloatingIPs makes a VPC with a gateway and a pod, and the same by hand. It returns the sides that add floating IPs to them.
func (s *Scene) FloatingIPs(ctx context.Context, dir string) (ours, peer measure.Side, err error) {
	const name = "fips"
	if err := s.Create(ctx, Vpc(name), Subnet(name), gatewayOf(name)); err != nil {
		return nil, nil, err
	}
	pod, err := s.start(ctx, inSubnet(name, name, server))
	if err != nil {
		return nil, nil, err
	}
	if _, err := s.startGateway(ctx, name); err != nil {
		return nil, nil, err
	}
	hand, site := s.ByHand(), handSiteOf("hfips")
	if err := hand.up(ctx, site); err != nil {
		return nil, nil, err
	}
	for _, netns := range []string{pod.Netns, hand.netns(site.pod)} {
		if _, err := traffic.NewEcho(netns, netip.AddrPortFrom(netip.IPv4Unspecified(), echoPort)); err != nil { // it ends with the program
			return nil, nil, err
		}
	}
	if ours, err = s.floatingByObjects(dir, name); err != nil {
		return nil, nil, err
	}
	peer, err = hand.floatingIPs(dir, site)
	return ours, peer, err
}

// floatingByObjects applies EIPs and floating IPs.
func (s *Scene) floatingByObjects(dir, gateway string) (measure.Side, error) {
	var text strings.Builder
	for i := range floatingIPs {
		_, _ = fmt.Fprintf(&text, "---\n{apiVersion: kubeovn.io/v1, kind: IptablesEIP, metadata: {name: f%d}, spec: {natGwDp: %s, v4ip: %s}}\n", i, gateway, floatingIP(i))
		_, _ = fmt.Fprintf(&text, "---\n{apiVersion: kubeovn.io/v1, kind: IptablesFIPRule, metadata: {name: f%d}, spec: {eip: f%d, internalIp: %s}}\n", i, i, internalIP(i))
	}
	file := filepath.Join(dir, "floating.yaml")
	if err := os.WriteFile(file, []byte(text.String()), 0o600); err != nil {
		return nil, fmt.Errorf("write the objects: %w", err)
	}
	return func(ctx context.Context) (measure.Figures, error) {
		began := time.Now()
		if err := s.kubectl(ctx, "apply", "-f", file); err != nil {
			return nil, err
		}
		at, err := s.answered(ctx, firstFloating+floatingIPs-1)
		if err != nil {
			return nil, err
		}
		figures := measure.Figures{Floating: milliseconds(at.Sub(began))}
		if err := s.kubectl(ctx, "delete", "-f", file, "--wait=false"); err != nil {
			return nil, err
		}
		for i := range floatingIPs {
			if err := s.gone(ctx, &kubeovn.IptablesEIP{ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprintf("f%d", i)}}); err != nil {
				return nil, err
			}
		}
		return figures, nil
	}, nil
}

// answered returns when an outside address has answered.
func (s *Scene) answered(ctx context.Context, address int) (time.Time, error) {
	return firstAnswer(ctx, s.External.Netns, netip.AddrPortFrom(netip.MustParseAddr(outside(address)), echoPort))
}
