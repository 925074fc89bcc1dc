// Package cleanup takes everything of Weft's off a node: what the agent has programmed and written, once no agent runs
// there any more. What it finds, it finds by the engines' own marks, so it needs neither the API server nor records.
package cleanup

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"weft.dev/weft/internal/cni/portspace"
	"weft.dev/weft/internal/cni/rootdir"
	"weft.dev/weft/internal/link"
	"weft.dev/weft/internal/nft"
	"weft.dev/weft/internal/overlay/host"
	"weft.dev/weft/internal/ovsdb"
	"weft.dev/weft/internal/reconcile"
)

// Options say where things are on the node. None has a default but Root.
type Options struct {
	// Root is where the node's file system is; it is put before every path. Default "/".
	Root string
	// OVSRunDir, StateDir, RunDir and CNIConfDir are the agent's.
	OVSRunDir, StateDir, RunDir, CNIConfDir string
	// CNIConf is the name of the file in CNIConfDir.
	CNIConf string
	// Plugin is the CNI plugin's executable.
	Plugin string
	// Socket is the agent's for CNI requests: while it answers, an agent runs.
	Socket string
	// Records is the folder of the attachment records: an agent holds its lock from its start to its end.
	Records string
	// Ports is the namespace of ports that stood ready; empty: there was none.
	Ports string
	// Tell is called with each thing that was taken away.
	Tell func(what string)
}

// ErrAgentRuns says that it is too early.
var ErrAgentRuns = errors.New("an agent runs on this node, and would put everything back: delete the DaemonSet weft-agent first, or stop it")

// Run takes everything of Weft's off the node. Every part is tried, whatever became of the others; it may be run again.
func Run(ctx context.Context, o Options) error {
	if o.Root == "" {
		o.Root = "/"
	}
	if o.Tell == nil {
		o.Tell = func(string) {}
	}
	if info, err := os.Stat(o.Root); err != nil || !info.IsDir() {
		return fmt.Errorf("root %s: no directory, so nothing was looked at: name where the node's file system is mounted", o.Root)
	}
	if agentRuns(ctx, o.at(o.Socket)) {
		return ErrAgentRuns
	}
	lock, err := rootdir.Lock(o.at(o.Records))
	switch {
	case err == nil:
		defer lock.Close() //nolint:errcheck // nothing was written
	case errors.Is(err, rootdir.ErrInUse):
		return ErrAgentRuns
	case !errors.Is(err, fs.ErrNotExist):
		return fmt.Errorf("whether an agent runs is unknown: %w", err)
	}
	return errors.Join(
		o.remove(filepath.Join(o.CNIConfDir, o.CNIConf)), // first: no pod comes any more
		o.pods(ctx),
		o.rows(ctx),
		o.rules(ctx),
		o.addresses(ctx),
		o.remove(o.Plugin),
		o.leftovers(filepath.Dir(o.Plugin)), o.leftovers(o.CNIConfDir),
		o.ports(),
		o.remove(o.StateDir), o.remove(o.RunDir))
}

func (o Options) at(path string) string { return filepath.Join(o.Root, path) }

func agentRuns(ctx context.Context, socket string) bool {
	conn, err := new(net.Dialer).DialContext(ctx, "unix", socket)
	if err != nil {
		return false
	}
	_ = conn.Close() // it was only asked whether somebody is there
	return true
}

// remove removes a file, or a folder and all in it.
func (o Options) remove(path string) error {
	if _, err := os.Lstat(o.at(path)); errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err := os.RemoveAll(o.at(path)); err != nil && !o.isEmptyMount(path, err) {
		return fmt.Errorf("remove %s: %w", path, err)
	}
	o.Tell("file " + path)
	return nil
}

// isEmptyMount reports whether all that stays after a failed removal is a mount point, which is the administrator's.
func (o Options) isEmptyMount(path string, err error) bool {
	var at *fs.PathError
	if !errors.As(err, &at) || !errors.Is(err, unix.EBUSY) || filepath.Clean(at.Path) != o.at(path) {
		return false
	}
	left, err := os.ReadDir(o.at(path))
	return err == nil && len(left) == 0
}

// ports removes the namespace of ports that stood ready, which is a mount.
func (o Options) ports() error {
	if o.Ports == "" {
		return nil
	}
	if _, err := os.Lstat(o.at(o.Ports)); errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err := portspace.Remove(o.at(o.Ports)); err != nil {
		return err
	}
	o.Tell("namespace " + o.Ports)
	return nil
}

