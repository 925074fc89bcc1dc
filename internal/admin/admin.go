// Package admin is how an operator talks to the agent of a node: HTTP and JSON over a unix socket that only root may use. It
// knows words, server and client; what the agent answers is the agent's to say.
//
//	GET /v1/state       how the agent and its engines stand
//	GET /v1/diff        what is programmed otherwise than desired, read back now
//	GET /v1/owners      whose the switch's flows are, by their cookies
//	GET /v1/log-level   the least severe messages that are logged
//	PUT /v1/log-level   another level, until the agent's end
package admin

import (
	"fmt"
	"log/slog"
	"strings"
	"time"
)

// DefaultSocket is where the agent listens unless told otherwise.
const DefaultSocket = "/run/weft/admin/admin.sock"

// Realised says which objects of one kind are in effect: those whose resourceVersion is not above Version, but for Exceptions.
// Without a Version, none are. Reason says why others are not, where it is known.
type Realised struct {
	Kind       string            `json:"kind"`
	Version    string            `json:"version,omitempty"`
	Reason     string            `json:"reason,omitempty"`
	Exceptions map[string]string `json:"exceptions,omitempty"`
}

// State is how an agent stands.
type State struct {
	// Node is the name of the agent's node, Version the agent's release.
	Node    string `json:"node"`
	Version string `json:"version"`
	// Ready says that pods can be attached; else Waiting says what is waited for.
	Ready   bool   `json:"ready"`
	Waiting string `json:"waiting,omitempty"`
	// Refused says what of the objects the node cannot follow: it stays as it was.
	Refused string `json:"refused,omitempty"`
	// Warnings do not keep pods from being attached.
	Warnings []string `json:"warnings,omitempty"`
	// Leftovers are what OpenShift SDN left on the node, and what to do about it.
	Leftovers []string `json:"leftovers,omitempty"`
	// OpenVSwitch and Kernel are versions; Datapath is the bridge's type, system (the kernel's) or netdev (userspace).
	OpenVSwitch string `json:"openVSwitch,omitempty"`
	Kernel      string `json:"kernel,omitempty"`
	Datapath    string `json:"datapath,omitempty"`
	// Attachments counts the pods' interfaces.
	Attachments int `json:"attachments"`
	// AddressesUsed of AddressesTotal addresses for pods are taken.
	AddressesUsed  int `json:"addressesUsed"`
	AddressesTotal int `json:"addressesTotal"`
	// VNIDsVersion is the resourceVersion of the last change of a NetNamespace's netid that is in effect, where pods are
	// isolated by VNID.
	VNIDsVersion string `json:"vnidsVersion,omitempty"`
	// VXLANPorts has the UDP port of the node's tunnels, once there is one.
	VXLANPorts []uint16 `json:"vxlanPorts,omitempty"`
	// Realised says, by kind, which objects of the API server are in effect, as far as it is Known: an agent that starts does not know.
	Realised      []Realised `json:"realised,omitempty"`
	RealisedKnown bool       `json:"realisedKnown"`
	// RefusedEgressIPs are egress addresses that the node cannot hold, and why; nil while they are not known.
	RefusedEgressIPs map[string]string `json:"refusedEgressIPs,omitempty"`
	// Engines are all that the agent keeps in step.
	Engines []Engine `json:"engines"`
}

// Engine is how one engine stands.
type Engine struct {
	// Name is openflow, ovsdb, link or nft.
	Name string `json:"name"`
	// InStep says that all that is desired is programmed, as far as is known without reading back.
	InStep bool `json:"inStep"`
	// Items counts what is desired, Waiting what of it is still to be committed.
	Items   int `json:"items"`
	Waiting int `json:"waiting,omitempty"`
	// Hash is that of the desired state, where one is kept.
	Hash string `json:"hash,omitempty"`
	// Committed is when it was last changed; not set: not since the agent's start.
	Committed *time.Time `json:"committed,omitempty"`
	// Failures are what could not be programmed, sorted by owner.
	Failures []Failure `json:"failures,omitempty"`
}

// Failure is an owner whose part is not programmed.
type Failure struct {
	// Owner is the object that the part comes from: "attachment/<container>/<interface>", "hostsubnet/<uid>", "cluster".
	Owner string `json:"owner"`
	// Pod is the attachment's, namespace/name, where the runtime has named it.
	Pod string `json:"pod,omitempty"`
	// Message says why, and what would help.
	Message string `json:"message"`
}

