// Package matrix measures the connectivity of a running lab: between pods, hosts and the outside, each path with the source address that
// the receiver saw and with its latency. It compares the connectivity between projects with the NetworkPolicies there. And it proves, by
// sniffing everywhere, that a pod's packets with a foreign source arrive nowhere.
package matrix

import (
	"context"
	"fmt"
	"net/netip"
	"slices"
	"time"

	"weft.dev/weft/lab"
	"weft.dev/weft/lab/plan"
)

// Options are the options of a measurement; the zero value is usable.
type Options struct {
	// Namespace and Selector choose the pods in a lab of runtime kubelet; default "quickstart" and all ready pods. They must serve like
	// agnhost's netexec on port 8080. In a lab of runtime cni, pods are made and removed. In a lab of both networks, the pods on flannel are
	// those of the namespace with "-flannel" appended to its name. In addition, Projects are the namespaces with the label
	// weft.dev/matrix=project, and their pods.
	Namespace string
	Selector  string
	// Exchanges is the number of exchanges per path; default 20.
	Exchanges int
}

func (o Options) withDefaults() Options {
	if o.Namespace == "" {
		o.Namespace = "quickstart"
	}
	if o.Exchanges == 0 {
		o.Exchanges = 20
	}
	return o
}

// Report is the whole matrix.
type Report struct {
	Lab      string        `json:"lab"`
	Runtime  plan.Runtime  `json:"runtime"`
	Datapath plan.Datapath `json:"datapath"`
	Ways     []Way         `json:"ways"`
	// Judged are the paths between pods of projects, in the mode with NetworkPolicies.
	Judged []Judged `json:"judged,omitempty"`
	Tricks []Trick  `json:"tricks"`
	// AsItMust is set if every row is as expected.
	AsItMust bool `json:"asItMust"`
}

// Party is one end of a path.
type Party struct {
	Name string     `json:"name"`           // of the pod or the node; "outside"
	Node string     `json:"node,omitempty"` // where it is
	IP   netip.Addr `json:"ip"`

	kind    kind
	name    string // in the cluster's DNS; Services only
	netns   string // path of the network namespace
	port    uint16 // its HTTP port
	answers string // the name in its answers; "" if they have none
	key     string // of its attachment record: namespace/name; pods only

	network  string // of its attachment record; pods only
	hostPort uint16 // the port of its node that is forwarded to port; 0: none
}

type kind int

const (
	pod kind = iota
	host
	outside
	service
)

// Way is a row: the path from one party to another.
type Way struct {
	Kind string `json:"kind"` // such as "pod to pod, same node"
	From Party  `json:"from"`
	To   Party  `json:"to"`
	// Source is the address that the receiver must see; Seen the one that it saw, invalid if it saw nothing.
	Source netip.Addr `json:"source"`
	Seen   netip.Addr `json:"seen"`
	// Name is the name that the sender resolves by the cluster's DNS before every exchange; "" if it uses the address.
	Name string `json:"dnsName,omitempty"`
	// Reached is set if every exchange, of HTTP and of ICMP, was answered by the right party. It must be set. A Service's address does not
	// answer ICMP.
	Reached  bool     `json:"reached"`
	DNS      Measured `json:"dns"`  // question and answer, when there is a Name
	HTTP     Measured `json:"http"` // TCP connect, request and answer
	Ping     Measured `json:"ping"` // ICMP echo
	AsItMust bool     `json:"asItMust"`

	limit time.Duration // time limit of one exchange; 0: patience
	from  int           // the last source port of connections; 0: none
}

// Measured is the result of a number of exchanges.
type Measured struct {
	Sent     int           `json:"sent"`
	Answered int           `json:"answered"`
	Median   time.Duration `json:"medianNanoseconds"` // of those that were answered
	Problem  string        `json:"problem,omitempty"` // the first
}

// Trick is a row that must fail: frames of a pod with a source that is not its own.
type Trick struct {
	Kind string `json:"kind"`
	From Party  `json:"from"`
	// Sent counts the frames, Arrived those seen anywhere except on the sender's own link.
	Sent    int `json:"sent"`
	Arrived int `json:"arrived"`
	// Examples name some that arrived, and where.
	Examples []string `json:"examples,omitempty"`
	// Control reports whether a similar but honest frame, sent after them by the same socket, arrived.
	Control     bool   `json:"controlArrived"`
	ControlName string `json:"control"`
	AsItMust    bool   `json:"asItMust"`
}

// Run measures the matrix of a running lab. An error means that it could not be measured; unexpected results are in the report.
func Run(ctx context.Context, c *lab.Cluster, o Options) (*Report, error) {
	o = o.withDefaults()
	s, err := openScene(ctx, c, o)
	if err != nil {
		return nil, err
	}
	r, err := s.measure(ctx, o)
	if closeErr := s.close(context.WithoutCancel(ctx)); err == nil && closeErr != nil {
		err = closeErr
	}
	return r, err
}

