// Package settings checks the overlay's input about the cluster and the node, its View, and prepares it for compilation: the configurations of
// the compilers, and what depends on nothing else. Settings are values; they do no I/O, and depend on no part of the overlay but its features,
// which contribute to pods' flows.
package settings

import (
	"fmt"
	"net/netip"

	networkv1 "weft.dev/weft/api/openshift/v1"
	"weft.dev/weft/internal/attach"
	"weft.dev/weft/internal/attach/plan"
	"weft.dev/weft/internal/clusternetwork"
	"weft.dev/weft/internal/ipam"
	"weft.dev/weft/internal/link"
	"weft.dev/weft/internal/link/podlink"
	"weft.dev/weft/internal/nft"
	"weft.dev/weft/internal/openflow"
	"weft.dev/weft/internal/overlay/egress"
	"weft.dev/weft/internal/overlay/feature"
	"weft.dev/weft/internal/overlay/firewalls"
	"weft.dev/weft/internal/overlay/host"
	"weft.dev/weft/internal/overlay/multicast"
	"weft.dev/weft/internal/overlay/pipeline"
	"weft.dev/weft/internal/overlay/ports"
	"weft.dev/weft/internal/overlay/projects"
	"weft.dev/weft/internal/ovsdb"
	"weft.dev/weft/internal/reconcile"
)

// minMTU is the least MTU of pods in bytes, as for ClusterNetwork's mtu: what every IPv4 host must accept (RFC 1122, 3.3.2).
const minMTU = 576

// Settings are a valid View, prepared for compilation. Immutable.
type Settings struct {
	View        View
	MTU         int
	Pipeline    pipeline.Config
	Host        host.Config
	Attachments plan.Settings
	// These features change, unlike the other fields.
	Projects  *projects.Projects
	Firewalls *firewalls.Firewalls
	Multicast *multicast.Feature
	Egress    *egress.Addresses
}

// New returns the settings of a View, or an error that says what is wrong and how to correct it.
func New(view View) (*Settings, error) {
	mode, err := pipelineMode(view.Cluster.Mode)
	if err != nil {
		return nil, err
	}
	if err := addressesOutside(&view); err != nil {
		return nil, err
	}
	mtu, err := overlayMTU(view)
	if err != nil {
		return nil, err
	}
	pool, err := ipam.NewPool(view.Local.Subnet)
	if err != nil {
		return nil, fmt.Errorf("HostSubnet %s: subnet: %w", view.Local.Host, err)
	}
	var networks []netip.Prefix
	for _, r := range view.Cluster.ClusterNetworks {
		networks = append(networks, r.Prefix)
	}
	s := &Settings{View: view, MTU: mtu}
	s.Pipeline = pipeline.Config{
		Mode: mode, ClusterNetworks: networks, ServiceNetwork: view.Cluster.ServiceNetwork,
		LocalSubnet: view.Local.Subnet, Gateway: pool.Gateway(), NodeIP: view.Local.HostIP, VXLANPort: view.Cluster.VXLANPort,
		ClosedPorts: view.ClosedPorts, Metadata: view.Closed.Metadata, ClosedTCP: view.Closed.TCPPorts,
		Conntrack: true, SCTP: view.Node.Datapath == ovsdb.DatapathSystem, KeepApart: view.Node.Datapath == ovsdb.DatapathSystem,
	}
	s.Host = host.Config{
		ClusterNetworks: networks, ServiceNetwork: view.Cluster.ServiceNetwork, LocalSubnet: view.Local.Subnet,
		Gateway: pool.Gateway(), GatewayMAC: pipeline.PodMAC(pool.Gateway()), NodeIP: view.Local.HostIP,
		VXLANPort: view.Cluster.VXLANPort, ClosedPorts: view.ClosedPorts, Metadata: view.Closed.Metadata, ClosedTCP: view.Closed.TCPPorts,
		MTU: mtu, Datapath: view.Node.Datapath, RejectMAC: pipeline.RejectMAC(),
	}
	s.Host.Egress = s.HasVNIDs()
	if s.Policies() {
		s.Host.Outside = pipeline.OutsideSource()
	}
	s.Attachments = plan.Settings{
		ClusterNetworks: networks, ServiceNetworks: []netip.Prefix{view.Cluster.ServiceNetwork},
		HostGroup: host.PodGroup, TxOffloadOff: view.Node.Datapath == ovsdb.DatapathNetdev,
	}
	return s, s.Pipeline.Validate()
}

// pipelineMode returns the pipeline's constant for a mode.
func pipelineMode(mode clusternetwork.Mode) (pipeline.Mode, error) {
	switch mode {
	case clusternetwork.ModeSubnet:
		return pipeline.ModeSubnet, nil
	case clusternetwork.ModeMultitenant:
		return pipeline.ModeMultitenant, nil
	case clusternetwork.ModeNetworkPolicy:
		return pipeline.ModeNetworkPolicy, nil
	}
	return "", fmt.Errorf("ClusterNetwork default: pluginName: it is %s, %s or %s", networkv1.PluginSubnet, networkv1.PluginMultitenant, networkv1.PluginNetworkPolicy)
}

