package agent

import (
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"path/filepath"
	"slices"
	"time"

	"go.opentelemetry.io/otel/trace"
	"go.opentelemetry.io/otel/trace/noop"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"weft.dev/weft/internal/agent/engines"
	"weft.dev/weft/internal/agent/events"
	"weft.dev/weft/internal/agent/networks"
	"weft.dev/weft/internal/agent/sysctl"
	"weft.dev/weft/internal/cni"
	"weft.dev/weft/internal/flannel/netconf"
	"weft.dev/weft/internal/network"
	"weft.dev/weft/internal/overlay"
	overlaynode "weft.dev/weft/internal/overlay/node"
)

// Defaults of Options: the usual paths of a Kubernetes node.
const (
	DefaultOVSRunDir     = "/run/openvswitch"
	DefaultStateDir      = "/var/lib/weft"
	DefaultRunDir        = "/run/weft"
	DefaultCNIConfDir    = "/etc/cni/net.d"
	DefaultResolvConf    = "/etc/resolv.conf"
	DefaultHealthAddress = "127.0.0.1:9469"
	// DefaultSparePorts is the number of pre-plugged ports.
	DefaultSparePorts = 32
	// DefaultVerify is the interval at which all programmed state is read back without an event. It bounds the time until a change without an
	// event is reverted.
	DefaultVerify = 5 * time.Minute
)

// maxSparePorts bounds Options.SparePorts: a switch goes over all its ports whenever one changes.
const maxSparePorts = 1024

// Values of Options.Datapath.
const (
	DatapathAuto   = engines.DatapathAuto
	DatapathSystem = engines.DatapathSystem
	DatapathNetdev = engines.DatapathNetdev
)

// Paths are the directories and files of an agent and of the programs that it works with.
type Paths struct {
	// OVSRunDir is the directory of the switch's sockets: db.sock and <bridge>.mgmt. Default DefaultOVSRunDir.
	OVSRunDir string
	// StateDir is the directory of the attachment records. Default DefaultStateDir.
	StateDir string
	// RunDir is the directory of the agent's own sockets. Default DefaultRunDir.
	RunDir string
	// CNIConfDir is the runtime's directory of network configurations. Default DefaultCNIConfDir.
	CNIConfDir string
	// ResolvConf is the file with the name servers that resolve the names in EgressNetworkPolicies. It is read before each query. Default
	// DefaultResolvConf.
	ResolvConf string
	// RuntimeCache is the directory where the container runtime stores the results of ADD. Default cni.DefaultCache.
	RuntimeCache string
	// ProcSys is a directory where the sysctls are writable, for a process whose own /proc/sys is read-only. Default /proc/sys.
	ProcSys string
}

// Options are the options of an agent.
type Options struct {
	// Config is the configuration of the API server's client. Required.
	Config *rest.Config
	// Node is the name of this node's Node object. Required.
	Node string
	// Paths are the agent's directories and files.
	Paths Paths
	// SparePorts is the number of pre-plugged ports. 0: each pod gets a port when it is created, with a veth interface unless its bandwidth is
	// limited.
	SparePorts int
	// Datapath is the switch's datapath: DatapathAuto (the kernel's if the module is available), DatapathSystem or DatapathNetdev. Default
	// DatapathAuto.
	Datapath string
	// MetadataAddresses are addresses of clouds' metadata services, of which pods reach port 53 only. Default: none, nothing is closed.
	MetadataAddresses []netip.Addr
	// ClosedNodePorts are TCP ports of nodes, and of hosts outside, that are closed to pods. Default: none.
	ClosedNodePorts []uint16
	// HealthAddress is the address of /healthz, /readyz and /metrics. Empty: not served.
	HealthAddress string
	// MetricsAddress is an additional address that serves /metrics only. Empty: not served.
	MetricsAddress string
	// Profiling also serves /debug/pprof at HealthAddress, to every client that can connect. Default: not served.
	Profiling bool
	// Verify is the interval at which everything is read back. Default DefaultVerify.
	Verify time.Duration
	// VPC says that the node serves VPCs.
	VPC bool
	// Flannel are flanneld's flags. Nil: the node serves no flannel network.
	Flannel *netconf.Flags
	// OVNNamespace is the namespace of the ConfigMap of Weft's OVN, which the node joins. Empty: other programs make the node a chassis of
	// their OVN.
	OVNNamespace string
	// Networks are the networks other than the overlay that the node may serve. Default: Kinds.
	Networks []network.Kind
	// Neutron lets the node serve pods on Neutron networks. Default: it does not, and does not watch their objects.
	Neutron bool
	// Log is the agent's log. Default: discarded.
	Log *slog.Logger
	// Traces creates the spans of the runtime's requests. Default: none are created.
	Traces trace.TracerProvider
	// LogLevel is the level of Log. It is read at each line, and can be changed while the agent runs. Default: a level that has no effect.
	LogLevel *slog.LevelVar
	// Version is the program's release, for reports. Default "dev".
	Version string
}

