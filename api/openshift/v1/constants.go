package v1

// The plugin names that ClusterNetwork.PluginName takes. They are compared without regard to case.
const (
	// PluginSubnet is the flat network: every pod reaches every other.
	PluginSubnet = "redhat/openshift-ovs-subnet"
	// PluginMultitenant isolates namespaces whose VNIDs differ; VNID 0 reaches, and is reached by, all.
	PluginMultitenant = "redhat/openshift-ovs-multitenant"
	// PluginNetworkPolicy isolates by NetworkPolicy objects; without one, every pod reaches every other.
	PluginNetworkPolicy = "redhat/openshift-ovs-networkpolicy"
)

// ClusterNetworkDefault is the name of the one ClusterNetwork that is used.
const ClusterNetworkDefault = "default"

// Defaults of ClusterNetwork's optional fields.
const (
	// DefaultVXLANPort is the UDP port of the tunnels where ClusterNetwork.VXLANPort is unset (IANA's port for VXLAN).
	DefaultVXLANPort = 4789
	// VXLANOverhead is what a tunnel over IPv4 takes from an interface's MTU, in bytes: outer Ethernet 14, IPv4 20,
	// UDP 8, VXLAN 8.
	VXLANOverhead = 50
	// DefaultMTU is the pods' MTU on an underlay of 1500 bytes.
	DefaultMTU = 1500 - VXLANOverhead
)

// Virtual network identifiers: 24 bits, as VXLAN carries them.
const (
	// VNIDGlobal is the identifier of namespaces that reach, and are reached by, all others.
	VNIDGlobal uint32 = 0
	// VNIDMin is the smallest identifier that is given out. 1 is kept for control planes (set by hand), 2 to 9 are
	// reserved.
	VNIDMin uint32 = 10
	// VNIDMax is the largest identifier.
	VNIDMax uint32 = 1<<24 - 1
)

// HostNetworkNamespace is the pseudo namespace whose labels stand for pods on the hosts' network in NetworkPolicy
// selectors; what it selects is VNID 0.
const HostNetworkNamespace = "openshift-host-network"

// NamespaceDefault is the namespace that always has VNID 0.
const NamespaceDefault = "default"

// Annotations of NetNamespace.
const (
	// AnnotationChangeNetwork asks for another VNID: ChangeGlobal, ChangeIsolate, or ChangeJoinPrefix and a namespace.
	// It is removed by the update that sets the new netid; tools wait for that.
	AnnotationChangeNetwork = "pod.network.openshift.io/multitenant.change-network"
	// AnnotationMulticast enables multicast between the pods of a VNID when it is "true", nothing else, on every
	// namespace with that VNID.
	AnnotationMulticast = "netnamespace.network.openshift.io/multicast-enabled"
)

// Values of AnnotationChangeNetwork.
const (
	// ChangeGlobal asks for VNID 0.
	ChangeGlobal = "global"
	// ChangeIsolate asks for a VNID that no other namespace has.
	ChangeIsolate = "isolate"
	// ChangeJoinPrefix, followed by a namespace's name, asks for that namespace's VNID.
	ChangeJoinPrefix = "join:"
)

// Annotations of HostSubnet.
const (
	// AnnotationAssignSubnet, present with any value, asks for a subnet for a host that is no Node (a router or load
	// balancer that takes part in the overlay).
	AnnotationAssignSubnet = "pod.network.openshift.io/assign-subnet"
	// AnnotationFixedVNID is the VNID, in decimal, of all traffic to a host that is no Node. Default 0.
	AnnotationFixedVNID = "pod.network.openshift.io/fixed-vnid-host"
	// AnnotationNodeUID is the UID of the Node that a HostSubnet was made for. A HostSubnet without it belongs to a
	// host that is no Node, and is never deleted by the controller.
	AnnotationNodeUID = "pod.network.openshift.io/node-uid"
)

// Annotations of other kinds.
const (
	// AnnotationAssignMacvlan, on a Pod, asks for a second interface on the node's network: "true" (the interface of
	// the default route), "false", or the name of the node's interface.
	AnnotationAssignMacvlan = "pod.network.openshift.io/assign-macvlan"
	// AnnotationIngressBandwidth, on a Pod, limits what it receives: a quantity in bits a second, 1k to 1P.
	AnnotationIngressBandwidth = "kubernetes.io/ingress-bandwidth"
	// AnnotationEgressBandwidth, on a Pod, limits what it sends: a quantity in bits a second, 1k to 1P.
	AnnotationEgressBandwidth = "kubernetes.io/egress-bandwidth"
	// AnnotationIdledAt, on a Service or its Endpoints, says since when it is idle; its presence counts.
	AnnotationIdledAt = "idling.alpha.openshift.io/idled-at"
	// AnnotationEgressIPConfig, on a Node, says in JSON which addresses a cloud lets the node host, and how many.
	AnnotationEgressIPConfig = "cloud.network.openshift.io/egress-ipconfig"
)