func (s *scene) measure(ctx context.Context, o Options) (*Report, error) {
	r := &Report{Lab: s.cluster.Name(), Runtime: s.cluster.Config.Runtime, Datapath: s.cluster.Datapath, AsItMust: true}
	for _, w := range s.all() {
		if err := ctx.Err(); err != nil {
			return nil, fmt.Errorf("measure the matrix of lab %s: %w", r.Lab, err)
		}
		w.measure(o.Exchanges)
		r.Ways = append(r.Ways, w)
		r.AsItMust = r.AsItMust && w.AsItMust
	}
	judged, err := s.judgeAll()
	if err != nil {
		return nil, err
	}
	for i := range judged {
		r.AsItMust = r.AsItMust && judged[i].AsItMust
	}
	r.Judged = judged
	for _, realm := range s.realms {
		if len(realm.members(s.pods)) == 0 {
			continue
		}
		tricks, err := s.spoof(ctx, realm)
		if err != nil {
			return nil, err
		}
		for _, t := range tricks {
			r.AsItMust = r.AsItMust && t.AsItMust
		}
		r.Tricks = append(r.Tricks, tricks...)
	}
	return r, nil
}

// ways lists the paths to measure. Each node's first pod represents the node; a second one, if there is one, is its neighbour. The other
// node is the next in order. Gateways and tunnels are, by node name, the nodes' own addresses towards their own pods and towards pods of
// other nodes.
func ways(pods, hosts []Party, outside Party, gateways, tunnels map[string]netip.Addr) []Way {
	on := map[string][]Party{}
	for _, p := range pods {
		on[p.Node] = append(on[p.Node], p)
	}
	var out []Way
	each := func(f func(i int)) {
		for i := range hosts {
			f(i)
		}
	}
	add := func(kind string, from, to []Party, source func() netip.Addr) {
		if len(from) > 0 && len(to) > 0 {
			out = append(out, Way{Kind: kind, From: from[0], To: to[0], Source: source()})
		}
	}
	mine := func(i int) []Party { return on[hosts[i].Node] }
	next := func(i int) int { return (i + 1) % len(hosts) }
	own := func(i int) func() netip.Addr { return func() netip.Addr { return mine(i)[0].IP } }
	node := func(i int) func() netip.Addr { return func() netip.Addr { return hosts[i].IP } }
	gateway := func(i int) func() netip.Addr { return func() netip.Addr { return gateways[hosts[i].Node] } }
	tunnel := func(i int) func() netip.Addr { return func() netip.Addr { return tunnels[hosts[i].Node] } }
	each(func(i int) {
		if len(mine(i)) > 1 {
			add("pod to pod, same node", mine(i), mine(i)[1:], own(i))
		}
	})
	others := len(hosts) > 1
	each(func(i int) {
		if others {
			add("pod to pod, other node", mine(i), mine(next(i)), own(i))
		}
	})
	each(func(i int) { add("pod to its own host", mine(i), hosts[i:], own(i)) })
	each(func(i int) {
		if others {
			add("pod to another host", mine(i), hosts[next(i):], node(i))
		}
	})
	each(func(i int) { add("host to its own pod", hosts[i:], mine(i), gateway(i)) })
	each(func(i int) {
		if others {
			add("host to a pod elsewhere", hosts[i:], mine(next(i)), tunnel(i))
		}
	})
	each(func(i int) { add("pod to outside", mine(i), []Party{outside}, node(i)) })
	return out
}

// serviceWays lists the paths to Services: each node's first pod to each Service, by its address and by its name, and the pod behind the
// Service to itself.
func serviceWays(pods, services []Party, hairpin func(Party) netip.Addr) []Way {
	first := map[string]Party{}
	var nodes []string
	for _, p := range pods {
		if _, seen := first[p.Node]; !seen {
			first[p.Node] = p
			nodes = append(nodes, p.Node)
		}
	}
	var out []Way
	for _, to := range services {
		behind := slices.IndexFunc(pods, func(p Party) bool { return p.Name == to.answers })
		if behind < 0 {
			continue
		}
		for _, node := range nodes {
			from := first[node]
			if from.Name == to.answers {
				continue
			}
			kind := "pod to Service, endpoint here"
			if node != pods[behind].Node {
				kind = "pod to Service, endpoint elsewhere"
			}
			out = append(out, Way{Kind: kind, From: from, To: to, Source: from.IP})
		}
		out = append(out, Way{Kind: "pod to itself by its Service", From: pods[behind], To: to, Source: hairpin(pods[behind])})
		for _, node := range nodes {
			if from := first[node]; from.Name != to.answers {
				out = append(out, Way{Kind: "pod to Service by name", From: from, To: to, Source: from.IP, Name: to.name})
			}
		}
	}
	return out
}