// leftovers removes the beginnings of files that a killed agent was about to put in place.
func (o Options) leftovers(dir string) error {
	found, err := filepath.Glob(filepath.Join(o.at(dir), ".weft-*"))
	var errs []error
	for _, path := range found {
		errs = append(errs, o.remove(filepath.Join(dir, filepath.Base(path))))
	}
	return errors.Join(append(errs, err)...)
}

// pods removes the pods' links. Where pods still run they lose their network, which they are about to lose anyway.
func (o Options) pods(ctx context.Context) error {
	names, err := podLinks()
	if err != nil || len(names) == 0 {
		return err
	}
	links, err := link.NewPods()
	if err != nil {
		return err
	}
	defer links.Close()
	if err := links.Delete(ctx, names...); err != nil {
		return err
	}
	for _, name := range names {
		o.Tell("link " + name)
	}
	return nil
}

// dumpAttempts bounds how often the kernel's links are listed again because the list changed meanwhile.
const dumpAttempts = 10

func podLinks() ([]string, error) {
	var all []netlink.Link
	var err error
	for range dumpAttempts {
		if all, err = netlink.LinkList(); !errors.Is(err, netlink.ErrDumpInterrupted) {
			break
		}
	}
	if err != nil {
		return nil, fmt.Errorf("list links: %w", err)
	}
	var names []string
	for _, l := range all {
		if l.Type() == "veth" && strings.HasPrefix(l.Attrs().Alias, link.PodAliasPrefix) {
			names = append(names, l.Attrs().Name)
		}
	}
	return names, nil
}

// switchWait bounds the wait for the switch's database.
const switchWait = 10 * time.Second

// rows removes the bridge and everything on it from the switch's database, and with it its flows and the host's interface.
func (o Options) rows(ctx context.Context) error {
	socket := filepath.Join(o.OVSRunDir, "db.sock")
	if _, err := os.Lstat(o.at(socket)); errors.Is(err, fs.ErrNotExist) {
		return o.noSwitch(socket)
	}
	opening, cancel := context.WithTimeout(ctx, switchWait)
	defer cancel()
	engine, err := ovsdb.Open(opening, ovsdb.Config{Endpoint: "unix:" + o.at(socket), Bridges: []string{host.Bridge}})
	if err != nil {
		return fmt.Errorf("start Open vSwitch, and run this again: its database does not answer at %s: %w", socket, err)
	}
	defer engine.Close()
	have, err := engine.Read(ctx)
	if err != nil || len(have) == 0 {
		return err
	}
	if err := engine.Commit(ctx, reconcile.Change[ovsdb.Key, ovsdb.Row]{Delete: have}); err != nil {
		return err
	}
	tell(o, have)
	return nil
}

// noSwitch is well where there is no trace of the bridge: the node never had a switch, or has none any more.
func (o Options) noSwitch(socket string) error {
	for _, name := range []string{host.Bridge, host.Tun} {
		if _, err := netlink.LinkByName(name); err == nil {
			return fmt.Errorf("start Open vSwitch, and run this again: %s is there, and no database at %s", name, socket)
		}
	}
	return nil
}

// rules removes Weft's tables, the administrator's chain in them included, and its rules in others' chains.
func (o Options) rules(ctx context.Context) error {
	engine, err := nft.NewEngine(nft.Options{Tables: host.Tables(), Foreign: true})
	if err != nil {
		return err
	}
	defer engine.Close()
	have, err := engine.Read(ctx)
	if err != nil || len(have) == 0 {
		return err
	}
	if err := engine.Commit(ctx, reconcile.Change[nft.Key, nft.Item]{Delete: have}); err != nil {
		return err
	}
	tables := map[nft.Key]nft.Item{}
	for key, item := range have {
		if _, foreign := item.(*nft.ForeignJump); foreign || key.Kind == nft.KindTable {
			tables[key] = item
		}
	}
	tell(o, tables)
	return nil
}

// addresses removes egress addresses from the node's own interface.
func (o Options) addresses(ctx context.Context) error {
	engine, err := link.NewEngine(link.Options{})
	if err != nil {
		return err
	}
	defer engine.Close()
	have, err := engine.Read(ctx)
	if err != nil {
		return err
	}
	maps.DeleteFunc(have, func(key link.Key, _ link.Item) bool { return key.Kind != link.KindAddress })
	if len(have) == 0 {
		return nil
	}
	if err := engine.Commit(ctx, reconcile.Change[link.Key, link.Item]{Delete: have}); err != nil {
		return err
	}
	tell(o, have)
	return nil
}

func tell[K interface {
	comparable
	fmt.Stringer
}, V any](o Options, gone map[K]V) {
	words := make([]string, 0, len(gone))
	for key := range gone {
		words = append(words, key.String())
	}
	slices.Sort(words)
	for _, word := range words {
		o.Tell(word)
	}
}
