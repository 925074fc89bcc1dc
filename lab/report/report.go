// Package report has the state of a lab: the answers of its supervisor, and the output of `weft-lab status -o json`.
package report

import (
	"time"

	"weft.dev/weft/lab/plan"
	"weft.dev/weft/lab/process"
)

// Phase is the phase of a lab's life.
type Phase string

// The phases. A lab whose start failed keeps running as far as it got, for inspection.
const (
	Starting Phase = "starting"
	Up       Phase = "up"
	Failed   Phase = "failed"
	Stopping Phase = "stopping"
	Dead     Phase = "dead" // there are leftovers, but no supervisor
)

// State is the state of a step in an event.
type State string

// The states of a step.
const (
	Begin State = "begin"
	Done  State = "done"
	Fail  State = "fail"
)

// Event is a line of progress.
type Event struct {
	Step  string        `json:"step"`
	State State         `json:"state"`
	Took  time.Duration `json:"took,omitempty"` // nanoseconds; for a step that is done
	Text  string        `json:"text,omitempty"`
}

// Progress is called for every event; functions that take one accept nil.
type Progress func(Event)

// Node is one node of a running lab.
type Node struct {
	Name   string `json:"name"`
	IP     string `json:"ip"`
	Netns  string `json:"netns"`  // path of the network namespace
	Space  string `json:"space"`  // its name for `ip -n`
	Holder int    `json:"holder"` // the process that holds the node's namespaces
	RunDir string `json:"runDir"` // the node's /run
	Dir    string `json:"dir"`
}

// Space is one of the lab's own namespaces.
type Space struct {
	Name   string `json:"name"`   // for `ip -n`
	Holder int    `json:"holder"` // the process that holds it
}

// Status is the state of a lab.
type Status struct {
	Name       string        `json:"name"`
	Phase      Phase         `json:"phase"`
	Error      string        `json:"error,omitempty"`
	Config     plan.Config   `json:"config"`
	Datapath   plan.Datapath `json:"datapath"` // the datapath that auto has chosen
	Kubeconfig string        `json:"kubeconfig"`
	API        string        `json:"api"`     // URL, from the machine
	HostIP     string        `json:"hostIP"`  // the machine's address on the link to the lab
	Outside    string        `json:"outside"` // URL of the reporter, from the nodes
	Supervisor int           `json:"supervisor"`
	OutsideNS  string        `json:"outsideNetns"`
	ControlNS  string        `json:"controlNetns"`
	UnderlayNS string        `json:"underlayNetns"`
	External   string        `json:"external,omitempty"` // with VPC or OpenStack: URL of the reporter in the outside network of gateways
	ExternalNS string        `json:"externalNetns,omitempty"`
	// OpenStackSpace and ExternalSpace are the namespaces with OpenStack's programs and with the host in the outside network of gateways.
	OpenStackSpace Space            `json:"openStackSpace,omitzero"`
	ExternalSpace  Space            `json:"externalSpace,omitzero"`
	Nodes          []Node           `json:"nodes"`
	Programs       []process.Status `json:"programs"`
	LogDir         string           `json:"logDir"`
}
