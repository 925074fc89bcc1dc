// Package admin is the operator's interface to the agent of a node: HTTP and JSON over a unix socket that only root may use. It has the
// messages, a server and a client; the agent provides the content of the responses.
//
//	GET /v1/state       the state of the agent and its engines
//	GET /v1/diff        differences between programmed and desired state, read back now
//	GET /v1/owners      the owners of the switch's flows, by cookie
//	GET /v1/log-level   the log level
//	PUT /v1/log-level   sets the log level until the agent ends
package admin

import (
	"fmt"
	"log/slog"
	"strings"
	"time"
)

// DefaultSocket is where the agent listens by default.
const DefaultSocket = "/run/weft/admin/admin.sock"

// Realised says which objects of one kind are in effect: those whose resourceVersion is not above Version, except Exceptions. Without a
// Version, none are. Reason says why other objects are not in effect, if that is known.
type Realised struct {
	Kind       string            `json:"kind"`
	Version    string            `json:"version,omitempty"`
	Reason     string            `json:"reason,omitempty"`
	Exceptions map[string]string `json:"exceptions,omitempty"`
}

// State is the state of an agent.
type State struct {
	// Node is the name of the agent's node, Version the agent's release.
	Node    string `json:"node"`
	Version string `json:"version"`
	// Ready says that pods can be attached. If not, Waiting says what the agent waits for.
	Ready   bool   `json:"ready"`
	Waiting string `json:"waiting,omitempty"`
	// Refused says which content of the objects the node cannot apply; the node then keeps its previous state.
	Refused string `json:"refused,omitempty"`
	// Warnings are problems that do not prevent attachments.
	Warnings []string `json:"warnings,omitempty"`
	// Leftovers are remains of OpenShift SDN on the node, and what to do about them.
	Leftovers []string `json:"leftovers,omitempty"`
	// OpenVSwitch and Kernel are versions. Datapath is the bridge's type, system (the kernel's) or netdev (userspace).
	OpenVSwitch string `json:"openVSwitch,omitempty"`
	Kernel      string `json:"kernel,omitempty"`
	Datapath    string `json:"datapath,omitempty"`
	// Attachments is the number of pods' interfaces.
	Attachments int `json:"attachments"`
	// AddressesUsed is how many of the AddressesTotal addresses for pods are taken.
	AddressesUsed  int `json:"addressesUsed"`
	AddressesTotal int `json:"addressesTotal"`
	// Mode is the overlay's mode that is completely in effect, as at the end of pluginName; empty during a change of modes.
	Mode string `json:"mode,omitempty"`
	// VNIDsVersion is the resourceVersion of the last change of a NetNamespace's netid that is in effect, in clusters where pods are isolated
	// by VNID.
	VNIDsVersion string `json:"vnidsVersion,omitempty"`
	// VXLANPorts has the UDP port of the node's tunnels, once it is known.
	VXLANPorts []uint16 `json:"vxlanPorts,omitempty"`
	// Realised says, by kind, which objects of the API server are in effect. It is valid if RealisedKnown; an agent that has just started does
	// not know.
	Realised      []Realised `json:"realised,omitempty"`
	RealisedKnown bool       `json:"realisedKnown"`
	// RefusedEgressIPs are egress IPs that the node cannot hold, with the reason; nil until they are known.
	RefusedEgressIPs map[string]string `json:"refusedEgressIPs,omitempty"`
	// Engines are all engines of the agent.
	Engines []Engine `json:"engines"`
}

// Engine is the state of one engine.
type Engine struct {
	// Name is openflow, ovsdb, link or nft.
	Name string `json:"name"`
	// InStep says that the whole desired state is programmed, as far as is known without reading back.
	InStep bool `json:"inStep"`
	// Items is the number of desired items, Waiting the number of those still to be committed.
	Items   int `json:"items"`
	Waiting int `json:"waiting,omitempty"`
	// Hash is the hash of the desired state, if the engine has one.
	Hash string `json:"hash,omitempty"`
	// Committed is the time of the last change; nil: none since the agent started.
	Committed *time.Time `json:"committed,omitempty"`
	// Failures are the items that could not be programmed, sorted by owner.
	Failures []Failure `json:"failures,omitempty"`
}

// Failure is an owner whose state is not programmed.
type Failure struct {
	// Owner is the object concerned: "attachment/<container>/<interface>", "hostsubnet/<uid>", "cluster".
	Owner string `json:"owner"`
	// Pod is the pod of the attachment, namespace/name, if the runtime has named it.
	Pod string `json:"pod,omitempty"`
	// Message says why, and what to do.
	Message string `json:"message"`
}

