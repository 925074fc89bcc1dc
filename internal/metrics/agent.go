package metrics

import (
	"strconv"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"weft.dev/weft/internal/reconcile"
)

// Agent has the metrics of a node's agent.
type Agent struct {
	*Registry

	cni, step, commit, latency, objects                  *prometheus.HistogramVec
	commitErrors, changes, drift, readErrors, reconnects *prometheus.CounterVec
	bundles, flowMods, events, kubeRequests              *prometheus.CounterVec
	kubeWatches                                          prometheus.Gauge
	describe                                             agentState
}

// agentState has the descriptions of the gauges that are evaluated at each scrape.
type agentState struct {
	desired, programmed, failures, inStep, flows, attachments, addresses, capacity, ready *prometheus.Desc
}

// Engines are the values of the label engine: the names of the agent's loops.
func Engines() []string { return []string{"link", "nft", "openflow", "ovsdb"} }

// NewAgent returns the metrics of an agent.
func NewAgent(version string) *Agent {
	r := newRegistry(version)
	m := &Agent{Registry: r}
	m.cni = r.histogram("weft_cni_request_duration_seconds",
		"Time of a container runtime's request, by network, command (ADD, DEL, CHECK, STATUS, GC) and CNI error code; code 0 is success. "+
			"network is none where the request is about no attachment: STATUS, GC, and what is refused or removed before there was one.", 0.001, "network", "command", "code")
	m.step = r.histogram("weft_cni_step_duration_seconds",
		"Time of one step of a container runtime's request, by the request's network. Steps of a request may run side by side.", 0.0001, "network", "command", "step")
	m.latency = r.histogram("weft_engine_latency_seconds",
		"Time from when a change was asked of an engine until it was in effect; of a commit that served several requests, the longest.", 0.0005, "engine")
	m.objects = r.histogram("weft_sync_latency_seconds",
		"Time from when the agent saw a change of a network's objects until the node was in step with it.", 0.001, "network")
	m.commit = r.histogram("weft_engine_commit_duration_seconds",
		"Time of a commit that succeeded: a bundle of flows, a transaction of Open vSwitch's database or of nftables, a change of links.", 0.0005, "engine")
	m.commitErrors = r.counter("weft_engine_commit_errors_total", "Commits that failed, wholly or for some of their items.", "engine")
	m.readErrors = r.counter("weft_engine_read_errors_total", "Times that an engine could not be read back.", "engine")
	m.changes = r.counter("weft_engine_changes_total", "Items committed, by what was done with them (set, delete).", "engine", "change")
	m.drift = r.counter("weft_engine_drift_total",
		"Items that differed from what Weft had programmed, and were restored, by difference: missing, altered, or stray (without an owner).", "engine", "kind")
	m.reconnects = r.counter("weft_engine_connections_total",
		"Connections made: to the switch (openflow), to its database after the first (ovsdb); and restarts of the switch's daemon (switch).", "to")
	m.bundles = r.counter("weft_openflow_bundles_total", "Bundles of flow changes sent to the switch, by result (ok, error).", "result")
	m.flowMods = r.counter("weft_openflow_flow_mods_total", "Changes of flows and groups in bundles that the switch took.")
	m.events = r.counter("weft_events_total",
		"Events about objects, by whether they were sent (sent) or left out because there were too many (dropped).", "result")
	m.kubeRequests = r.counter("weft_kube_requests_total",
		"Requests to the API server, by HTTP method and status; status error means no response.", "method", "status")
	watches := r.gauge("weft_kube_watches", "Watches of the API server that are open. Fewer than usual: the API server is away, and changes wait.")
	m.kubeWatches = watches.WithLabelValues()
	m.describe = agentState{
		ready:       r.state("weft_ready", "1 when pods can be attached to the network.", "network"),
		desired:     r.state("weft_engine_desired", "Items that an engine is to hold.", "engine"),
		programmed:  r.state("weft_engine_programmed", "Items that an engine holds, as far as is known.", "engine"),
		failures:    r.state("weft_engine_failures", "Owners (attachments, hosts, Services, ...) whose state is not in effect.", "engine"),
		inStep:      r.state("weft_engine_in_step", "1 when all that an engine is to hold was committed, and nothing failed or waits. What others change counts from when it is seen.", "engine"),
		flows:       r.state("weft_openflow_flows", "Flows in the switch, by network and table; table groups counts the groups.", "network", "table"),
		attachments: r.state("weft_attachments", "Pods' interfaces recorded on the node, by network and state.", "network", "state"),
		addresses:   r.state("weft_addresses_in_use", "Pod addresses of the network on the node that are taken.", "network"),
		capacity:    r.state("weft_addresses", "Pod addresses that the network has on the node.", "network"),
	}
	m.preset()
	return m
}

// preset creates the series that alerts rely on, so that they exist from the first scrape, with value zero.
func (m *Agent) preset() {
	for _, engine := range Engines() {
		m.commitErrors.WithLabelValues(engine)
		m.readErrors.WithLabelValues(engine)
		for _, kind := range []string{"missing", "altered", "stray"} {
			m.drift.WithLabelValues(engine, kind)
		}
	}
	for _, result := range []string{"ok", "error"} {
		m.bundles.WithLabelValues(result)
	}
	for _, to := range []string{"openflow", "ovsdb", "switch"} {
		m.reconnects.WithLabelValues(to)
	}
	for _, result := range []string{"sent", "dropped"} {
		m.events.WithLabelValues(result)
	}
	m.flowMods.WithLabelValues()
}

