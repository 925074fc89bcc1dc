// Package layout numbers what the flows of br0 share: tables, registers and their bits, bits of connections' marks, and ports.
package layout

// Tables of br0. Numbers are those of OpenShift SDN if the purpose is the same.
const (
	// TableClassify sorts packets by the port they came in by, and drops what no port may send.
	TableClassify uint8 = 0
	// TableTunnel admits packets of known nodes from the tunnel, from the nodes' own pod ranges, to addresses of this node.
	TableTunnel uint8 = 10
	// TablePod admits packets of pods from their own addresses, and sets the source VNID.
	TablePod uint8 = 20
	// TableState looks up the connection of packets to Services and of possible replies, in a zone of Weft's own; replies are translated back
	// here. All other packets pass untracked, except with policies: then all connections of pods are tracked.
	TableState uint8 = 21
	// TableNode marks nodes' addresses, for node ports.
	TableNode uint8 = 22
	// TableAffinity has the endpoint of each client of a Service with affinity; the switch learns its flows. With Services in the switch it is
	// only looked up on the way, and no packet continues from it.
	TableAffinity uint8 = 24
	// TableService picks an endpoint for a new connection to a Service.
	TableService uint8 = 25
	// TableEndpoint translates to the endpoint of a client with affinity, and picks one for a client without.
	TableEndpoint uint8 = 26
	// TableEgressPolicy applies egress policies, to the translated destination.
	TableEgressPolicy uint8 = 27
	// TableRoute chooses the path by destination.
	TableRoute uint8 = 30
	// TableARPLocal forwards ARP to local pods.
	TableARPLocal uint8 = 40
	// TableARPRemote forwards ARP to remote nodes.
	TableARPRemote uint8 = 50
	// TableHost sends to the host what only the host serves: Services that no table serves.
	TableHost uint8 = 60
	// TableLocal finds a local pod's port and VNID.
	TableLocal uint8 = 70
	// TableIngress decides which packets pods receive, and delivers them.
	TableIngress uint8 = 80
	// TableDeliver delivers packets that policies allow to a pod.
	TableDeliver uint8 = 81
	// TableRemote sends to pods on other nodes by the tunnel.
	TableRemote uint8 = 90
	// TableExternal is the first table for packets to outside the cluster. It has the exceptions to the egress firewall.
	TableExternal uint8 = 99
	// TableEgressFirewall applies egress firewalls to traffic that leaves the cluster.
	TableEgressFirewall uint8 = 100
	// TableEgressRoute chooses the address and the node by which a packet leaves the cluster.
	TableEgressRoute uint8 = 101
	// TableMulticastOut takes multicast from pods.
	TableMulticastOut uint8 = 110
	// TableMulticastTunnel copies multicast to the other nodes.
	TableMulticastTunnel uint8 = 111
	// TableMulticastLocal copies multicast to local pods.
	TableMulticastLocal uint8 = 120
	// TableNote holds the hash of the whole state. No packet reaches it.
	TableNote uint8 = 253
)

// Table is a table of br0.
type Table struct {
	Number  uint8
	Name    string
	Purpose string
}

//nolint:gochecknoglobals // a constant table
var tables = [...]Table{
	{TableClassify, "classify", "sorts packets by the port they came in by, and drops what no port may send"},
	{TableTunnel, "tunnel", "from the tunnel: admits known nodes, from their addresses, to this node's"},
	{TablePod, "pod", "from a pod: admits what it may send from its addresses; sets the source VNID"},
	{TableState, "state", "connection state of what Services need, in a zone of Weft's own; replies are translated back"},
	{TableNode, "node", "distinguishes nodes' addresses from others, for node ports"},
	{TableAffinity, "affinity", "session affinity of Services; flows learned by the switch"},
	{TableService, "service", "Services: a new connection picks an endpoint"},
	{TableEndpoint, "endpoint", "Services with affinity: the client's endpoint, or a new one"},
	{TableEgressPolicy, "egress-policy", "egress policy, on the real destination"},
	{TableRoute, "route", "chooses the way by destination"},
	{TableARPLocal, "arp-local", "ARP to local pods"},
	{TableARPRemote, "arp-remote", "ARP to remote nodes"},
	{TableHost, "host", "to the host what only the host serves"},
	{TableLocal, "local", "to a local pod: its VNID and port"},
	{TableIngress, "ingress", "isolation and policy of what pods receive; delivers"},
	{TableDeliver, "deliver", "delivers what policies let through"},
	{TableRemote, "remote", "to pods on other nodes, by the tunnel"},
	{TableExternal, "external", "to outside the cluster: exceptions from the egress firewall"},
	{TableEgressFirewall, "egress-firewall", "egress firewall"},
	{TableEgressRoute, "egress-route", "egress addresses; to the host"},
	{TableMulticastOut, "multicast-out", "multicast from pods"},
	{TableMulticastTunnel, "multicast-tunnel", "multicast to other nodes"},
	{TableMulticastLocal, "multicast-local", "multicast to local pods"},
	{TableNote, "note", "the hash of the whole state, written last"},
}

// Tables returns all tables, in order.
func Tables() []Table { return append([]Table(nil), tables[:]...) }

// TableName returns a table's name, or "" for a number that is not in use.
func TableName(number uint8) string { return Describe(number).Name }

// Describe returns a table's name and purpose. Name is empty for a number that is not in use.
func Describe(number uint8) Table {
	for _, t := range tables {
		if t.Number == number {
			return t
		}
	}
	return Table{Number: number}
}
