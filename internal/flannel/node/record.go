package node

import (
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"time"

	"github.com/containernetworking/cni/pkg/types"
	types100 "github.com/containernetworking/cni/pkg/types/100"

	"weft.dev/weft/internal/attach"
	"weft.dev/weft/internal/attach/plan"
	"weft.dev/weft/internal/cni"
	"weft.dev/weft/internal/flannel/address"
	"weft.dev/weft/internal/flannel/handover"
	"weft.dev/weft/internal/link"
	"weft.dev/weft/internal/link/podlink"
)

// details is what the network records of an attachment: the configuration at its creation.
type details struct {
	Bridge  string  `json:"bridge"`
	Hairpin bool    `json:"hairpin,omitempty"`
	Routes  []route `json:"routes,omitempty"`

	origin
	handover.Files
}

// origin is what the network records of the pod itself.
type origin struct {
	// Reason is why the pod is on this network.
	Reason string `json:"reason,omitempty"`
	// Sticky is how long the pod's addresses are kept for the next pod of its name; 0: they are not.
	Sticky time.Duration `json:"sticky,omitempty"`
}

func detailsOf(rec *attach.Record) (details, error) {
	var d details
	if err := json.Unmarshal(rec.Details, &d); err != nil {
		return d, fmt.Errorf("attachment %s: details of its record: %w", rec.Key(), err)
	}
	return d, nil
}

// newRecord returns the record of a pod with these addresses.
func newRecord(b *bridge, hostInterface string, addresses []netip.Prefix, of origin) (attach.Record, error) {
	rec := attach.Record{
		Network: Name, Addresses: addresses, HostInterface: hostInterface, MTU: b.MTU, MAC: plan.MAC(addresses).String(),
	}
	d := details{
		Bridge: b.Name, Hairpin: b.Hairpin, Routes: slices.Clone(b.Routes), origin: of, Files: b.files,
	}
	for _, prefix := range addresses {
		if !b.Gateway {
			continue
		}
		rec.Gateway = append(rec.Gateway, address.Gateway(prefix))
		if b.Default {
			d.Routes = append(d.Routes, route{Dst: netip.PrefixFrom(zero(prefix.Addr()), 0)})
		}
	}
	var err error
	if rec.Details, err = json.Marshal(d); err != nil {
		return rec, fmt.Errorf("details of the record: %w", err)
	}
	return rec, nil
}

func zero(addr netip.Addr) netip.Addr {
	if addr.Is4() {
		return netip.IPv4Unspecified()
	}
	return netip.IPv6Unspecified()
}

// routes returns the pod's routes. Routes of a family that the pod lacks are left out, and so are routes without any gateway.
func (d *details) routes(rec *attach.Record) []link.Route {
	var out []link.Route
	for _, r := range d.Routes {
		via := r.GW
		for _, gw := range rec.Gateway {
			if !via.IsValid() && gw.Is4() == r.Dst.Addr().Is4() {
				via = gw
			}
		}
		if via.IsValid() && via.Is4() == r.Dst.Addr().Is4() {
			out = append(out, link.Route{Dst: r.Dst, Gateway: via})
		}
	}
	return out
}

// pair returns the veth pair of an attachment.
func (d *details) pair(rec *attach.Record) (podlink.Pair, error) {
	pair, err := plan.Pair(rec, &plan.Settings{HostGroup: hostGroup})
	pair.PodRoutes = d.routes(rec)
	return pair, err
}

// write writes the files for flannel's plugins.
func (d *details) write(rec *attach.Record) error {
	err := d.Write(rec)
	if err == nil || errors.Is(err, handover.ErrReserved) {
		return err
	}
	return cni.Errorf(cni.CodeIO, "files for flannel's plugins: %w", err)
}

// port makes the host veth a port of the bridge.
func (d *details) port(rec *attach.Record) map[link.Key]link.Item {
	port := &link.BridgePort{Bridge: d.Bridge, Device: rec.HostInterface, Hairpin: d.Hairpin}
	if mac, err := net.ParseMAC(rec.MAC); err == nil && len(mac) == len(port.MAC) { // a record's MAC has been validated
		port.MAC = [6]byte(mac)
	}
	return map[link.Key]link.Item{port.Key(): port}
}

// result returns the result for the runtime, as flannel with the delegate bridge returns it: bridge, host veth, the pod's interface.
func (d *details) result(rec *attach.Record, hostMAC net.HardwareAddr) *types100.Result {
	result := &types100.Result{CNIVersion: types100.ImplementedSpecVersion, Interfaces: []*types100.Interface{
		{Name: d.Bridge},
		{Name: rec.HostInterface, Mac: hostMAC.String()},
		{Name: rec.IfName, Mac: rec.MAC, Mtu: rec.MTU, Sandbox: rec.Netns},
	}}
	const pod = 2
	for _, address := range rec.Addresses {
		ip := &types100.IPConfig{Interface: new(pod), Address: ipNet(address)}
		for _, gw := range rec.Gateway {
			if gw.Is4() == address.Addr().Is4() {
				ip.Gateway = gw.AsSlice()
			}
		}
		result.IPs = append(result.IPs, ip)
	}
	for _, r := range d.routes(rec) {
		result.Routes = append(result.Routes, &types.Route{Dst: ipNet(r.Dst), GW: r.Gateway.AsSlice()})
	}
	return result
}

func ipNet(p netip.Prefix) net.IPNet {
	return net.IPNet{IP: p.Addr().AsSlice(), Mask: net.CIDRMask(p.Bits(), p.Addr().BitLen())}
}
