package matrix

import (
	"cmp"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"golang.org/x/sync/errgroup"

	networkv1 "weft.dev/weft/api/openshift/v1"
	"weft.dev/weft/internal/policy/oracle"
	"weft.dev/weft/lab/ground"
	"weft.dev/weft/lab/plan"
	"weft.dev/weft/test/traffic"
)

const (
	// projectLabel with projectValue is the label of namespaces whose pods are judged by policies.
	projectLabel, projectValue = "weft.dev/matrix", "project"
	// refusedWait is the time limit for an answer that must not come; an allowed one takes a millisecond.
	refusedWait = 500 * time.Millisecond
	// allowedTimes is the number of exchanges that must be answered.
	allowedTimes = 5
)

// Judged is a row of NetworkPolicies: from one pod of a project to another. The expected result comes from the policies in the API
// server, evaluated by Kubernetes' own documentation and not by Weft's rules.
type Judged struct {
	Kind string `json:"kind"` // such as "in its project, other node"
	From Party  `json:"from"`
	To   Party  `json:"to"`
	// HTTP is TCP to the pods' server port, Ping an ICMP echo.
	HTTP Cell `json:"http"`
	Ping Cell `json:"ping"`
	// Seen is the source address that the receiver saw, which must be the sender's own; invalid if nothing is expected to arrive.
	Seen netip.Addr `json:"seen"`
	// Control reports, for a row with denied packets, whether the path works: the sender reached another pod on the receiver's node, and the
	// receiver answered its node.
	Control     bool   `json:"controlReached"`
	ControlName string `json:"control,omitempty"`
	AsItMust    bool   `json:"asItMust"`
}

// Cell is one kind of packet in a row.
type Cell struct {
	// Must reports whether policies allow it.
	Must bool `json:"must"`
	Measured
	// Arrived counts the packets on the receiver's link that begin such an exchange. For denied ones it must be zero: a missing answer alone
	// would not prove that.
	Arrived  int  `json:"arrived"`
	AsItMust bool `json:"asItMust"`
}

// findProjects finds the ready pods of projects, in the mode with NetworkPolicies, and the objects that judge them.
func (s *scene) findProjects(ctx context.Context, k kubernetes.Interface) error {
	if s.cluster.Config.Network != plan.NetworkFlannel && s.cluster.Config.PluginName != networkv1.PluginNetworkPolicy {
		return nil
	}
	namespaces, err := k.CoreV1().Namespaces().List(ctx, metav1.ListOptions{})
	if err != nil {
		return fmt.Errorf("list namespaces: %w", err)
	}
	pods, err := k.CoreV1().Pods("").List(ctx, metav1.ListOptions{})
	if err != nil {
		return fmt.Errorf("list pods: %w", err)
	}
	policies, err := k.NetworkingV1().NetworkPolicies("").List(ctx, metav1.ListOptions{})
	if err != nil {
		return fmt.Errorf("list NetworkPolicies: %w", err)
	}
	project := map[string]bool{}
	for i := range namespaces.Items {
		s.world.Namespaces = append(s.world.Namespaces, &namespaces.Items[i])
		project[namespaces.Items[i].Name] = namespaces.Items[i].Labels[projectLabel] == projectValue
	}
	for i := range policies.Items {
		s.world.Policies = append(s.world.Policies, &policies.Items[i])
	}
	for i := range pods.Items {
		s.world.Pods = append(s.world.Pods, &pods.Items[i])
		if party, ok := partyOf(&pods.Items[i]); ok && project[pods.Items[i].Namespace] {
			s.projects = append(s.projects, party)
		}
	}
	slices.SortFunc(s.projects, func(a, b Party) int { return cmp.Compare(a.key, b.key) })
	return nil
}

// judgeAll measures all paths between pods of projects concurrently, because denied ones wait for the time limit.
func (s *scene) judgeAll() (rows []Judged, err error) {
	rows = judgedWays(s.projects)
	ears := map[string]*traffic.Sniffer{}
	defer func() {
		for _, ear := range ears {
			_ = ear.Close()
		}
	}()
	for _, p := range s.projects {
		if ears[p.key], err = traffic.NewSniffer(p.netns, podLink, true); err != nil {
			delete(ears, p.key)
			return nil, fmt.Errorf("listen at pod %s: %w", p.key, err)
		}
	}
	var group errgroup.Group
	for i := range rows {
		group.Go(func() error { return s.judge(&rows[i]) })
	}
	if err := group.Wait(); err != nil {
		return nil, err
	}
	for i := range rows {
		rows[i].conclude(ears[rows[i].To.key].Frames())
	}
	return rows, nil
}