// String names the owner, by its pod where it has one, and says why.
func (f *Failure) String() string {
	if f.Pod != "" {
		return "pod " + f.Pod + " (" + f.Owner + "): " + f.Message
	}
	return f.Owner + ": " + f.Message
}

// The ways in which an item can differ.
const (
	// Missing: it is desired and not programmed.
	Missing = "missing"
	// Extra: it is programmed and nobody desires it.
	Extra = "extra"
	// Different: it is programmed otherwise than desired.
	Different = "different"
)

// Diff is what is programmed otherwise than desired.
type Diff struct {
	// InStep says that nothing differs and everything could be read.
	InStep bool `json:"inStep"`
	// Engines are all that the agent keeps in step, in the order in which a start programs them.
	Engines []EngineDiff `json:"engines"`
}

// EngineDiff is what differs in one engine.
type EngineDiff struct {
	// Name is openflow, ovsdb, link or nft.
	Name string `json:"name"`
	// Desired and Programmed count the items.
	Desired    int `json:"desired"`
	Programmed int `json:"programmed"`
	// Error says why the engine could not be read; then nothing is known of differences.
	Error string `json:"error,omitempty"`
	// Differences are sorted by owner and item.
	Differences []Difference `json:"differences,omitempty"`
}

// Difference is one item that differs.
type Difference struct {
	// Owner is the object that the item comes from; "" is nobody known.
	Owner string `json:"owner,omitempty"`
	// Pod is the attachment's, namespace/name, where the runtime has named it.
	Pod string `json:"pod,omitempty"`
	// Change is Missing, Extra or Different.
	Change string `json:"change"`
	// Item names the item in the engine's words.
	Item string `json:"item"`
	// Want and Have are the whole item in the engine's words: a flow as ovs-ofctl prints it, a row, a link, a rule.
	Want string `json:"want,omitempty"`
	Have string `json:"have,omitempty"`
	// Why says why it could not be programmed, if that was tried.
	Why string `json:"why,omitempty"`
}

// OwnersQuery asks for the owners of the flows of one bridge.
type OwnersQuery struct {
	// Bridge is the bridge's name; "" for br0.
	Bridge string
	// Policy, namespace/name, is named wherever flows of br0 come from it: of the policies that flows come from, a few are named. May be empty.
	Policy string
}

// Owners says whose the flows of a bridge of a node are.
type Owners struct {
	// Node is the name of the agent's node.
	Node string `json:"node"`
	// Tables are the names of the bridge's tables, by their numbers, for bridges other than br0.
	Tables map[uint8]string `json:"tables,omitempty"`
	// Owners are all that desire flows, or did until lately, sorted by owner.
	Owners []Owner `json:"owners"`
}

// Owner is whose the flows with a cookie are.
type Owner struct {
	// Cookie is that of the flows, as the switch prints it: "0x…".
	Cookie string `json:"cookie"`
	// Owner is the agent's own name of it: "attachment/<container>/<interface>", "service/<namespace>/<name>", "policyrule/<hash>".
	Owner string `json:"owner"`
	// Objects are the objects that it comes from; none: they are not known any more.
	Objects []Object `json:"objects,omitempty"`
	// MoreObjects says that there are more than are listed.
	MoreObjects bool `json:"moreObjects,omitempty"`
	// Pod is the pod of this node, namespace/name, of whose address the flows are, where they come from other objects.
	Pod string `json:"pod,omitempty"`
}

// Object names an object of the API server.
type Object struct {
	// Kind is the object's.
	Kind string `json:"kind"`
	// Namespace and Name are the object's. Without a name it stands for all of its kind, in its namespace if it has one.
	Namespace string `json:"namespace,omitempty"`
	Name      string `json:"name,omitempty"`
}

// String is the object as kubectl's users write it: "NetworkPolicy web/allow-api".
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

// levelWords is the body of requests and answers about the level.
type levelWords struct {
	Level string `json:"level"`
}

// ParseLevel returns the level that a word names.
func ParseLevel(word string) (slog.Level, error) {
	for _, level := range []slog.Level{slog.LevelDebug, slog.LevelInfo, slog.LevelWarn, slog.LevelError} {
		if word == LevelName(level) {
			return level, nil
		}
	}
	return 0, fmt.Errorf("log level %.32q: it is one of debug, info, warn, error", word)
}

// LevelName returns the word for a level.
func LevelName(level slog.Level) string { return strings.ToLower(level.String()) }
