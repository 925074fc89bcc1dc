package overlay

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"weft.dev/weft/internal/attach"
	"weft.dev/weft/internal/cni"
	"weft.dev/weft/internal/link"
	"weft.dev/weft/internal/link/marked"
	"weft.dev/weft/internal/link/podlink"
	"weft.dev/weft/internal/nft"
	"weft.dev/weft/internal/openflow"
	"weft.dev/weft/internal/openflow/bridge"
	"weft.dev/weft/internal/overlay/host"
	"weft.dev/weft/internal/ovsdb"
)

// node is the state of a machine that survives the agent.
type node struct {
	flows *bridge.Fake
	rows  *ovsdb.Fake
	links *marked.Fake
	rules *nft.Fake
	pods  *breakablePods
	dir   string
	cache string
	// spare is Options.Spare of its agents.
	spare int
	// rest is Options.PortRest of its agents; 0: ports need no rest.
	rest time.Duration
	// tracked records the switch's conntrack flushes.
	tracked *tracked
	// ports reports ports that the switch has added, if set up to do so.
	ports *switchPorts
	// uplink is the node's own interface; nil: it is not used.
	uplink Uplink
	// privileged is Options.Privileged of its agents.
	privileged func(context.Context, cni.Args) (bool, error)
	// conflict is Options.Conflict of its agents.
	conflict func(*attach.Record, error)
	// ahead is how far its clock is ahead.
	ahead atomic.Int64
	// kernel records the conntrack flushes of the node's own kernel.
	kernel *kernel

	flowEngine *breakable[openflow.Key, openflow.Entry]
	rowEngine  *breakable[ovsdb.Key, ovsdb.Row]
	linkEngine *breakable[link.Key, link.Item]
	ruleEngine *breakable[nft.Key, nft.Item]
}

func newNode(dir string) *node {
	n := &node{
		flows: bridge.NewFake(), rows: ovsdb.NewFake(host.Bridge), links: marked.NewFake(host.Devices()...), rules: nft.NewFake(),
		pods: &breakablePods{Fake: podlink.NewFake()}, dir: dir, tracked: &tracked{}, ports: &switchPorts{}, kernel: &kernel{},
	}
	n.flowEngine = &breakable[openflow.Key, openflow.Entry]{Engine: n.flows}
	n.rowEngine = &breakable[ovsdb.Key, ovsdb.Row]{Engine: n.rows}
	n.linkEngine = &breakable[link.Key, link.Item]{Engine: n.links}
	n.ruleEngine = &breakable[nft.Key, nft.Item]{Engine: n.rules}
	return n
}

// now returns the time of its agents.
func (n *node) now() time.Time { return time.Now().Add(time.Duration(n.ahead.Load())) }

// commits returns the numbers of commits to the engines.
func (n *node) commits() [4]int {
	return [4]int{n.flows.Commits(), n.rows.Transactions(), n.links.Commits(), n.rules.Commits()}
}

// state returns everything that is programmed, as text.
func (n *node) state(t tb) string {
	t.Helper()
	rows, err := n.rows.Read(context.Background())
	if err != nil {
		t.Fatal(err)
	}
	links, _ := n.links.Read(context.Background())
	rules, _ := n.rules.Read(context.Background())
	return strings.Join([]string{n.flows.String(), lines(rows), lines(links), lines(rules)}, "----\n")
}

func lines[K comparable, V fmt.Stringer](items map[K]V) string {
	var all []string
	for _, item := range items {
		all = append(all, item.String()+"\n")
	}
	slices.Sort(all)
	return strings.Join(all, "")
}

func (n *node) request(name, netns string) *cni.Request {
	n.pods.AddNamespace(netns)
	return &cni.Request{
		ContainerID: name, IfName: "eth0", Netns: netns, NetConf: &cni.NetConf{CNIVersion: "1.0.0"},
		Args: cni.Args{PodNamespace: "default", PodName: "pod-" + name, PodUID: "uid-" + name},
	}
}

// obstruct makes the record of an attachment impossible to write or remove until the returned function is called.
func (n *node) obstruct(t tb, key attach.Key) (clear func()) {
	t.Helper()
	probe, err := os.MkdirTemp("", "weft-record-*")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = os.RemoveAll(probe) }()
	store, err := attach.Open(probe)
	if err != nil {
		t.Fatal(err)
	}
	err = store.Put(context.Background(), attach.Record{
		Network: NetworkName, ContainerID: key.ContainerID, IfName: key.IfName, Netns: "/n", BootID: "b",
		State: attach.Planned, Created: time.Unix(1, 0),
	})
	if err = errors.Join(err, store.Close()); err != nil {
		t.Fatal(err)
	}
	names, err := filepath.Glob(filepath.Join(probe, "*.json"))
	if err != nil || len(names) != 1 {
		t.Fatal(names, err)
	}
	path := filepath.Join(n.dir, filepath.Base(names[0]))
	if err := errors.Join(os.RemoveAll(path), os.MkdirAll(filepath.Join(path, "in the way"), 0o700)); err != nil {
		t.Fatal(err)
	}
	return func() {
		if err := os.RemoveAll(path); err != nil {
			t.Errorf("clearing the way: %v", err)
		}
	}
}

func tempDir(t tb, base string) string {
	t.Helper()
	dir, err := os.MkdirTemp(base, "node-*")
	if err != nil {
		t.Fatal(err)
	}
	return dir
}