// judgedWays returns all pairs of pods: first those within a project, then those between projects.
func judgedWays(projects []Party) []Judged {
	var rows []Judged
	for _, same := range []bool{true, false} {
		for _, from := range projects {
			for _, to := range projects {
				if from.key == to.key || from.network != to.network || (from.project() == to.project()) != same {
					continue
				}
				kind := "to another project"
				if same {
					kind = "in its project"
				}
				if from.Node == to.Node {
					kind += ", same node"
				} else {
					kind += ", other node"
				}
				rows = append(rows, Judged{Kind: kind, From: from, To: to})
			}
		}
	}
	return rows
}

// project returns the namespace of a pod.
func (p Party) project() string {
	namespace, _, _ := strings.Cut(p.key, "/")
	return namespace
}

// judge measures one row.
func (s *scene) judge(row *Judged) error {
	packet := oracle.Packet{Src: row.From.IP, Dst: row.To.IP, Protocol: corev1.ProtocolTCP, Port: row.To.port}
	row.HTTP.Must = s.world.Allowed(packet)
	packet.Protocol, packet.Port = "ICMP", 0
	row.Ping.Must = s.world.Allowed(packet)
	w := &Way{From: row.From, To: row.To}
	exchange := func(must bool, f func(times int) Measured) Measured {
		w.limit = 0
		if !must {
			w.limit = refusedWait
			return f(1)
		}
		return f(allowedTimes)
	}
	return ground.Do(row.From.netns, func() error {
		row.HTTP.Measured = exchange(row.HTTP.Must, func(times int) Measured {
			return repeat(times, func(int) (time.Duration, error) { return w.identify() })
		})
		row.Ping.Measured = exchange(row.Ping.Must, w.ping)
		if row.HTTP.Answered > 0 {
			row.Seen = w.source()
		}
		if row.HTTP.Must && row.Ping.Must {
			return nil
		}
		return s.control(row)
	})
}

// control tests whether the path of a row works. It runs in the sender's namespace.
func (s *scene) control(row *Judged) error {
	at := slices.IndexFunc(s.pods, func(p Party) bool { return p.Node == row.To.Node && p.network == row.From.network })
	on := slices.IndexFunc(s.hosts, func(p Party) bool { return p.Node == row.To.Node })
	if at < 0 || on < 0 {
		return fmt.Errorf("no pod of the network besides the projects' on %s, which shows that the way there is open", row.To.Node)
	}
	witness, node := &Way{From: row.From, To: s.pods[at]}, &Way{From: s.hosts[on], To: row.To}
	row.ControlName = fmt.Sprintf("it to %s, %s to the receiver", witness.To.Name, node.From.Name)
	_, away := witness.identify()
	var home error
	err := ground.Do(node.From.netns, func() error {
		_, home = node.identify()
		return nil
	})
	row.Control = err == nil && away == nil && home == nil
	if !row.Control {
		row.ControlName += fmt.Sprintf(" (%v)", errors.Join(err, away, home))
	}
	return nil
}

// conclude decides whether a row is as expected, by the frames on the receiver's link.
func (row *Judged) conclude(frames [][]byte) {
	for _, frame := range frames {
		switch beginning(frame, row.From.IP, row.To.IP) {
		case protocolTCP:
			row.HTTP.Arrived++
		case protocolICMP:
			row.Ping.Arrived++
		}
	}
	row.AsItMust = row.Control || row.HTTP.Must && row.Ping.Must
	for _, c := range []*Cell{&row.HTTP, &row.Ping} {
		c.AsItMust = !c.Must && c.Answered == 0 && c.Arrived == 0
		if c.Must {
			c.AsItMust = c.Sent > 0 && c.Answered == c.Sent
		}
		row.AsItMust = row.AsItMust && c.AsItMust
	}
	if row.HTTP.Must {
		row.AsItMust = row.AsItMust && row.Seen == row.From.IP
	}
}

