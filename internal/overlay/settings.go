package overlay

import (
	"fmt"
	"net/netip"
	"reflect"

	networkv1 "weft.dev/weft/api/openshift/v1"
	"weft.dev/weft/internal/attach"
	"weft.dev/weft/internal/attach/plan"
	"weft.dev/weft/internal/clusternetwork"
	"weft.dev/weft/internal/ipam"
	"weft.dev/weft/internal/link"
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

// ownerCluster owns fragments that depend on neither a pod nor a remote host.
const ownerCluster = pipeline.OwnerCluster

// minMTU is the least MTU of pods in bytes, as for ClusterNetwork's mtu: what every IPv4 host must accept (RFC 1122, 3.3.2).
const minMTU = 576

// settings are a valid View, prepared for compilation. Immutable.
type settings struct {
	view        View
	mtu         int
	pipeline    pipeline.Config
	host        host.Config
	attachments plan.Settings
	// These features change, unlike the other fields.
	projects  *projects.Projects
	firewalls *firewalls.Firewalls
	multicast *multicast.Feature
	egress    *egress.Addresses
}

// newSettings returns the settings of a View, or an error that says what is wrong and how to correct it.
func newSettings(view View) (*settings, error) {
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
	s := &settings{view: view, mtu: mtu}
	s.pipeline = pipeline.Config{
		Mode: mode, ClusterNetworks: networks, ServiceNetwork: view.Cluster.ServiceNetwork,
		LocalSubnet: view.Local.Subnet, Gateway: pool.Gateway(), NodeIP: view.Local.HostIP, VXLANPort: view.Cluster.VXLANPort,
		ClosedPorts: view.ClosedPorts, Metadata: view.Closed.Metadata, ClosedTCP: view.Closed.TCPPorts,
		Conntrack: true, SCTP: view.Node.Datapath == ovsdb.DatapathSystem, KeepApart: view.Node.Datapath == ovsdb.DatapathSystem,
	}
	s.host = host.Config{
		ClusterNetworks: networks, ServiceNetwork: view.Cluster.ServiceNetwork, LocalSubnet: view.Local.Subnet,
		Gateway: pool.Gateway(), GatewayMAC: pipeline.PodMAC(pool.Gateway()), NodeIP: view.Local.HostIP,
		VXLANPort: view.Cluster.VXLANPort, ClosedPorts: view.ClosedPorts, Metadata: view.Closed.Metadata, ClosedTCP: view.Closed.TCPPorts,
		MTU: mtu, Datapath: view.Node.Datapath, RejectMAC: pipeline.RejectMAC(),
	}
	if s.policies() {
		s.host.Outside = pipeline.OutsideSource()
	}
	s.attachments = plan.Settings{
		ClusterNetworks: networks, ServiceNetworks: []netip.Prefix{view.Cluster.ServiceNetwork},
		HostGroup: host.PodGroup, TxOffloadOff: view.Node.Datapath == ovsdb.DatapathNetdev,
	}
	return s, s.pipeline.Validate()
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

// equalButRemotes reports whether two Views differ at most in their remote hosts.
func (v View) equalButRemotes(other View) bool {
	v.Remotes, other.Remotes = nil, nil
	return reflect.DeepEqual(v, other)
}

// flows are the flows that depend neither on a pod nor on a remote host.
func (s *settings) flows() map[reconcile.Owner]map[openflow.Key]openflow.Entry {
	return map[reconcile.Owner]map[openflow.Key]openflow.Entry{ownerCluster: s.pipeline.Static()}
}

// rows are the bridge and the ports that every node has.
func (s *settings) rows() map[reconcile.Owner]map[ovsdb.Key]ovsdb.Row {
	return map[reconcile.Owner]map[ovsdb.Key]ovsdb.Row{ownerCluster: s.host.Rows()}
}

// links are the host's own interface and routes.
func (s *settings) links() map[reconcile.Owner]map[link.Key]link.Item {
	return map[reconcile.Owner]map[link.Key]link.Item{ownerCluster: s.host.Links()}
}

// rules are the node's rules of nftables.
func (s *settings) rules() map[reconcile.Owner]map[nft.Key]nft.Item {
	return map[reconcile.Owner]map[nft.Key]nft.Item{ownerCluster: s.host.Rules()}
}

// choice is how an attachment's address and port are chosen.
func (s *settings) choice(key attach.Key, prePlugged bool) ports.Choice {
	return ports.Choice{Key: key, Subnet: s.view.Local.Subnet, MTU: s.mtu, PrePlugged: prePlugged}
}

// preplugged returns the configuration of pre-plugged ports.
func (s *settings) preplugged() link.Preplugged {
	return link.Preplugged{MTU: s.mtu, HostGroup: s.attachments.HostGroup, TxOffloadOff: s.attachments.TxOffloadOff}
}

// featureView returns what features compile from.
func (s *settings) featureView(live map[attach.Key]attach.Record) feature.View {
	return feature.View{Config: &s.pipeline, Uplink: s.view.Node.Uplink, Live: live}
}

// isolates reports whether VNIDs isolate pods.
func (s *settings) isolates() bool { return s.pipeline.Mode == pipeline.ModeMultitenant }

// hasVNIDs reports whether packets carry their sender's VNID. Then pods of a namespace without one are closed.
func (s *settings) hasVNIDs() bool { return s.isolates() || s.policies() }

// pod returns an attachment as the pipeline needs it.
func pod(rec *attach.Record) pipeline.Pod {
	p := pipeline.Pod{Owner: owner(rec.Key()), OFPort: rec.OFPort}
	for _, address := range rec.Addresses {
		p.Addrs = append(p.Addrs, address.Addr())
	}
	return p
}

// pod returns an attachment as the pipeline needs it; false if its namespace has no VNID: its port stays closed.
func (s *settings) pod(rec *attach.Record) (p pipeline.Pod, open bool) {
	p = pod(rec)
	p.Firewall = s.firewalls.Number(&s.pipeline, rec.PodNamespace)
	p.Egress = s.egress.Group(rec.PodNamespace)
	if !s.hasVNIDs() {
		return p, true
	}
	p.Multicast = s.multicast != nil && s.multicast.Sends(s.multicast.View(&s.pipeline), rec)
	p.VNID, p.Admits, open = s.projects.VNIDs(rec.PodNamespace)
	return p, open
}

func (s *settings) podFlows(rec *attach.Record) map[openflow.Key]openflow.Entry {
	p, open := s.pod(rec)
	if !open {
		return nil
	}
	return s.pipeline.Pod(p)
}
