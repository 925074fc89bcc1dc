package whole

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"time"

	"github.com/vishvananda/netlink"
	"golang.zx2c4.com/wireguard/wgctrl"
	"golang.zx2c4.com/wireguard/wgctrl/wgtypes"
)

// wireguard is the control of WireGuard devices.
type wireguard struct {
	client *wgctrl.Client // nil before the first WireGuard device
}

// open opens the control once there is a WireGuard device: before that, the kernel may not have loaded the module.
func (w *wireguard) open() (*wgctrl.Client, error) {
	if w.client == nil {
		client, err := wgctrl.New()
		if err != nil {
			return nil, fmt.Errorf("open WireGuard's control: %w", err)
		}
		w.client = client
	}
	return w.client, nil
}

func (w *wireguard) close() {
	if w.client != nil {
		_ = w.client.Close() // closing loses nothing: nothing is buffered
	}
}

// readWireGuard adds a device and its peers to out.
func (e *Engine) readWireGuard(link netlink.Link, out map[Key]Item) error {
	name := link.Attrs().Name
	client, err := e.wg.open()
	if err != nil {
		return err
	}
	have, err := client.Device(name)
	if errors.Is(err, os.ErrNotExist) {
		return nil // it was deleted meanwhile
	}
	if err != nil {
		return fmt.Errorf("read WireGuard device %s: %w", name, err)
	}
	d := &WireGuard{Name: name, Port: uint16(have.ListenPort), Private: Secret(have.PrivateKey), MTU: mtuIfUp(link)} //nolint:gosec // a port
	for i, v4 := range []bool{true, false} {
		if d.Addresses[i], err = e.address(link, v4); err != nil {
			return err
		}
		if !d.Addresses[i].IsValid() {
			d.Addresses[i] = noAddress
		}
	}
	out[d.Key()] = d
	for i := range have.Peers {
		p := peerOf(name, &have.Peers[i])
		e.mu.Lock()
		if known, ok := e.known[p.Key()].(*Peer); ok && p.Endpoint.IsValid() {
			p.Endpoint = known.Endpoint
		}
		e.mu.Unlock()
		out[p.Key()] = p
	}
	return nil
}

// noAddress represents a family in which a device has no address or several: it equals no desired address.
var noAddress = netip.PrefixFrom(netip.IPv4Unspecified(), 0) //nolint:gochecknoglobals // a constant

func peerOf(device string, have *wgtypes.Peer) *Peer {
	p := &Peer{
		Device: device, Public: PublicKey(have.PublicKey), Shared: Secret(have.PresharedKey),
		Keepalive: int(have.PersistentKeepaliveInterval / time.Second),
	}
	if have.Endpoint != nil {
		endpoint := have.Endpoint.AddrPort()
		p.Endpoint = netip.AddrPortFrom(endpoint.Addr().Unmap(), endpoint.Port())
	}
	for i := range have.AllowedIPs {
		r := prefixOf(&have.AllowedIPs[i])
		to := &p.Allowed[0]
		if r.Addr().Is6() {
			to = &p.Allowed[1]
		}
		if to.IsValid() { // one too many
			r = noAddress
		}
		*to = r
	}
	return p
}

// configure sets a device's key and port.
func (w *wireguard) configure(want *WireGuard) error {
	client, err := w.open()
	if err != nil {
		return err
	}
	have, err := client.Device(want.Name)
	if err != nil {
		return fmt.Errorf("read: %w", err)
	}
	key, port := wgtypes.Key(want.Private), int(want.Port)
	if have.PrivateKey == key && have.ListenPort == port {
		return nil
	}
	if err := client.ConfigureDevice(want.Name, wgtypes.Config{PrivateKey: &key, ListenPort: &port}); err != nil {
		return fmt.Errorf("set key and port: %w", err)
	}
	return nil
}

// setPeer adds a peer, or changes it.
func (w *wireguard) setPeer(want *Peer) error {
	shared, keepalive := wgtypes.Key(want.Shared), time.Duration(want.Keepalive)*time.Second
	config := wgtypes.PeerConfig{
		PublicKey: wgtypes.Key(want.Public), PresharedKey: &shared, PersistentKeepaliveInterval: &keepalive, ReplaceAllowedIPs: true,
	}
	if want.Endpoint.IsValid() {
		config.Endpoint = net.UDPAddrFromAddrPort(want.Endpoint)
	}
	for _, r := range want.Allowed {
		if r.IsValid() {
			config.AllowedIPs = append(config.AllowedIPs, *netOf(r))
		}
	}
	return w.changePeer(want.Device, config)
}

func (w *wireguard) removePeer(have *Peer) error {
	err := w.changePeer(have.Device, wgtypes.PeerConfig{PublicKey: wgtypes.Key(have.Public), Remove: true})
	if errors.Is(err, os.ErrNotExist) {
		return nil // removed with its device
	}
	return err
}

func (w *wireguard) changePeer(device string, config wgtypes.PeerConfig) error {
	client, err := w.open()
	if err != nil {
		return err
	}
	return client.ConfigureDevice(device, wgtypes.Config{Peers: []wgtypes.PeerConfig{config}})
}
