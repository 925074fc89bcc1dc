package fabric_test

import (
	"net/netip"
	"strings"
	"testing"

	"weft.dev/weft/internal/flannel/fabric"
	"weft.dev/weft/internal/flannel/lease"
	"weft.dev/weft/internal/flannel/netconf"
	"weft.dev/weft/internal/link/whole"
)

const psk = "AQIDBAUGBwgJCgsMDQ4PEBESExQVFhcYGRobHB0eHyA="

// wireguardPeer is what flanneld advertises: another port for IPv6, in every mode.
func wireguardPeer() lease.Lease {
	l := peer("wireguard")
	l.Data, l.Data6 = lease.WireGuard{PublicKey: [32]byte{1}, Port: 51820}, lease.WireGuard{PublicKey: [32]byte{1}, Port: 51821}
	return l
}

func wireguardView(mode netconf.WireGuardMode) *fabric.View {
	v := view(netconf.WireGuard{ListenPort: 51820, ListenPort6: 51821, Mode: mode, Keepalive: 25, PSK: psk})
	v.Private, v.Public = whole.Secret{7}, whole.PublicKey{8}
	v.Network, v.Network6 = netip.MustParsePrefix("10.5.0.0/16"), netip.MustParsePrefix("2001:cafe:42::/48")
	return v
}

// TestWireGuardPeer: in mode separate there is one tunnel per family, else one for both; its endpoint is the port on which flanneld
// listens.
func TestWireGuardPeer(t *testing.T) {
	const key, rest = "peer AQAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA= dev ", " preshared-key (hidden) persistent-keepalive 25"
	both := " allowed-ips 10.5.68.0/24,2001:cafe:42:68::/64" + rest
	for _, c := range []struct {
		name   string
		mode   netconf.WireGuardMode
		change func(v *fabric.View, l *lease.Lease)
		want   []string
		err    string
	}{
		{"separate", netconf.ModeSeparate, nil, []string{
			key + "flannel-wg endpoint 192.0.2.2:51820 allowed-ips 10.5.68.0/24" + rest,
			key + "flannel-wg-v6 endpoint [2001:db8::2]:51821 allowed-ips 2001:cafe:42:68::/64" + rest,
		}, ""},
		{"ipv4", netconf.ModeIPv4, nil, []string{key + "flannel-wg endpoint 192.0.2.2:51820" + both}, ""},
		{"ipv6: flanneld advertises 51821 and listens on 51820", netconf.ModeIPv6, nil, []string{key + "flannel-wg endpoint [2001:db8::2]:51820" + both}, ""},
		{"auto with a public IPv4 address", netconf.ModeAuto, nil, []string{key + "flannel-wg endpoint 192.0.2.2:51820" + both}, ""},
		{
			"auto with a private IPv4 address", netconf.ModeAuto, func(_ *fabric.View, l *lease.Lease) { l.PublicIP = netip.MustParseAddr("10.0.0.2") },
			[]string{key + "flannel-wg endpoint [2001:db8::2]:51820" + both},
			"",
		},
		{"auto, own IPv6 address private", netconf.ModeAuto, func(v *fabric.View, l *lease.Lease) {
			l.PublicIP, v.Uplink.Public6 = netip.MustParseAddr("10.0.0.2"), netip.MustParseAddr("fd00::1")
		}, []string{key + "flannel-wg endpoint 10.0.0.2:51820" + both}, ""},
		{"a peer of IPv4 only", netconf.ModeAuto, func(_ *fabric.View, l *lease.Lease) {
			l.Subnet6, l.PublicIP6, l.Data6 = netip.Prefix{}, netip.Addr{}, nil
		}, []string{key + "flannel-wg endpoint 192.0.2.2:51820 allowed-ips 10.5.68.0/24" + rest}, ""},
		{"a peer without the family of the tunnel", netconf.ModeIPv6, func(_ *fabric.View, l *lease.Lease) {
			l.Subnet6, l.PublicIP6, l.Data6 = netip.Prefix{}, netip.Addr{}, nil
		}, nil, `has no public address for wireguard's Mode "ipv6"`},
		{"an old flanneld does not say its port", netconf.ModeIPv4, func(_ *fabric.View, l *lease.Lease) {
			l.Data, l.Data6 = lease.WireGuard{PublicKey: [32]byte{1}}, lease.WireGuard{PublicKey: [32]byte{1}}
		}, []string{key + "flannel-wg endpoint 192.0.2.2:51820" + both}, ""},
		{"two keys", netconf.ModeAuto, func(_ *fabric.View, l *lease.Lease) { l.Data6 = lease.WireGuard{PublicKey: [32]byte{2}} }, nil, "two public keys"},
	} {
		t.Run(c.name, func(t *testing.T) {
			v, l := wireguardView(c.mode), wireguardPeer()
			if c.change != nil {
				c.change(v, &l)
			}
			got, err := v.Peer(l)
			if text(got) != strings.Join(c.want, "\n") {
				t.Errorf("got\n%s\nwant\n%s", text(got), strings.Join(c.want, "\n"))
			}
			if (err == nil) != (c.err == "") || (err != nil && !strings.Contains(err.Error(), c.err)) {
				t.Errorf("error %v, want %q", err, c.err)
			}
		})
	}
}

