// Package lease represents flannel's leases as values: a node's subnets, the addresses by which other nodes reach it, and its backend's
// data. It also reads and writes their texts, in a Node's annotations and in etcd.
//
// A lease comes from another node, which may be broken or hostile. The texts are parsed strictly, and [Judge] admits a lease only if it
// does not affect another node's.
package lease

import (
	"encoding/json"
	"fmt"
	"net"
	"net/netip"
)

// Lease is the lease of one node. If it lacks a family, all fields of that family are zero.
type Lease struct {
	// Subnet and Subnet6 are the ranges of the node's pods, masked.
	Subnet, Subnet6 netip.Prefix
	// PublicIP and PublicIP6 are the addresses by which other nodes reach it.
	PublicIP, PublicIP6 netip.Addr
	// Backend is the backend's type; empty with alloc.
	Backend string
	// Data and Data6 are the backend's data: VXLAN, WireGuard or Extension; nil if there is none.
	Data, Data6 Data
}

// Data is a backend's data of a node: VXLAN, WireGuard or Extension. Values are comparable.
type Data interface{ text() any }

// MAC is an Ethernet address as a comparable value.
type MAC [6]byte

// String returns the address as six pairs of digits.
func (m MAC) String() string { return net.HardwareAddr(m[:]).String() }

// VXLAN is the data of the VXLAN backend.
type VXLAN struct {
	VNI uint32
	MAC MAC
}

// WireGuard is the data of the WireGuard backend.
type WireGuard struct {
	PublicKey [32]byte
	// Port is the UDP port on which the node listens; 0: an older node that does not publish it.
	Port uint16
}

// Extension is the data of the extension backend: the output of the start command.
type Extension struct{ Output string }

type vxlanText struct {
	VNI     uint32
	VtepMAC string
}

type wireguardText struct {
	PublicKey string
	Port      uint16 `json:",omitempty"`
}

func (d VXLAN) text() any { return vxlanText{d.VNI, d.MAC.String()} }

func (d Extension) text() any { return d.Output }

// Marshal returns the JSON of data as flannel writes it; null for nil.
func Marshal(d Data) string {
	if d == nil {
		return "null"
	}
	text, err := json.Marshal(d.text())
	if err != nil { // texts and numbers can always be encoded
		return "null"
	}
	return string(text)
}

// parseData parses the JSON of a backend's data. Data of an unknown backend is ignored: its leases are not used.
func parseData(backend, text string) (Data, error) {
	if text == "" || text == "null" {
		switch backend {
		case "vxlan", "wireguard":
			return nil, fmt.Errorf("is empty: the %s backend needs it", backend)
		}
		return nil, nil //nolint:nilnil // no data is a value
	}
	switch backend {
	case "vxlan":
		return parseVXLAN(text)
	case "wireguard":
		return parseWireGuard(text)
	case "extension":
		var d Extension
		if err := json.Unmarshal([]byte(text), &d.Output); err != nil {
			return nil, fmt.Errorf("%s is not a JSON string", brief(text))
		}
		return d, nil
	}
	return nil, nil //nolint:nilnil // no data is a value
}

func parseVXLAN(text string) (Data, error) {
	var t vxlanText
	if err := json.Unmarshal([]byte(text), &t); err != nil {
		return nil, fmt.Errorf(`%s is not of the form {"VNI":1,"VtepMAC":"aa:bb:cc:dd:ee:ff"}`, brief(text))
	}
	const maxVNI = 1<<24 - 1
	if t.VNI > maxVNI {
		return nil, fmt.Errorf("VNI %d is above %d", t.VNI, maxVNI)
	}
	raw, err := net.ParseMAC(t.VtepMAC)
	if err != nil || len(raw) != len(MAC{}) {
		return nil, fmt.Errorf("VtepMAC %q is not an Ethernet address such as aa:bb:cc:dd:ee:ff", t.VtepMAC)
	}
	d := VXLAN{VNI: t.VNI, MAC: MAC(raw)}
	if d.MAC == (MAC{}) || d.MAC[0]&1 != 0 {
		return nil, fmt.Errorf("VtepMAC %s is not a unicast address", d.MAC)
	}
	return d, nil
}

func brief(text string) string {
	const most = 80
	if len(text) > most {
		return fmt.Sprintf("%q...", text[:most])
	}
	return fmt.Sprintf("%q", text)
}

// checkPublicIP parses the address of a tunnel's remote end, of IPv4 or of IPv6, and returns an error if it is invalid.
func checkPublicIP(text string, v4 bool) (netip.Addr, error) {
	addr, err := netip.ParseAddr(text)
	version := 6
	if v4 {
		version = 4
	}
	if err != nil || addr.Is4() != v4 || addr.Is4In6() || addr.Zone() != "" {
		return netip.Addr{}, fmt.Errorf("%s is not an IPv%d address", brief(text), version)
	}
	if addr.IsUnspecified() || addr.IsMulticast() || addr.IsLoopback() || addr == netip.AddrFrom4([4]byte{255, 255, 255, 255}) {
		return netip.Addr{}, fmt.Errorf("%s is not the address of a node", addr)
	}
	return addr, nil
}

// family is one family's part of a lease.
type family struct {
	subnet   netip.Prefix
	publicIP netip.Addr
	data     Data
}

func (l *Lease) family(v4 bool) family {
	if v4 {
		return family{l.Subnet, l.PublicIP, l.Data}
	}
	return family{l.Subnet6, l.PublicIP6, l.Data6}
}

func (l *Lease) setFamily(v4 bool, f family) {
	if v4 {
		l.Subnet, l.PublicIP, l.Data = f.subnet, f.publicIP, f.data
	} else {
		l.Subnet6, l.PublicIP6, l.Data6 = f.subnet, f.publicIP, f.data
	}
}
