package pipeline

// Tables of br0. Numbers are OpenShift SDN's where the purpose is the same.
const (
	// TableClassify sorts packets by the port they came in by, and drops what no port may send.
	TableClassify uint8 = 0
	// TableTunnel admits what known nodes send by the tunnel, from addresses of theirs, to addresses of this node.
	TableTunnel uint8 = 10
	// TablePod admits what pods send from addresses of theirs, and sets the source VNID.
	TablePod uint8 = 20
	// TableState finds the connection of what goes to Services, and of what may answer there, in a zone of Weft's own; replies
	// are translated back here. All else passes by, unless policies judge: they have the connections of all pods found.
	TableState uint8 = 21
	// TableNode tells nodes' addresses from others, for node ports.
	TableNode uint8 = 22
	// TableAffinity remembers which endpoint a client of a Service has; its flows are learned by the switch. With Services
	// in the switch it is only looked up on the way, and leads nowhere.
	TableAffinity uint8 = 24
	// TableService picks an endpoint for a new connection to a Service.
	TableService uint8 = 25
	// TableEndpoint translates to the endpoint that a client with affinity has, and picks one for who has none.
	TableEndpoint uint8 = 26
	// TableEgressPolicy judges what pods send, on the real destination.
	TableEgressPolicy uint8 = 27
	// TableRoute chooses the way by destination.
	TableRoute uint8 = 30
	// TableARPLocal takes ARP to local pods.
	TableARPLocal uint8 = 40
	// TableARPRemote takes ARP to remote nodes.
	TableARPRemote uint8 = 50
	// TableHost takes to the host what only the host serves: Services, as long as no table does.
	TableHost uint8 = 60
	// TableLocal finds a local pod's port and VNID.
	TableLocal uint8 = 70
	// TableIngress judges what pods receive, and delivers it.
	TableIngress uint8 = 80
	// TableDeliver delivers what policies let through to a pod.
	TableDeliver uint8 = 81
	// TableRemote sends to pods on other nodes by the tunnel.
	TableRemote uint8 = 90
	// TableExternal is where packets to outside the cluster begin; exceptions to the egress firewall go here.
	TableExternal uint8 = 99
	// TableEgressFirewall judges what leaves the cluster.
	TableEgressFirewall uint8 = 100
	// TableEgressRoute chooses by which address, of which node, a packet leaves the cluster.
	TableEgressRoute uint8 = 101
	// TableMulticastOut takes multicast from pods.
	TableMulticastOut uint8 = 110
	// TableMulticastTunnel copies multicast to the other nodes.
	TableMulticastTunnel uint8 = 111
	// TableMulticastLocal copies multicast to local pods.
	TableMulticastLocal uint8 = 120
	// TableNote holds the hash of the whole state. No packet gets here.
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
	{TableNode, "node", "tells nodes' addresses from others, for node ports"},
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

// Describe returns a table's name and purpose; the zero Name says that the number is not in use.
func Describe(number uint8) Table {
	for _, t := range tables {
		if t.Number == number {
			return t
		}
	}
	return Table{Number: number}
}
