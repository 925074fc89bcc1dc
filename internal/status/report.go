// Package status reports the state of a whole cluster: controller, network, nodes, releases, and, for each problem, what it means and what
// to do next. It reads objects of the API server, and evaluates them in a pure function.
//
// It needs no heartbeats. The kubelet reports in the pod's status whether an agent runs, and Kubernetes reports in the Node whether a node
// is alive. What an agent found is in the status of its HostSubnet, which is written when it changes.
package status

import "time"

// Report is the state of a cluster. Its JSON is stable: fields are added, and none is renamed or removed.
type Report struct {
	// OK says that there is no problem. Warnings do not count.
	OK bool `json:"ok"`
	// Problems are errors, the most fundamental first. Warnings are not errors, but worth knowing.
	Problems []Finding `json:"problems"`
	Warnings []Finding `json:"warnings"`
	// Network is the ClusterNetwork named default; null if there is none.
	Network *Network `json:"network"`
	// Networks are the configured networks other than the overlay.
	Networks []NetworkReport `json:"networks,omitempty"`
	// Controller is the state of the controller.
	Controller Controller `json:"controller"`
	// Agents counts the agents' pods; null if no DaemonSet runs them.
	Agents *Replicas `json:"agents"`
	// Nodes are all nodes of the cluster, sorted by name.
	Nodes []Node `json:"nodes"`
	// Versions are the releases in use, and on which nodes: weft, openVSwitch, kernel, datapath.
	Versions map[string][]Version `json:"versions"`
}

// Finding is one problem or warning.
type Finding struct {
	// Object is the object concerned: "node/n1", "clusternetwork/default", "deployment/weft-controller", "cluster".
	Object string `json:"object"`
	// What describes the problem, Next what to do.
	What string `json:"what"`
	Next string `json:"next,omitempty"`
}

// Network is the content of the ClusterNetwork.
type Network struct {
	// Valid says that the ClusterNetwork can be used; Message says why not.
	Valid   bool   `json:"valid"`
	Message string `json:"message,omitempty"`
	// Plugin is the pluginName in use, Mode its meaning: subnet, multitenant or networkpolicy.
	Plugin string `json:"plugin"`
	Mode   string `json:"mode,omitempty"`
	// Ranges are the ranges of pods, ServiceNetwork is the range of Services.
	Ranges         []Range `json:"ranges,omitempty"`
	ServiceNetwork string  `json:"serviceNetwork"`
	// VXLANPort is the UDP port of the tunnels. MTU is the pods' MTU in bytes; 0: that of each node's interface minus 50 for the tunnel.
	VXLANPort int `json:"vxlanPort,omitempty"`
	MTU       int `json:"mtu,omitempty"`
}

// NetworkReport is the report on a network other than the overlay.
type NetworkReport struct {
	// Name is the name of the network.
	Name string `json:"name"`
	// Line is a description in one line.
	Line string `json:"line"`
	// Facts are the same for programs.
	Facts any `json:"facts,omitempty"`
}

// Range is a range of pod addresses.
type Range struct {
	CIDR             string `json:"cidr"`
	HostSubnetLength int    `json:"hostSubnetLength"`
}

// Replicas counts pods.
type Replicas struct {
	Wanted int `json:"wanted"`
	Ready  int `json:"ready"`
}

// Controller is the state of the controller.
type Controller struct {
	// Replicas counts its pods; null if no Deployment runs them.
	Replicas *Replicas `json:"replicas"`
	// Leader is the replica that leads, "" for none. Renewed is when it last renewed its lease.
	Leader  string     `json:"leader"`
	Renewed *time.Time `json:"renewed,omitempty"`
}

// Node is the state of one node.
type Node struct {
	Name string `json:"name"`
	// Ready says that the agent serves pods, that its engines are in step, and that there is no problem with the node.
	Ready bool `json:"ready"`
	// KubernetesReady is the Node's condition Ready.
	KubernetesReady bool `json:"kubernetesReady"`
	// Agent is running, "not ready", missing or unknown (no DaemonSet runs the agent).
	Agent   string `json:"agent"`
	Address string `json:"address,omitempty"`
	Subnet  string `json:"subnet,omitempty"`
	// Versions on the node.
	Weft        string `json:"weft,omitempty"`
	OpenVSwitch string `json:"openVSwitch,omitempty"`
	Kernel      string `json:"kernel,omitempty"`
	Datapath    string `json:"datapath,omitempty"`
	// Attachments, AddressesUsed and AddressesTotal are at most a minute old.
	Attachments    int `json:"attachments"`
	AddressesUsed  int `json:"addressesUsed"`
	AddressesTotal int `json:"addressesTotal"`
	// EnginesInStep says that the whole desired state is programmed. Engines has the state of each engine.
	EnginesInStep bool     `json:"enginesInStep"`
	Engines       []Engine `json:"engines,omitempty"`
}

// Engine is the state of one engine of a node.
type Engine struct {
	Name     string   `json:"name"`
	InStep   bool     `json:"inStep"`
	Items    int      `json:"items"`
	Hash     string   `json:"hash,omitempty"`
	Failures []string `json:"failures,omitempty"`
}

// Version is a release and the nodes that run it.
type Version struct {
	Version string   `json:"version"`
	Nodes   []string `json:"nodes"`
}