// Protocol numbers (IANA).
const (
	protocolICMP = 1
	protocolTCP  = 6
)

// beginning returns the protocol of a frame that begins an exchange between two addresses: a TCP SYN to the pods' server port, or an ICMP
// echo request; 0 for other frames. Replies, which are allowed, begin nothing.
func beginning(frame []byte, from, to netip.Addr) byte {
	const ethernet, synAck, syn, echoRequest = 14, 0x12, 0x02, 8
	if len(frame) < ethernet+20 || binary.BigEndian.Uint16(frame[12:]) != 0x0800 {
		return 0
	}
	ip := frame[ethernet:]
	payload := 4 * int(ip[0]&0xf)
	if len(ip) < payload+14 || netip.AddrFrom4([4]byte(ip[12:])) != from || netip.AddrFrom4([4]byte(ip[16:])) != to {
		return 0
	}
	switch {
	case ip[9] == protocolTCP && binary.BigEndian.Uint16(ip[payload+2:]) == podPort && ip[payload+13]&synAck == syn:
		return protocolTCP
	case ip[9] == protocolICMP && ip[payload] == echoRequest:
		return protocolICMP
	}
	return 0
}

// judgedCells writes the rows, and counts those that are as expected.
func judgedCells(out io.StringWriter, rows []Judged) int {
	if len(rows) == 0 {
		return 0
	}
	right := 0
	_, _ = out.WriteString("\t\t\t\t\t\t\t\t\t\nALLOWED BY NETWORKPOLICIES\tFROM\tTO\tMUST\tDOES\tSOURCE SEEN\tCONTROL\tHTTP\tPING\tRESULT\n") // into memory
	for i := range rows {
		row := &rows[i]
		control := "-"
		if row.ControlName != "" {
			control = arrived(row.Control)
		}
		_, _ = out.WriteString(fmt.Sprintf("%s\t%s\t%s\t%s\t%s\t%s\t%s\t%s\t%s\t%s\n", row.Kind, row.From.inProject(), row.To.inProject(),
			which(row.HTTP.Must, row.Ping.Must), which(row.HTTP.reached(), row.Ping.reached()), address(row.Seen), control,
			row.HTTP.text(), row.Ping.text(), verdict(row.AsItMust)))
		right += count(row.AsItMust)
	}
	return right
}

func (c *Cell) reached() bool { return c.Answered > 0 || c.Arrived > 0 }

// text returns a cell's result: the median, or that nothing arrived.
func (c *Cell) text() string {
	if c.Answered == 0 && c.Arrived == 0 && c.Sent > 0 {
		return "refused"
	}
	return c.String()
}

// which names the protocols that pass.
func which(http, ping bool) string {
	switch {
	case http && ping:
		return "yes"
	case http:
		return "HTTP"
	case ping:
		return "PING"
	}
	return "no"
}

// inProject returns a pod of a project as text for tables.
func (p Party) inProject() string { return fmt.Sprintf("%s %s (%s)", p.key, p.IP, p.Node) }

// problem explains a row that is not as expected; empty for one that is.
func (row *Judged) problem() string {
	if row.AsItMust {
		return ""
	}
	var b strings.Builder
	fmt.Fprintf(&b, "WRONG: %s, %s to %s:", row.Kind, row.From.inProject(), row.To.inProject())
	if row.HTTP.Must && row.Seen != row.From.IP {
		fmt.Fprintf(&b, " the source seen is %s, not %s;", address(row.Seen), row.From.IP)
	}
	for i, c := range []*Cell{&row.HTTP, &row.Ping} {
		if !c.AsItMust {
			fmt.Fprintf(&b, " %s allowed by policies: %s, answered %s, arrived: %d;", [...]string{"HTTP", "ICMP"}[i], yesNo(c.Must), c.tally(), c.Arrived)
		}
	}
	if row.ControlName != "" {
		fmt.Fprintf(&b, " control (%s): %s", row.ControlName, arrived(row.Control))
	}
	return strings.TrimSuffix(b.String(), ";") + "\n"
}
