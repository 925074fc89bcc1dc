package metrics

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// Controller has the metrics of the controller.
type Controller struct {
	*Registry

	// network is the label of the part that uses these metrics.
	network string

	reconcile *prometheus.HistogramVec
	writes    *prometheus.CounterVec
	problems  *prometheus.GaugeVec
	leader    prometheus.Gauge
	// Gauges that only the leader knows; the other replicas have no value for them.
	hostSubnets, free, vnids *prometheus.GaugeVec
}

// NewController returns the metrics of a controller.
func NewController(version string) *Controller {
	r := newRegistry(version)
	m := &Controller{Registry: r, network: NoNetwork}
	m.leader = r.gauge("weft_controller_leader", "1 on the replica that works; the others wait.").WithLabelValues()
	m.reconcile = r.histogram("weft_controller_reconcile_duration_seconds",
		"Time of one look at all objects, by network, what is looked after (subnets, vnids) and result (ok, error).", 0.0005, "network", "controller", "result")
	m.writes = r.counter("weft_controller_writes_total",
		"Objects written, by what was done (create, update, delete; status: the update of a status) and result (ok, conflict, error). A conflict is repeated and harmless.", "network", "verb", "result")
	m.problems = r.gauge("weft_controller_problems", "Problems of objects that last, by reason; an event and a condition of the object say more.", "network", "controller", "reason")
	m.hostSubnets = r.gauge("weft_controller_host_subnets", "HostSubnets that hold a subnet of the cluster network. Only on the replica that works.")
	m.free = r.gauge("weft_controller_free_subnets", "Node subnets that can still be given out; 0 without a ClusterNetwork that can be used. Only on the replica that works.")
	m.vnids = r.gauge("weft_controller_vnids", "NetNamespaces that hold a VNID. Only on the replica that works.")
	return m
}

// For returns the same metrics, with a network's name as label.
func (m *Controller) For(network string) *Controller {
	part := *m
	part.network = network
	for _, verb := range []string{"create", "update", "delete", "status"} {
		for _, result := range []string{"ok", "conflict", "error"} {
			part.writes.WithLabelValues(network, verb, result)
		}
	}
	return &part
}

// Lead sets whether this replica is the leader.
func (m *Controller) Lead(leads bool) { m.leader.Set(one(leads)) }

// Reconciled records one run over all objects.
func (m *Controller) Reconciled(controller string, took time.Duration, err error) {
	m.reconcile.WithLabelValues(m.network, controller, outcome(err)).Observe(took.Seconds())
}

// Wrote counts the write of an object; result is ok, conflict or error.
func (m *Controller) Wrote(verb, result string) {
	m.writes.WithLabelValues(m.network, verb, result).Inc()
}

// Problems sets the number of current problems, by reason.
func (m *Controller) Problems(controller string, byReason map[string]int) {
	m.problems.DeletePartialMatch(prometheus.Labels{"network": m.network, "controller": controller})
	for reason, n := range byReason {
		m.problems.WithLabelValues(m.network, controller, reason).Set(float64(n))
	}
}

// Subnets sets the number of assigned and of free node subnets.
func (m *Controller) Subnets(given int, free uint64) {
	m.hostSubnets.WithLabelValues().Set(float64(given))
	m.free.WithLabelValues().Set(float64(free))
}

// VNIDs sets the number of assigned VNIDs.
func (m *Controller) VNIDs(given int) { m.vnids.WithLabelValues().Set(float64(given)) }
