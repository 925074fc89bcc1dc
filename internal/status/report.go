// Package status says how a whole cluster stands, in one report: controller, network, nodes, releases, and, of what is
// wrong, what it means and what to do next. It reads objects of the API server, and judges them in a pure function.
//
// Nothing writes heartbeats for it. Whether an agent lives is what the kubelet says of its pod, and whether a node lives what
// Kubernetes says of the Node; what an agent found is in its HostSubnet's status, written when it changes.
package status

import "time"

// Report is how a cluster stands. Its JSON is a stable shape: fields are added, none is renamed or taken away.
type Report struct {
	// OK says that there is no problem. Warnings do not count.
	OK bool `json:"ok"`
	// Problems are what is wrong, the most fundamental first; Warnings what should be known.
	Problems []Finding `json:"problems"`
	Warnings []Finding `json:"warnings"`
	// Network is the ClusterNetwork named default, null where there is none.
	Network *Network `json:"network"`
	// Networks are the networks besides the overlay, of those that are configured.
	Networks []NetworkReport `json:"networks,omitempty"`
	// Controller is the cluster's side.
	Controller Controller `json:"controller"`
	// Agents counts the agents' pods, null where no DaemonSet runs them.
	Agents *Replicas `json:"agents"`
	// Nodes are all of the cluster, sorted by name.
	Nodes []Node `json:"nodes"`
	// Versions say which releases run where: weft, openVSwitch, kernel, datapath.
	Versions map[string][]Version `json:"versions"`
}

// Finding is one thing to know.
type Finding struct {
	// Object is what it is about: "node/n1", "clusternetwork/default", "deployment/weft-controller", "cluster".
	Object string `json:"object"`
	// What says what is wrong, Next what to do.
	What string `json:"what"`
	Next string `json:"next,omitempty"`
}

// Network is what the ClusterNetwork says.
type Network struct {
	// Valid says that it can be used; Message why not.
	Valid   bool   `json:"valid"`
	Message string `json:"message,omitempty"`
	// Plugin is the pluginName in use, Mode what it means: subnet, multitenant or networkpolicy.
	Plugin string `json:"plugin"`
	Mode   string `json:"mode,omitempty"`
	// Ranges are the pods', ServiceNetwork the Services'.
	Ranges         []Range `json:"ranges,omitempty"`
	ServiceNetwork string  `json:"serviceNetwork"`
	// VXLANPort is the tunnels' UDP port. MTU is the pods' in bytes; 0: each node's interface less the tunnel's 50.
	VXLANPort int `json:"vxlanPort,omitempty"`
	MTU       int `json:"mtu,omitempty"`
}

// NetworkReport is what a network besides the overlay says.
type NetworkReport struct {
	// Name is the network's.
	Name string `json:"name"`
	// Line says in one line what it is.
	Line string `json:"line"`
	// Facts are the same for programs.
	Facts any `json:"facts,omitempty"`
}

// Range is a range of pods' addresses.
type Range struct {
	CIDR             string `json:"cidr"`
	HostSubnetLength int    `json:"hostSubnetLength"`
}

// Replicas counts pods.
type Replicas struct {
	Wanted int `json:"wanted"`
	Ready  int `json:"ready"`
}

// Controller is the cluster's side.
type Controller struct {
	// Replicas counts its pods, null where no Deployment runs them.
	Replicas *Replicas `json:"replicas"`
	// Leader is the replica that works, "" for none; Renewed is when it last said so.
	Leader  string     `json:"leader"`
	Renewed *time.Time `json:"renewed,omitempty"`
}

// Node is one node.
type Node struct {
	Name string `json:"name"`
	// Ready says that its agent serves pods, that its engines are in step and that nothing speaks against either.
	Ready bool `json:"ready"`
	// KubernetesReady is the Node's condition Ready.
	KubernetesReady bool `json:"kubernetesReady"`
	// Agent is running, "not ready", missing or unknown (an agent that no DaemonSet runs).
	Agent   string `json:"agent"`
	Address string `json:"address,omitempty"`
	Subnet  string `json:"subnet,omitempty"`
	// Versions of what runs there.
	Weft        string `json:"weft,omitempty"`
	OpenVSwitch string `json:"openVSwitch,omitempty"`
	Kernel      string `json:"kernel,omitempty"`
	Datapath    string `json:"datapath,omitempty"`
	// Attachments, AddressesUsed and AddressesTotal are at most a minute old.
	Attachments    int `json:"attachments"`
	AddressesUsed  int `json:"addressesUsed"`
	AddressesTotal int `json:"addressesTotal"`
	// EnginesInStep says that everything desired is programmed; Engines say it one by one.
	EnginesInStep bool     `json:"enginesInStep"`
	Engines       []Engine `json:"engines,omitempty"`
}

// Engine is one engine of a node.
type Engine struct {
	Name     string   `json:"name"`
	InStep   bool     `json:"inStep"`
	Items    int      `json:"items"`
	Hash     string   `json:"hash,omitempty"`
	Failures []string `json:"failures,omitempty"`
}

// Version is a release and where it runs.
type Version struct {
	Version string   `json:"version"`
	Nodes   []string `json:"nodes"`
}