// AnnotationNamespaceUID is, on a NetNamespace, the UID of the Namespace that it belongs to. It is Weft's own: by it a
// NetNamespace goes when its Namespace went while no controller was running, and one that was restored before its
// Namespace stays.
const AnnotationNamespaceUID = "network.weft.dev/namespace-uid"

// Condition types of the status fields.
const (
	// ConditionValid is on ClusterNetwork, HostSubnet and NetNamespace: False when the object has an error that keeps it,
	// or what it asks for, from being used. The message names the field. On HostSubnet and NetNamespace it is written
	// only once there was an error.
	ConditionValid = "Valid"
	// ConditionReady is on ClusterNetwork: True when every node has a subnet, and nothing in the cluster contradicts the
	// network; and on HostSubnet: True when the node's agent serves pods.
	ConditionReady = "Ready"
	// ConditionEnginesInStep is on HostSubnet: True when all that is desired of the node is programmed.
	ConditionEnginesInStep = "EnginesInStep"
	// ConditionEgressIPsInUse is on NetNamespace where it wants egress addresses: True when all of them are in use, and the message
	// says at which nodes; False with the reason why some are not.
	ConditionEgressIPsInUse = "EgressIPsInUse"
	// ConditionRealised is on EgressNetworkPolicy: True when what it comes to is in effect on all nodes, and the message says on
	// how many it is, and why not on the others.
	ConditionRealised = "Realised"
	// ConditionUnobstructed is on HostSubnet: False when firewalls of the host's keep packets of pods from passing.
	ConditionUnobstructed = "Unobstructed"
)

// Reasons of conditions and events.
const (
	// ReasonValid stands with ConditionValid True.
	ReasonValid = "Valid"
	// ReasonInvalid stands where a field must be corrected.
	ReasonInvalid = "Invalid"
	// ReasonConflict stands where objects contradict each other: subnets that overlap or lie outside the cluster
	// network, node addresses inside it.
	ReasonConflict = "Conflict"
	// ReasonNoEffect stands where an object says nothing to a network of this mode, or of a namespace that it has no effect on.
	ReasonNoEffect = "NoEffect"
	// ReasonExhausted stands where the ranges have no subnet, or the VNIDs no value, left.
	ReasonExhausted = "Exhausted"
	// ReasonIncomplete stands where a node cannot be given a subnet for another reason; the message says which.
	ReasonIncomplete = "Incomplete"
	// ReasonAllocated stands with ConditionReady True on ClusterNetwork.
	ReasonAllocated = "Allocated"
	// ReasonInUse stands with ConditionEgressIPsInUse True.
	ReasonInUse = "InUse"
	// ReasonEgressIPConflict stands where an egress address is claimed more than once.
	ReasonEgressIPConflict = "EgressIPConflict"
	// ReasonEgressIPUnassigned stands where no node has an egress address; the message says why.
	ReasonEgressIPUnassigned = "EgressIPUnassigned"
	// ReasonEgressIPRefused stands where the node that is to have an egress address cannot hold it; the message says why.
	ReasonEgressIPRefused = "EgressIPRefused"
	// ReasonServing stands with ConditionReady True on HostSubnet.
	ReasonServing = "Serving"
	// ReasonNotServing stands where an agent cannot serve pods yet; the message says what it waits for.
	ReasonNotServing = "NotServing"
	// ReasonStopped stands where an agent was stopped, and has said so.
	ReasonStopped = "Stopped"
	// ReasonInStep stands with ConditionEnginesInStep True.
	ReasonInStep = "InStep"
	// ReasonFailing stands where something cannot be programmed; the message says what and why.
	ReasonFailing = "Failing"
	// ReasonRefused stands where the objects say what the node cannot become; it stays as it was.
	ReasonRefused = "Refused"
	// ReasonRealised stands with ConditionRealised True.
	ReasonRealised = "Realised"
	// ReasonBehind stands where nodes have not followed yet, or cannot be asked.
	ReasonBehind = "Behind"
	// ReasonNotRealised stands where a node says that it cannot do what an object says, or not as it says.
	ReasonNotRealised = "NotRealised"
	// ReasonOpen stands with ConditionUnobstructed True.
	ReasonOpen = "Open"
	// ReasonObstructed stands with ConditionUnobstructed False.
	ReasonObstructed = "Obstructed"
	// ReasonLeftovers stands with ConditionUnobstructed False where nothing is obstructed, but OpenShift SDN left something on the node.
	ReasonLeftovers = "Leftovers"
)