// addressesOutside returns an error if a network of pods or Services contains a node's address. Such a ClusterNetwork is refused as a
// whole: packets between nodes would be taken for pods' packets and dropped as invalid. Addresses of hosts without a Node do not count: a
// wrong one is left out, and the ClusterNetwork is valid.
func addressesOutside(view *View) error {
	check := func(node *clusternetwork.HostSubnet) error {
		const help = "it contains the address of node %s, %s: choose another range, or other addresses for the nodes"
		for _, network := range view.Cluster.ClusterNetworks {
			if network.Prefix.Contains(node.HostIP) {
				return fmt.Errorf("ClusterNetwork default: clusterNetworks: %s: "+help, network.Prefix, node.Host, node.HostIP)
			}
		}
		if view.Cluster.ServiceNetwork.Contains(node.HostIP) {
			return fmt.Errorf("ClusterNetwork default: serviceNetwork: %s: "+help, view.Cluster.ServiceNetwork, node.Host, node.HostIP)
		}
		return nil
	}
	if err := check(&view.Local); err != nil {
		return err
	}
	for i := range view.Remotes {
		if host := &view.Remotes[i]; host.NodeUID != "" {
			if err := check(host); err != nil {
				return err
			}
		}
	}
	return nil
}

// overlayMTU returns the pods' MTU: the ClusterNetwork's mtu, or what the node's interface leaves for a packet in a tunnel.
func overlayMTU(view View) (int, error) {
	room := view.Node.MTU - networkv1.VXLANOverhead
	switch mtu := view.Cluster.MTU; {
	case room < minMTU:
		return 0, fmt.Errorf("the MTU of %s is %d: with the tunnel's %d bytes pods need at least %d, raise it",
			view.Node.Uplink, view.Node.MTU, networkv1.VXLANOverhead, minMTU+networkv1.VXLANOverhead)
	case mtu == 0:
		return room, nil
	case mtu > room:
		return 0, fmt.Errorf("ClusterNetwork default: mtu %d and the tunnel's %d bytes do not fit the MTU of %s, %d: set mtu to at most %d, or raise the interface's",
			mtu, networkv1.VXLANOverhead, view.Node.Uplink, view.Node.MTU, room)
	default:
		return mtu, nil
	}
}

// Flows are the flows that depend neither on a pod nor on a remote host.
func (s *Settings) Flows() map[reconcile.Owner]map[openflow.Key]openflow.Entry {
	return map[reconcile.Owner]map[openflow.Key]openflow.Entry{pipeline.OwnerCluster: s.Pipeline.Static()}
}

// Rows are the bridge and the ports that every node has.
func (s *Settings) Rows() map[reconcile.Owner]map[ovsdb.Key]ovsdb.Row {
	return map[reconcile.Owner]map[ovsdb.Key]ovsdb.Row{pipeline.OwnerCluster: s.Host.Rows()}
}

// Links are the host's own interface and routes.
func (s *Settings) Links() map[reconcile.Owner]map[link.Key]link.Item {
	return map[reconcile.Owner]map[link.Key]link.Item{pipeline.OwnerCluster: s.Host.Links()}
}

// Rules are the node's rules of nftables.
func (s *Settings) Rules() map[reconcile.Owner]map[nft.Key]nft.Item {
	return map[reconcile.Owner]map[nft.Key]nft.Item{pipeline.OwnerCluster: s.Host.Rules()}
}

// Choice is how an attachment's address and port are chosen.
func (s *Settings) Choice(key attach.Key, prePlugged bool) ports.Choice {
	return ports.Choice{Key: key, Subnet: s.View.Local.Subnet, MTU: s.MTU, PrePlugged: prePlugged}
}

// Preplugged returns the configuration of pre-plugged ports.
func (s *Settings) Preplugged() podlink.Preplugged {
	return podlink.Preplugged{MTU: s.MTU, HostGroup: s.Attachments.HostGroup, TxOffloadOff: s.Attachments.TxOffloadOff}
}

// FeatureView returns what features compile from.
func (s *Settings) FeatureView(live map[attach.Key]attach.Record) feature.View {
	return feature.View{Config: &s.Pipeline, Uplink: s.View.Node.Uplink, Live: live}
}

// Isolates reports whether VNIDs isolate pods.
func (s *Settings) Isolates() bool { return s.Pipeline.Mode == pipeline.ModeMultitenant }

// HasVNIDs reports whether packets carry their sender's VNID. Then pods of a namespace without one are closed.
func (s *Settings) HasVNIDs() bool { return s.Isolates() || s.Policies() }

// PodOf returns an attachment as the pipeline needs it.
func PodOf(rec *attach.Record) pipeline.Pod {
	p := pipeline.Pod{Owner: reconcile.Owner(rec.Key().Owner()), OFPort: rec.OFPort}
	for _, address := range rec.Addresses {
		p.Addrs = append(p.Addrs, address.Addr())
	}
	return p
}

// Pod returns an attachment as the pipeline needs it; false if its namespace has no VNID: its port stays closed.
func (s *Settings) Pod(rec *attach.Record) (p pipeline.Pod, open bool) {
	p = PodOf(rec)
	p.Firewall = s.Firewalls.Number(&s.Pipeline, rec.PodNamespace)
	p.Egress = s.Egress.Group(rec.PodNamespace)
	if !s.HasVNIDs() {
		return p, true
	}
	p.Multicast = s.Multicast != nil && s.Multicast.Sends(s.Multicast.View(&s.Pipeline), rec)
	p.VNID, p.Admits, open = s.Projects.VNIDs(rec.PodNamespace)
	return p, open
}

// PodFlows returns the flows of an attachment in a mode without policies; none if its port stays closed.
func (s *Settings) PodFlows(rec *attach.Record) map[openflow.Key]openflow.Entry {
	p, open := s.Pod(rec)
	if !open {
		return nil
	}
	return s.Pipeline.Pod(p)
}

// Judges reports whether the switch decides which pods may send to which.
func (s *Settings) Judges() bool { return s.Policies() || s.Isolates() }

// Policies reports whether NetworkPolicies isolate pods.
func (s *Settings) Policies() bool { return s.Pipeline.Mode == pipeline.ModeNetworkPolicy }
