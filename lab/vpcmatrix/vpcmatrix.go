// Package vpcmatrix measures in a lab with VPCs which pods of the example (deploy/examples/vpc) reach what, with the source address that the
// other side sees, and that a spoofed source arrives nowhere. Rows that must fail are measured as well.
package vpcmatrix

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"text/tabwriter"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"weft.dev/weft/internal/attach"
	"weft.dev/weft/lab"
	"weft.dev/weft/lab/ground"
)

// The pods of the example, as namespace/name.
const (
	first       = "ns1/vpc1-pod"
	floating    = "ns1/vpc1-other"
	second      = "ns2/vpc2-pod"
	secondOther = "ns2/vpc2-other"
	overlay     = "default/overlay-pod"
)

// patience is how long a request may take.
const patience = 3 * time.Second

// recordsDir has a node's attachment records.
const recordsDir = "/var/lib/weft/attachments"

// Options say what the rows expect.
type Options struct {
	// SNAT is the address that the outside sees of vpc1-pod. Zero: no rule translates, and it must reach nothing there.
	SNAT netip.Addr
	// FloatingIP is that of vpc1-other. Zero: the rows with gateways are left out.
	FloatingIP netip.Addr
}

// Row is one way that was measured.
type Row struct {
	Name, From, To string
	// Want is the source that the other side must see; zero: nothing may arrive. Seen is what it saw; zero: nothing arrived.
	Want, Seen netip.Addr
	// Problem says why nothing arrived.
	Problem string
}

// OK reports whether the row is as it must be.
func (r Row) OK() bool { return r.Want == r.Seen }

// Report is the whole matrix.
type Report struct{ Rows []Row }

// OK reports whether every row is as it must be.
func (r *Report) OK() bool {
	for _, row := range r.Rows {
		if !row.OK() {
			return false
		}
	}
	return len(r.Rows) > 0
}

// pod is a pod of the example.
type pod struct {
	ip    netip.Addr
	mac   net.HardwareAddr
	netns string
}

// Run measures. An error means that it could not be measured.
func Run(ctx context.Context, c *lab.Cluster, o Options) (*Report, error) {
	pods, err := find(ctx, c)
	if err != nil {
		return nil, err
	}
	report := &Report{}
	for _, r := range ways(c, pods, o) {
		r.measure()
		report.Rows = append(report.Rows, r.Row)
	}
	spoofed, err := spoof(pods)
	if err != nil {
		return nil, err
	}
	report.Rows = append(report.Rows, spoofed...)
	return report, nil
}

// way is a row to measure.
type way struct {
	Row
	netns string
	to    netip.AddrPort
	path  string
}

const (
	webPort  = 80
	askPath  = "/clientip" // agnhost's netexec answers with the sender's address
	rootPath = "/"         // so does the lab's reporter
)

func ways(c *lab.Cluster, pods map[string]pod, o Options) []way {
	var all []way
	add := func(name, from, to string, want netip.Addr) {
		all = append(all, way{
			Row: Row{Name: name, From: from, To: to, Want: want}, netns: pods[from].netns, to: netip.AddrPortFrom(pods[to].ip, webPort), path: askPath,
		})
	}
	var none netip.Addr
	add("pod to pod, in a VPC", first, floating, pods[first].ip)
	add("pod to pod, in a VPC", floating, first, pods[floating].ip)
	add("pod to pod, in a second VPC of the same range", second, secondOther, pods[second].ip)
	add("between VPCs", second, floating, none)
	// The addresses of the second VPC are in the first one's range as well: the request must not get out of it.
	add("between VPCs", first, unshared(pods), none)
	add("from a VPC to the cluster's network", first, overlay, none)
	add("from the cluster's network to a VPC", overlay, floating, none)
	outside := func(name, from string, at lab.Outside, want netip.Addr) {
		to, err := netip.ParseAddrPort(strings.Trim(strings.TrimPrefix(at.URL, "http://"), "/"))
		all = append(all, way{Row: Row{Name: name, From: from, To: at.URL, Want: want}, netns: pods[from].netns, to: to, path: rootPath})
		if err != nil {
			all[len(all)-1].Problem = err.Error()
		}
	}
	outside("from a VPC without a gateway to outside", second, c.Outside, none)
	outside("by SNAT to the outside network", first, c.External, o.SNAT)
	outside("by SNAT to outside", first, c.Outside, o.SNAT)
	if o.FloatingIP.IsValid() {
		outside("by the floating IP to outside", floating, c.Outside, o.FloatingIP)
		all = append(all, way{
			Row:   Row{Name: "from the outside network to the floating IP", From: "external", To: o.FloatingIP.String(), Want: c.External.IP},
			netns: c.External.Netns, to: netip.AddrPortFrom(o.FloatingIP, webPort), path: askPath,
		})
	}
	return all
}

// unshared names a pod of the second VPC whose address no pod of the first one has.
func unshared(pods map[string]pod) string {
	for _, name := range []string{second, secondOther} {
		if ip := pods[name].ip; ip != pods[first].ip && ip != pods[floating].ip {
			return name
		}
	}
	return second
}

// measure makes one request, and where one must arrive, more until it does: a gateway may be a moment behind its objects.
func (w *way) measure() {
	if w.Problem != "" {
		return
	}
	tries := 1
	if w.Want.IsValid() {
		tries = 10
	}
	for range tries {
		err := ground.Do(w.netns, func() error {
			var err error
			w.Seen, err = ask(w.to, w.path)
			return err
		})
		w.Problem = ""
		if err == nil {
			return
		}
		w.Problem = err.Error()
	}
}