// TestWireGuardOwn: the node advertises the ports on which it listens; flanneld advertises ListenPortV6 in every mode.
func TestWireGuardOwn(t *testing.T) {
	own := lease.Lease{Subnet: netip.MustParsePrefix("10.5.1.0/24"), Subnet6: netip.MustParsePrefix("2001:cafe:42:1::/64")}
	for _, c := range []struct {
		mode netconf.WireGuardMode
		port uint16
		want []string
	}{
		{netconf.ModeSeparate, 51821, []string{
			"route 10.5.0.0/16 dev flannel-wg", "route 2001:cafe:42::/48 dev flannel-wg-v6",
			"wireguard flannel-wg listen-port 51820 mtu 1420 inet 10.5.1.0/32",
			"wireguard flannel-wg-v6 listen-port 51821 mtu 1420 inet 2001:cafe:42:1::/128",
		}},
		{netconf.ModeAuto, 51820, []string{
			"route 10.5.0.0/16 dev flannel-wg", "route 2001:cafe:42::/48 dev flannel-wg",
			"wireguard flannel-wg listen-port 51820 mtu 1420 inet 10.5.1.0/32 inet 2001:cafe:42:1::/128",
		}},
	} {
		v := wireguardView(c.mode)
		if got := text(v.Own(own)); got != strings.Join(c.want, "\n") {
			t.Errorf("%s: got\n%s\nwant\n%s", c.mode, got, strings.Join(c.want, "\n"))
		}
		l := v.Lease()
		if l.Data != (lease.WireGuard{PublicKey: [32]byte{8}, Port: 51820}) || l.Data6 != (lease.WireGuard{PublicKey: [32]byte{8}, Port: c.port}) {
			t.Errorf("%s: lease %+v", c.mode, l)
		}
	}
}

// TestIPIP compares devices and routes with those of flanneld v0.28.9.
func TestIPIP(t *testing.T) {
	for _, c := range []struct {
		direct bool
		want   string
	}{
		{false, "route 10.5.68.0/24 via 192.0.2.2 dev flannel.ipip onlink"},
		{true, "route 10.5.68.0/24 via 192.0.2.2 dev eth0"},
	} {
		v := view(netconf.IPIP{DirectRouting: c.direct})
		v.V6 = false
		got, err := v.Peer(peer("ipip"))
		if text(got) != c.want || err != nil {
			t.Errorf("got %s, %v, want %s", text(got), err, c.want)
		}
		own := text(v.Own(lease.Lease{Subnet: netip.MustParsePrefix("10.5.1.0/24")}))
		if want := "ipip flannel.ipip local 192.0.2.1 mtu 1480 inet 10.5.1.0/32"; own != want {
			t.Errorf("got %s, want %s", own, want)
		}
	}
}

// TestTunnelSource: the source of tunnel packets is the interface's own address, whichever address the node advertises. flanneld at first
// uses the advertised one, which the node may not have, and the interface's when it creates the device again.
func TestTunnelSource(t *testing.T) {
	v := view(netconf.VXLAN{VNI: 1})
	v.Uplink.Public = netip.MustParseAddr("198.51.100.1")
	own := text(v.Own(lease.Lease{Subnet: netip.MustParsePrefix("10.5.1.0/24")}))
	if !strings.Contains(own, " local 192.0.2.1 ") || v.Lease().PublicIP != v.Uplink.Public {
		t.Errorf("device %s, lease %+v", own, v.Lease())
	}
}
