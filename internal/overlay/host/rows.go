package host

import (
	"net/netip"
	"strconv"

	"weft.dev/weft/internal/attach"
	"weft.dev/weft/internal/link/podlink"
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
	// User is the pod on the port; zero: none.
	User PortUser
}

// PortUser is the pod on a port, as the port's row names it.
type PortUser struct {
	// Sandbox is the id of the pod's sandbox.
	Sandbox string
	// Address is the pod's address.
	Address netip.Addr
}

// Keys of a port's external_ids, as OpenShift SDN writes them: its tools find a pod's port by them.
const (
	sandboxID = "sandbox"
	addressID = "ip"
)

// PodRows returns the row of a pod's port. ovs-vswitchd does not read the external_ids of ports, so writing them costs it nothing.
func PodRows(p PodPort) map[ovsdb.Key]ovsdb.Row {
	ids := map[string]string{ovsdb.OwnerID: string(p.Owner)}
	if p.User != (PortUser{}) {
		ids[sandboxID], ids[addressID] = p.User.Sandbox, p.User.Address.String()
	}
	row := &ovsdb.Port{
		Bridge: Bridge, Name: p.Interface, OFPort: uint16(p.OFPort), //nolint:gosec // ports of pods end at 0xfeff
		ExternalIDs: ids,
	}
	return map[ovsdb.Key]ovsdb.Row{row.Key(): row}
}

// UserOf returns the pod of an attachment, as the row of its port names it.
func UserOf(rec *attach.Record) PortUser {
	user := PortUser{Sandbox: rec.ContainerID}
	if len(rec.Addresses) > 0 {
		user.Address = rec.Addresses[0].Addr()
	}
	return user
}

// PrepluggedRow returns the row of a pre-plugged port, and its owner.
func PrepluggedRow(ofport uint32, user PortUser) (reconcile.Owner, map[ovsdb.Key]ovsdb.Row) {
	name := attach.PortName(ofport)
	o := reconcile.Owner(podlink.PrepluggedOwner(name))
	return o, PodRows(PodPort{Owner: o, Interface: name, OFPort: ofport, User: user})
}

// PrepluggedRows returns the rows of pre-plugged ports with the pods on them, by their owners.
func PrepluggedRows(ports map[uint32]PortUser) map[reconcile.Owner]map[ovsdb.Key]ovsdb.Row {
	rows := map[reconcile.Owner]map[ovsdb.Key]ovsdb.Row{}
	for ofport, user := range ports {
		o, row := PrepluggedRow(ofport, user)
		rows[o] = row
	}
	return rows
}

// FreeRows returns the rows of pre-plugged ports without a pod.
func FreeRows(ports ...uint32) map[reconcile.Owner]map[ovsdb.Key]ovsdb.Row {
	free := map[uint32]PortUser{}
	for _, ofport := range ports {
		free[ofport] = PortUser{}
	}
	return PrepluggedRows(free)
}