// String returns the owner, with its pod if it has one, and the message.
func (f *Failure) String() string {
	if f.Pod != "" {
		return "pod " + f.Pod + " (" + f.Owner + "): " + f.Message
	}
	return f.Owner + ": " + f.Message
}

// The kinds of difference.
const (
	// Missing: desired, but not programmed.
	Missing = "missing"
	// Extra: programmed, but not desired.
	Extra = "extra"
	// Different: programmed differently than desired.
	Different = "different"
)

// Diff has the differences between programmed and desired state.
type Diff struct {
	// InStep says that there is no difference and that everything could be read.
	InStep bool `json:"inStep"`
	// Engines are all engines of the agent, in the order in which they are programmed at a start.
	Engines []EngineDiff `json:"engines"`
}

// EngineDiff has the differences in one engine.
type EngineDiff struct {
	// Name is openflow, ovsdb, link or nft.
	Name string `json:"name"`
	// Desired and Programmed are numbers of items.
	Desired    int `json:"desired"`
	Programmed int `json:"programmed"`
	// Error says why the engine could not be read; differences are then not known.
	Error string `json:"error,omitempty"`
	// Differences are sorted by owner and item.
	Differences []Difference `json:"differences,omitempty"`
}

// Difference is one item that differs.
type Difference struct {
	// Owner is the owner of the item; "" if it has no known owner.
	Owner string `json:"owner,omitempty"`
	// Pod is the pod of the attachment, namespace/name, if the runtime has named it.
	Pod string `json:"pod,omitempty"`
	// Change is Missing, Extra or Different.
	Change string `json:"change"`
	// Item is the name of the item, in the engine's notation.
	Item string `json:"item"`
	// Want and Have are the whole item, in the engine's notation: a flow as ovs-ofctl prints it, a row, a link, a rule.
	Want string `json:"want,omitempty"`
	Have string `json:"have,omitempty"`
	// Why is why the item could not be programmed, if that was tried.
	Why string `json:"why,omitempty"`
}

// OwnersQuery requests the owners of the flows of one bridge.
type OwnersQuery struct {
	// Bridge is the bridge's name; "" for br0.
	Bridge string
	// Policy, namespace/name, is included in the objects of all flows of br0 that come from it; otherwise only a few of the policies of a flow
	// are listed. May be empty.
	Policy string
}

// Owners are the owners of the flows of a bridge.
type Owners struct {
	// Node is the name of the agent's node.
	Node string `json:"node"`
	// Tables are the names of the bridge's tables, by number, for bridges other than br0.
	Tables map[uint8]string `json:"tables,omitempty"`
	// Owners are all current owners of flows, and recent ones, sorted by owner.
	Owners []Owner `json:"owners"`
}

// Owner is the owner of the flows with a cookie.
type Owner struct {
	// Cookie is the cookie of the flows, as the switch prints it: "0x…".
	Cookie string `json:"cookie"`
	// Owner is the owner's name in the agent: "attachment/<container>/<interface>", "service/<namespace>/<name>", "policyrule/<hash>".
	Owner string `json:"owner"`
	// Objects are the objects from which the owner's flows come; none: they are no longer known.
	Objects []Object `json:"objects,omitempty"`
	// MoreObjects says that there are more than those listed.
	MoreObjects bool `json:"moreObjects,omitempty"`
	// Pod is the pod of this node, namespace/name, whose address is in the flows, if they come from other objects.
	Pod string `json:"pod,omitempty"`
}

// Object identifies an object of the API server.
type Object struct {
	// Kind is the object's kind.
	Kind string `json:"kind"`
	// Namespace and Name identify the object. Without a name, it means all objects of the kind, in the namespace if there is one.
	Namespace string `json:"namespace,omitempty"`
	Name      string `json:"name,omitempty"`
}

// String returns the object in the usual notation: "NetworkPolicy web/allow-api".
func (o Object) String() string {
	switch {
	case o.Name == "" && o.Namespace == "":
		return "all " + o.Kind + "s"
	case o.Name == "":
		return o.Kind + " of namespace " + o.Namespace
	case o.Namespace == "":
		return o.Kind + " " + o.Name
	}
	return o.Kind + " " + o.Namespace + "/" + o.Name
}

// levelWords is the body of requests and responses about the log level.
type levelWords struct {
	Level string `json:"level"`
}

// ParseLevel returns the level with this name.
func ParseLevel(word string) (slog.Level, error) {
	for _, level := range []slog.Level{slog.LevelDebug, slog.LevelInfo, slog.LevelWarn, slog.LevelError} {
		if word == LevelName(level) {
			return level, nil
		}
	}
	return 0, fmt.Errorf("log level %.32q: it is one of debug, info, warn, error", word)
}

// LevelName returns the name of a level.
func LevelName(level slog.Level) string { return strings.ToLower(level.String()) }
