package pipeline

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"

	"weft.dev/weft/internal/openflow"
	"weft.dev/weft/internal/openflow/action"
	"weft.dev/weft/internal/openflow/oxm"
	"weft.dev/weft/internal/overlay/pipeline/layout"
	"weft.dev/weft/internal/reconcile"
)

// Remote is another node, or a host without a Node that has a HostSubnet.
type Remote struct {
	// UID is the HostSubnet's UID. Two objects may briefly name the same host or have the same address.
	UID string
	// Name is the HostSubnet's name, for errors. Default: its UID.
	Name string
	// NodeIP is the address of its tunnels.
	NodeIP netip.Addr
	// Subnet is the range of its pods and its gateway.
	Subnet netip.Prefix
	// FixedVNID, if not 0, is the VNI of all traffic to the host, which is then not a node of the cluster.
	FixedVNID uint32
}

// vnidMax is the largest VNI (RFC 7348, section 5).
const vnidMax = 1<<24 - 1

// Owner returns the owner of the HostSubnet's flows.
func (r Remote) Owner() reconcile.Owner { return reconcile.Owner("hostsubnet/" + r.UID) }

func (r Remote) name() string { return cmp.Or(r.Name, r.UID) }

// CheckRemote returns an error that says why Remote would return no flows.
func (c *Config) CheckRemote(r Remote) error {
	switch {
	case !r.NodeIP.Is4() || r.NodeIP.IsLoopback() || r.NodeIP.IsMulticast() || r.NodeIP.IsUnspecified():
		return fmt.Errorf("HostSubnet %s: host address %s is not a usable IPv4 address", r.name(), r.NodeIP)
	case r.NodeIP == c.NodeIP:
		return fmt.Errorf("HostSubnet %s: host address %s is this node's own", r.name(), r.NodeIP)
	case c.inCluster(host(r.NodeIP)) || c.ServiceNetwork.Contains(r.NodeIP):
		return fmt.Errorf("HostSubnet %s: host address %s is within the pods' or the Services' network", r.name(), r.NodeIP)
	case !canonical4(r.Subnet) || !c.inCluster(r.Subnet):
		return fmt.Errorf("HostSubnet %s: subnet %s is not within a cluster network", r.name(), r.Subnet)
	case r.Subnet.Overlaps(c.LocalSubnet):
		return fmt.Errorf("HostSubnet %s: subnet %s overlaps this node's own, %s", r.name(), r.Subnet, c.LocalSubnet)
	case r.FixedVNID > vnidMax:
		return fmt.Errorf("HostSubnet %s: VNID %d is over %d", r.name(), r.FixedVNID, vnidMax)
	}
	return nil
}

// Remote returns the flows to and from another node; none if it is not valid (CheckRemote).
func (c *Config) Remote(r Remote) map[openflow.Key]openflow.Entry {
	return openflow.Fragment(c.RemoteRules(r))
}

// RemoteRules is Remote with the purpose of each flow.
func (c *Config) RemoteRules(r Remote) []openflow.Rule {
	const priority = 100
	if c.CheckRemote(r) != nil {
		return nil
	}
	p := c.program(r.Owner())
	from := match(oxm.InPort(layout.PortVXLAN), oxm.TunSrc(r.NodeIP), oxm.TunDst(c.NodeIP))
	sender := c.sourceFromTunnel()
	p.Add(layout.TableTunnel, priority, "ARP from the node, for an address of its own, to this node's pods",
		append(slices.Clip(from), oxm.ARP(), oxm.ARPSPA(r.Subnet), oxm.ARPTPA(c.LocalSubnet)),
		sender, action.GotoTable(layout.TableRoute))
	p.Add(layout.TableTunnel, priority, "IPv4 from the node's pods or its gateway, to this node's pods",
		append(slices.Clip(from), oxm.IPSrc(r.Subnet), oxm.IPDst(c.LocalSubnet)),
		sender, action.GotoTable(layout.TableState))
	egressTables{p}.egressRemote(r, from)
	vni := sourceToTunnel()
	if r.FixedVNID != 0 {
		vni = action.SetField(oxm.TunID(uint64(r.FixedVNID)))
	}
	tunnel := []action.Action{vni, action.SetField(oxm.TunDst(r.NodeIP)), action.Output(layout.PortVXLAN)}
	p.Add(layout.TableARPRemote, priority, "ARP to the node", match(oxm.ARP(), oxm.ARPTPA(r.Subnet)), tunnel...)
	p.output(layout.TableRemote, priority, "to the node's pods", match(oxm.IPDst(r.Subnet)), tunnel...)
	return p.List
}