func (o Options) withDefaults() Options {
	for value, fallback := range map[*string]string{
		&o.Paths.OVSRunDir: DefaultOVSRunDir, &o.Paths.StateDir: DefaultStateDir, &o.Paths.RunDir: DefaultRunDir,
		&o.Paths.CNIConfDir: DefaultCNIConfDir, &o.Datapath: DatapathAuto, &o.Paths.ProcSys: sysctl.Dir, &o.Paths.ResolvConf: DefaultResolvConf,
		&o.Paths.RuntimeCache: cni.DefaultCache,
	} {
		if *value == "" {
			*value = fallback
		}
	}
	if o.Networks == nil {
		o.Networks = Kinds(&o)
	}
	if o.Verify == 0 {
		o.Verify = DefaultVerify
	}
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	if o.Traces == nil {
		o.Traces = noop.NewTracerProvider()
	}
	if o.LogLevel == nil {
		o.LogLevel = &slog.LevelVar{}
	}
	if o.Version == "" {
		o.Version = "dev"
	}
	return o
}

// overlay returns the options of the overlay's objects. Without a recorder, as in a dry run, nothing is reported or probed.
func (o *Options) overlay(clients kubernetes.Interface, recorder *events.Recorder) overlaynode.Options {
	options := overlaynode.Options{
		Config: o.Config, Clients: clients, Node: o.Node, StateDir: o.Paths.StateDir, ResolvConf: o.Paths.ResolvConf, Log: o.Log,
		Closed:      overlay.Closed{Metadata: o.MetadataAddresses, TCPPorts: o.ClosedNodePorts},
		ClosedPorts: networks.ClosedPorts(o.Networks),
	}
	if recorder != nil {
		options.Events = recorder
	}
	return options
}

// validate returns the first error in the options.
func (o *Options) validate() error {
	switch {
	case o.Config == nil:
		return errors.New("no API server: pass a kubeconfig, or run in a pod with a service account")
	case o.Node == "":
		return errors.New("no node name: pass the name of this node's Node object")
	case o.SparePorts < 0 || o.SparePorts > maxSparePorts:
		return fmt.Errorf("spare ports %d: it is a number from 0 to %d", o.SparePorts, maxSparePorts)
	}
	for _, addr := range o.MetadataAddresses {
		if !addr.Is4() || addr.IsUnspecified() || addr.IsLoopback() || addr.IsMulticast() {
			return fmt.Errorf("metadata address %s: it must be an IPv4 address, such as 169.254.169.254", addr)
		}
	}
	if slices.Contains(o.ClosedNodePorts, 0) {
		return errors.New("closed node port 0: it is a number from 1 to 65535")
	}
	switch o.Datapath {
	case DatapathAuto, DatapathSystem, DatapathNetdev:
		return nil
	}
	return fmt.Errorf("datapath %q: it is one of %s, %s, %s", o.Datapath, DatapathAuto, DatapathSystem, DatapathNetdev)
}

// Socket returns the socket of an agent with this run directory, for the CNI plugin.
func Socket(runDir string) string { return filepath.Join(runDir, "cni", "cni.sock") }

// PortsNamespace returns the path of the namespace of pre-plugged ports, for an agent with this run directory.
func PortsNamespace(runDir string) string {
	return filepath.Join(filepath.Dir(Socket(runDir)), "ports")
}

// Records returns the folder of the attachment records of an agent with this state directory. A running agent holds a lock on it.
func Records(stateDir string) string { return filepath.Join(stateDir, "attachments") }