var errAnswer = errors.New("the answer is no address")

// ask makes a request on the thread's namespace, and returns the source address that the other side saw.
func ask(to netip.AddrPort, path string) (netip.Addr, error) {
	conn, err := net.DialTimeout("tcp4", to.String(), patience)
	if err != nil {
		return netip.Addr{}, err //nolint:wrapcheck // it names the address
	}
	defer func() { _ = conn.Close() }()
	if err := conn.SetDeadline(time.Now().Add(patience)); err != nil {
		return netip.Addr{}, fmt.Errorf("ask %s: %w", to, err)
	}
	if _, err := io.WriteString(conn, "GET "+path+" HTTP/1.1\r\nHost: "+to.String()+"\r\nConnection: close\r\n\r\n"); err != nil {
		return netip.Addr{}, fmt.Errorf("ask %s: %w", to, err)
	}
	res, err := http.ReadResponse(bufio.NewReader(conn), nil)
	if err != nil {
		return netip.Addr{}, fmt.Errorf("ask %s: %w", to, err)
	}
	defer func() { _ = res.Body.Close() }()
	body, err := io.ReadAll(io.LimitReader(res.Body, 1<<10))
	if err != nil {
		return netip.Addr{}, fmt.Errorf("ask %s: %w", to, err)
	}
	said := strings.TrimSpace(string(body))
	if at, err := netip.ParseAddrPort(said); err == nil {
		return at.Addr().Unmap(), nil
	}
	addr, err := netip.ParseAddr(said)
	if err != nil {
		return netip.Addr{}, fmt.Errorf("ask %s: %w: %.64q", to, errAnswer, said)
	}
	return addr.Unmap(), nil
}

// find returns the example's pods with their namespaces, by namespace/name.
func find(ctx context.Context, c *lab.Cluster) (map[string]pod, error) {
	k, err := c.Client()
	if err != nil {
		return nil, err
	}
	pods := map[string]pod{}
	for _, name := range []string{first, floating, second, secondOther, overlay} {
		namespace, podName, _ := strings.Cut(name, "/")
		p, err := k.CoreV1().Pods(namespace).Get(ctx, podName, metav1.GetOptions{})
		if err != nil {
			return nil, fmt.Errorf("%w: kubectl apply -f deploy/examples/vpc", err)
		}
		node, err := c.NodeNamed(p.Spec.NodeName)
		if err != nil {
			return nil, fmt.Errorf("pod %s: %w", name, err)
		}
		rec, err := recordOf(node, name)
		if err != nil {
			return nil, err
		}
		ip, err := netip.ParseAddr(p.Status.PodIP)
		if err != nil {
			return nil, fmt.Errorf("pod %s: %w", name, err)
		}
		mac, err := net.ParseMAC(rec.MAC)
		if err != nil {
			return nil, fmt.Errorf("pod %s: %w", name, err)
		}
		// A runtime may name the namespace through /var/run, an absolute link that would lead out of the node's root.
		path := rec.Netns
		if rest, ok := strings.CutPrefix(path, "/var/run/"); ok {
			path = "/run/" + rest
		}
		pods[name] = pod{ip: ip, mac: mac, netns: node.Root(path)}
	}
	return pods, nil
}

var errRecord = errors.New("it has no attachment record")

// recordOf returns the newest attachment record of a pod.
func recordOf(n lab.Node, name string) (attach.Record, error) {
	var newest attach.Record
	paths, err := filepath.Glob(n.Root(filepath.Join(recordsDir, "*.json")))
	if err != nil {
		return newest, fmt.Errorf("list the attachments of %s: %w", n.Name, err)
	}
	for _, path := range paths {
		raw, err := os.ReadFile(path)
		if errors.Is(err, os.ErrNotExist) {
			continue // it ended just now
		}
		if err != nil {
			return newest, fmt.Errorf("read the attachments of %s: %w", n.Name, err)
		}
		rec, err := attach.ParseRecord(raw)
		if err != nil {
			return newest, fmt.Errorf("%s: %w", path, err)
		}
		if rec.PodNamespace+"/"+rec.PodName == name && !rec.Created.Before(newest.Created) {
			newest = rec
		}
	}
	if newest.Netns == "" {
		return newest, fmt.Errorf("pod %s on %s: %w", name, n.Name, errRecord)
	}
	return newest, nil
}

// Table writes the report.
func (r *Report) Table(out io.Writer) error {
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	_, err := fmt.Fprintln(w, "WHAT REACHES WHAT\tFROM\tTO\tMUST SEE\tSEEN\tRESULT")
	right := 0
	for _, row := range r.Rows {
		verdict := "WRONG " + row.Problem
		if row.OK() {
			verdict = "ok"
			right++
		}
		if err == nil {
			_, err = fmt.Fprintf(w, "%s\t%s\t%s\t%s\t%s\t%s\n", row.Name, row.From, row.To, source(row.Want), source(row.Seen), verdict)
		}
	}
	if err == nil {
		err = w.Flush()
	}
	if err == nil {
		_, err = fmt.Fprintf(out, "\n%d of %d rows are as they must be.\n", right, len(r.Rows))
	}
	if err != nil {
		return fmt.Errorf("write the matrix: %w", err)
	}
	return nil
}

func source(a netip.Addr) string {
	if !a.IsValid() {
		return "nothing"
	}
	return a.String()
}
