package metrics

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// Controller is the metrics of a cluster's controller.
type Controller struct {
	*Registry

	// network is the part's that counts.
	network string

	reconcile *prometheus.HistogramVec
	writes    *prometheus.CounterVec
	problems  *prometheus.GaugeVec
	leader    prometheus.Gauge
	// What only a replica that works knows has no value on the others.
	hostSubnets, free, vnids *prometheus.GaugeVec
}

// NewController returns a controller's metrics.
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

// For returns the same metrics for a network's part of the controller.
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

// Lead tells whether this replica works.
func (m *Controller) Lead(leads bool) { m.leader.Set(one(leads)) }

// Reconciled tells of one look at all objects.
func (m *Controller) Reconciled(controller string, took time.Duration, err error) {
	m.reconcile.WithLabelValues(m.network, controller, outcome(err)).Observe(took.Seconds())
}

// Wrote tells of the write of an object; result is ok, conflict or error.
func (m *Controller) Wrote(verb, result string) {
	m.writes.WithLabelValues(m.network, verb, result).Inc()
}

// Problems tells how many problems last, by reason.
func (m *Controller) Problems(controller string, byReason map[string]int) {
	m.problems.DeletePartialMatch(prometheus.Labels{"network": m.network, "controller": controller})
	for reason, n := range byReason {
		m.problems.WithLabelValues(m.network, controller, reason).Set(float64(n))
	}
}

// Subnets tells how many node subnets are given out and how many are free.
func (m *Controller) Subnets(given int, free uint64) {
	m.hostSubnets.WithLabelValues().Set(float64(given))
	m.free.WithLabelValues().Set(float64(free))
}

// VNIDs tells how many VNIDs are given out.
func (m *Controller) VNIDs(given int) { m.vnids.WithLabelValues().Set(float64(given)) }