// NoNetwork is the value of the label network if there is none.
const NoNetwork = "none"

// Request records a request of the container runtime. Code is 0 for success.
func (m *Agent) Request(network, command string, code uint, took time.Duration) {
	m.cni.WithLabelValues(network, command, strconv.FormatUint(uint64(code), 10)).Observe(took.Seconds())
}

// Step records a step of a request.
func (m *Agent) Step(network, command, step string, took time.Duration) {
	m.step.WithLabelValues(network, command, step).Observe(took.Seconds())
}

// Commit records an event of a loop; it is used as Options.Observe of the loops.
func (m *Agent) Commit(event reconcile.Event) {
	if event.Read {
		m.readErrors.WithLabelValues(event.Engine).Inc()
		return
	}
	for kind, items := range map[string]int{"missing": event.Drift.Missing, "altered": event.Drift.Altered, "stray": event.Drift.Stray} {
		m.drift.WithLabelValues(event.Engine, kind).Add(float64(items))
	}
	if event.Err != nil {
		m.commitErrors.WithLabelValues(event.Engine).Inc()
		return
	}
	m.changes.WithLabelValues(event.Engine, "set").Add(float64(event.Set))
	m.changes.WithLabelValues(event.Engine, "delete").Add(float64(event.Deleted))
	m.commit.WithLabelValues(event.Engine).Observe(event.Took.Seconds())
	if event.Waited > 0 {
		m.latency.WithLabelValues(event.Engine).Observe(event.Waited.Seconds())
	}
}

// Bundle records a bundle of changes sent to the switch.
func (m *Agent) Bundle(mods int, err error) {
	m.bundles.WithLabelValues(outcome(err)).Inc()
	if err == nil {
		m.flowMods.WithLabelValues().Add(float64(mods))
	}
}

// Connected counts a connection: "openflow", "ovsdb", or "switch" for a restarted daemon.
func (m *Agent) Connected(to string) { m.reconnects.WithLabelValues(to).Inc() }

// Synced records how long it took until the node was in step with a change of a network's objects.
func (m *Agent) Synced(network string, took time.Duration) {
	m.objects.WithLabelValues(network).Observe(took.Seconds())
}

// Event counts an event about an object, sent or dropped.
func (m *Agent) Event(sent bool) {
	if sent {
		m.events.WithLabelValues("sent").Inc()
		return
	}
	m.events.WithLabelValues("dropped").Inc()
}

// KubeRequest counts a request to the API server; status is 0 if there was no response.
func (m *Agent) KubeRequest(method string, status int) {
	text := "error"
	if status != 0 {
		text = strconv.Itoa(status)
	}
	m.kubeRequests.WithLabelValues(method, text).Inc()
}

// KubeWatches adds to the number of open watches: 1 for one opened, -1 for one closed.
func (m *Agent) KubeWatches(change int) { m.kubeWatches.Add(float64(change)) }

// Engine is the state of a loop.
type Engine struct {
	reconcile.Status
	// Programmed is the number of items that the engine holds.
	Programmed int
}

// State has the values that are evaluated at each scrape.
type State struct {
	// Engines are the states of the loops, by name.
	Engines map[string]Engine
	// Networks are the node's networks, by name.
	Networks map[string]Network
}

// Network is the state of a network.
type Network struct {
	// Ready says that pods can be attached.
	Ready bool
	// Attachments is the number of records by state.
	Attachments map[string]int
	// AddressesInUse and Addresses are numbers of the network's addresses on the node. Addresses is 0 if it has none of its own.
	AddressesInUse, Addresses uint64
	// Flows is the number of the network's flows by table; its groups are under "groups".
	Flows map[string]int
}

// Watch sets the function that each scrape calls for the state. It is called at most once.
func (m *Agent) Watch(state func() State) {
	d := m.describe
	m.registry.MustRegister(&scraped{
		descriptions: []*prometheus.Desc{d.ready, d.desired, d.programmed, d.failures, d.inStep, d.flows, d.attachments, d.addresses, d.capacity},
		collect: func(set func(*prometheus.Desc, float64, ...string)) {
			s := state()
			for engine, stats := range s.Engines {
				set(d.desired, float64(stats.Items), engine)
				set(d.programmed, float64(stats.Programmed), engine)
				set(d.failures, float64(len(stats.Failures)), engine)
				set(d.inStep, one(stats.InStep()), engine)
			}
			for name, network := range s.Networks {
				set(d.ready, one(network.Ready), name)
				for table, flows := range network.Flows {
					set(d.flows, float64(flows), name, table)
				}
				for state, n := range network.Attachments {
					set(d.attachments, float64(n), name, state)
				}
				set(d.addresses, float64(network.AddressesInUse), name)
				set(d.capacity, float64(network.Addresses), name)
			}
		},
	})
}
