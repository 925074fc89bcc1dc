// Package reach measures connectivity in a lab: it makes requests from network namespaces and compares the source address that the
// receiver saw with the expected one. It also measures paths on which nothing may arrive.
package reach

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"strings"
	"syscall"
	"text/tabwriter"
	"time"

	"golang.org/x/sync/errgroup"

	"weft.dev/weft/lab/ground"
)

const (
	// patience is the time limit of a request that must arrive, and silence of one that must not: within a machine, an answer takes
	// milliseconds.
	patience = 3 * time.Second
	silence  = time.Second
)

// Row is one measured path.
type Row struct {
	Name, From, To string
	// Want is the source that the receiver must see; zero: nothing may arrive. Seen is the source that it saw; zero: nothing arrived. Where nothing
	// may arrive, a refused or reset connection has arrived as well: Seen is then the target's address.
	Want, Seen netip.Addr
	// Problem is the reason why nothing arrived, or why the source is unknown.
	Problem string
}

// OK reports whether the row is as expected.
func (r Row) OK() bool { return r.Want == r.Seen }

// Report is a whole matrix.
type Report struct{ Rows []Row }

// OK reports whether every row is as expected.
func (r *Report) OK() bool {
	for _, row := range r.Rows {
		if !row.OK() {
			return false
		}
	}
	return len(r.Rows) > 0
}

// Way is a path to measure: a request for Path to At, from a network namespace.
type Way struct {
	Row
	Netns string
	At    netip.AddrPort
	// Path is answered with the sender's address. Empty: every accepted connection counts, with this side's address.
	Path string
	// Prepare, if not nil, is called in the namespace before each request. The address that it returns replaces At's.
	Prepare func() (netip.Addr, error)
}

// atOnce is the maximum number of paths that are measured concurrently.
const atOnce = 8

// Measure measures all paths. A request that must arrive is tried up to tries times: its server may lag behind its objects.
func Measure(ways []Way, tries int) *Report {
	var group errgroup.Group
	group.SetLimit(atOnce)
	for i := range ways {
		group.Go(func() error {
			ways[i].measure(tries)
			return nil
		})
	}
	_ = group.Wait() // no way returns an error
	report := &Report{}
	for i := range ways {
		report.Rows = append(report.Rows, ways[i].Row)
	}
	return report
}

// measure makes one request, and if it must arrive, repeats it until it does.
func (w *Way) measure(tries int) {
	if w.Problem != "" {
		return
	}
	if !w.Want.IsValid() {
		tries = 1
	}
	for range tries {
		err := ground.Do(w.Netns, w.once)
		w.Problem = ""
		if err == nil {
			return
		}
		w.Problem = err.Error()
	}
}

// once makes a request from the thread's namespace.
func (w *Way) once() error {
	at := w.At
	if w.Prepare != nil {
		addr, err := w.Prepare()
		if err != nil {
			return err
		}
		at = netip.AddrPortFrom(addr, at.Port())
	}
	limit := patience
	if !w.Want.IsValid() {
		limit = silence
	}
	var err error
	w.Seen, err = ask(at, w.Path, limit)
	if !w.Want.IsValid() && answered(err) {
		w.Seen = at.Addr()
	}
	return err
}

var (
	errAnswer = errors.New("the answer is no address")
	errAccept = errors.New("the connection was accepted")
)

// answered reports whether packets have reached something that answers, although the request failed.
func answered(err error) bool {
	return errors.Is(err, errAccept) || errors.Is(err, syscall.ECONNREFUSED) || errors.Is(err, syscall.ECONNRESET)
}

// ask makes a request, and returns the source address that the receiver saw.
func ask(to netip.AddrPort, path string, limit time.Duration) (netip.Addr, error) {
	conn, err := net.DialTimeout("tcp4", to.String(), limit)
	if err != nil {
		return netip.Addr{}, err //nolint:wrapcheck // it names the address
	}
	defer func() { _ = conn.Close() }()
	if path == "" {
		own, err := netip.ParseAddrPort(conn.LocalAddr().String())
		return own.Addr().Unmap(), err
	}
	source, err := request(conn, to, path, limit)
	if err != nil {
		return netip.Addr{}, fmt.Errorf("ask %s: %w, then: %w", to, errAccept, err)
	}
	return source, nil
}

// request makes a request on a connection, and returns the source address in the answer.
func request(conn net.Conn, to netip.AddrPort, path string, limit time.Duration) (netip.Addr, error) {
	if err := conn.SetDeadline(time.Now().Add(limit)); err != nil {
		return netip.Addr{}, err //nolint:wrapcheck // the caller names the address
	}
	if _, err := io.WriteString(conn, "GET "+path+" HTTP/1.1\r\nHost: "+to.String()+"\r\nConnection: close\r\n\r\n"); err != nil {
		return netip.Addr{}, err //nolint:wrapcheck // the caller names the address
	}
	res, err := http.ReadResponse(bufio.NewReader(conn), nil)
	if err != nil {
		return netip.Addr{}, err //nolint:wrapcheck // the caller names the address
	}
	defer func() { _ = res.Body.Close() }()
	body, err := io.ReadAll(io.LimitReader(res.Body, 1<<10))
	if err != nil {
		return netip.Addr{}, err //nolint:wrapcheck // the caller names the address
	}
	said := strings.TrimSpace(string(body))
	if at, err := netip.ParseAddrPort(said); err == nil {
		return at.Addr().Unmap(), nil
	}
	addr, err := netip.ParseAddr(said)
	if err != nil {
		return netip.Addr{}, fmt.Errorf("%w: %.64q", errAnswer, said)
	}
	return addr.Unmap(), nil
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
