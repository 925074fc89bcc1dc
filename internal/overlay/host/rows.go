package host

import (
	"strconv"

	"weft.dev/weft/internal/ovsdb"
	"weft.dev/weft/internal/reconcile"
)

// ofports of the bridge's own ports, as in the flows.
const (
	tunnelPort = 1
	tunPort    = 2
)

// Rows returns the bridge with its tunnel and the host's interface. Without flows the bridge forwards nothing.
func (c *Config) Rows() map[ovsdb.Key]ovsdb.Row {
	ids := map[string]string{ovsdb.OwnerID: owner}
	rows := map[ovsdb.Key]ovsdb.Row{}
	for _, row := range []ovsdb.Row{
		&ovsdb.Bridge{
			Name: Bridge, DatapathType: c.Datapath, FailMode: "secure", ExternalIDs: ids,
			Protocols: []string{"OpenFlow13", "OpenFlow14", "OpenFlow15"},
			// If a controller were set, the switch would open hidden flows for it at once: ARP and TCP to its address from any port, before the
			// pipeline and outside it.
			OtherConfig: map[string]string{"disable-in-band": "true"},
		},
		&ovsdb.Port{
			Bridge: Bridge, Name: Tunnel, Type: ovsdb.TypeVXLAN, OFPort: tunnelPort, ExternalIDs: ids,
			Options: map[string]string{"remote_ip": "flow", "key": "flow", "dst_port": strconv.Itoa(int(c.vxlanPort()))},
		},
		&ovsdb.Port{
			Bridge: Bridge, Name: Tun, Type: ovsdb.TypeInternal, OFPort: tunPort, ExternalIDs: ids,
			MAC: c.GatewayMAC.String(), MTURequest: c.MTU,
		},
	} {
		rows[row.Key()] = row
	}
	return rows
}

// PodPort is the port of a pod's interface.
type PodPort struct {
	// Owner is the owner of the attachment.
	Owner reconcile.Owner
	// Interface is the host veth.
	Interface string
	// OFPort is its ofport.
	OFPort uint32
}

// PodRows returns the row of a pod's port.
func PodRows(p PodPort) map[ovsdb.Key]ovsdb.Row {
	row := &ovsdb.Port{
		Bridge: Bridge, Name: p.Interface, OFPort: uint16(p.OFPort), //nolint:gosec // ports of pods end at 0xfeff
		ExternalIDs: map[string]string{ovsdb.OwnerID: string(p.Owner)},
	}
	return map[ovsdb.Key]ovsdb.Row{row.Key(): row}
}
