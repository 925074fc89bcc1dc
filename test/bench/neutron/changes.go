package neutron

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync/atomic"

	"weft.dev/weft/internal/ovsdb/confdb"
	"weft.dev/weft/internal/ovsdb/session"
	"weft.dev/weft/lab"
	"weft.dev/weft/test/probe"
)

// requests are the numbers of requests that OpenStack's services have answered, by the service, without those for tokens.
type requests map[string]struct{ reads, writes int }

// logs are the files with the services' requests.
func logs() map[string]string {
	return map[string]string{"Keystone": "keystone-requests.log", "Neutron": "neutron.log", "Octavia": "octavia-requests.log"}
}

// requested matches a request in a log.
func requested() *regexp.Regexp {
	return regexp.MustCompile(`"(GET|HEAD|POST|PUT|PATCH|DELETE) (/\S*) HTTP/`)
}

// tokens is the end of the path by which a client authenticates, and a service checks a client's token. Neither changes anything.
const tokens = "/auth/tokens"

// requests reads the services' logs.
func (s *restarts) requests() (requests, error) {
	all := requests{}
	for service, file := range logs() {
		text, err := os.ReadFile(filepath.Join(s.OpenStack.Dir, "log", file))
		if err != nil {
			return nil, fmt.Errorf("read the requests to %s: %w", service, err)
		}
		all[service] = countRequests(string(text))
	}
	return all, nil
}

func countRequests(log string) (count struct{ reads, writes int }) {
	for _, found := range requested().FindAllStringSubmatch(log, -1) {
		method, path := found[1], found[2]
		switch {
		case strings.HasSuffix(path, tokens):
		case method == "GET" || method == "HEAD":
			count.reads++
		default:
			count.writes++
		}
	}
	return count
}

var errUnread = errors.New("the controller has compared nothing with it")

// since returns how many requests have changed something since then. Each service must have had reading ones.
func (r requests) since(before requests) (writes int, err error) {
	for service, now := range r {
		if now.reads == before[service].reads {
			return 0, fmt.Errorf("requests to %s: %w", service, errUnread)
		}
		writes += now.writes - before[service].writes
	}
	return writes, nil
}

// rowWatch counts the changes of rows of bridges, ports and interfaces, by a monitor of the switch's database. The columns are those that Weft
// reads: not the statistics and states that ovs-vswitchd writes all the time.
type rowWatch struct {
	keeper  *session.Keeper
	changes atomic.Int64
	lost    atomic.Bool
}

// watchRows watches the rows of a node until close.
func watchRows(ctx context.Context, n lab.Node) (w *rowWatch, err error) {
	tables := confdb.Monitored()
	delete(tables, confdb.TableRoot) // each change increases its numbers
	w = &rowWatch{}
	w.keeper, err = session.Keep(ctx, session.Config{
		Database: confdb.Database, Tables: tables, Endpoints: []string{"unix:" + n.Root("/run/openvswitch/db.sock")},
		ChangedRows: func(_ string, uuids []string) { w.changes.Add(int64(len(uuids))) },
		Lost:        func() { w.lost.Store(true) },
	})
	if err != nil {
		return nil, fmt.Errorf("watch the rows of %s: %w", n.Name, err)
	}
	return w, nil
}

func (w *rowWatch) close() { w.keeper.Close() }

var errLost = errors.New("the monitor of the switch's database was interrupted: it may have missed changes")

// count returns how many rows were added, changed and deleted so far.
func (w *rowWatch) count(ctx context.Context) (int64, error) {
	if err := w.keeper.Do(ctx, func(s *session.Session) error { return s.Sync(ctx) }); err != nil {
		return 0, fmt.Errorf("watch the rows: %w", err)
	}
	if w.lost.Load() {
		return 0, errLost
	}
	return w.changes.Load(), nil
}

var errBlind = errors.New("a change was not counted")

// prove makes changes after which flow, group and row are what they were before, and returns an error unless each is counted.
func prove(ctx context.Context, n lab.Node, bridge string) (err error) {
	flows, err := probe.WatchBridge(ctx, n, bridge)
	if err != nil {
		return err //nolint:wrapcheck // it names the node
	}
	defer func() { err = errors.Join(err, flows.Close()) }()
	rows, err := watchRows(ctx, n)
	if err != nil {
		return err
	}
	defer rows.close()
	for i, change := range []repetition{
		{"--no-stats --no-names dump-flows", "actions=", "add-flow"},
		{"dump-groups", "group_id=", "mod-group"},
	} {
		if err := change.make(ctx, n, bridge); err != nil {
			return err
		}
		if count, err := flows.Count(ctx); err != nil || count <= i {
			return errors.Join(err, fmt.Errorf("%s: %w", change.command, errBlind))
		}
	}
	const key = "weft-bench"
	for _, change := range [][]string{{"set", "Interface", bridge, "external_ids:" + key + "=1"}, {"remove", "Interface", bridge, "external_ids", key}} {
		if _, err := probe.Run(ctx, n.Enter(append([]string{"ovs-vsctl", "--timeout=60"}, change...)...)); err != nil {
			return err //nolint:wrapcheck // it names the command
		}
	}
	if count, err := rows.count(ctx); err != nil || count < 2 {
		return errors.Join(err, fmt.Errorf("external_ids: %w", errBlind))
	}
	return nil
}

// repetition is a command of ovs-ofctl that makes again what the first line of a dump with a mark describes.
type repetition struct{ dump, mark, command string }

func (r repetition) make(ctx context.Context, n lab.Node, bridge string) error {
	tool := []string{"ovs-ofctl", "-O", "OpenFlow15"}
	out, err := probe.Run(ctx, n.Enter(slices.Concat(tool, strings.Fields(r.dump), []string{bridge})...))
	if err != nil {
		return err //nolint:wrapcheck // it names the command
	}
	for line := range strings.Lines(out) {
		if strings.Contains(line, r.mark) {
			_, err := probe.Run(ctx, n.Enter(slices.Concat(tool, []string{r.command, bridge, strings.TrimSpace(line)})...))
			return err //nolint:wrapcheck // it names the command
		}
	}
	return fmt.Errorf("%s of %s: %w", r.dump, bridge, errBlind)
}
