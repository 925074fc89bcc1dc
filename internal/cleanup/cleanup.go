// Package cleanup removes Weft from a node: everything that the agent has programmed and written, once no agent runs there. It finds these
// things by the engines' own marks, and needs neither the API server nor records.
package cleanup

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"strings"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"weft.dev/weft/internal/cni/portspace"
	"weft.dev/weft/internal/cni/rootdir"
	"weft.dev/weft/internal/link"
	"weft.dev/weft/internal/link/podveth"
)

// Options are the paths on the node, and how to clean it. Only Root has a default.
type Options struct {
	// Root is the folder where the node's file system is mounted; it is put before every path. Default "/".
	Root string
	// OVSRunDir, StateDir, RunDir and CNIConfDir are the agent's folders.
	OVSRunDir, StateDir, RunDir, CNIConfDir string
	// CNIConf is the name of the file in CNIConfDir.
	CNIConf string
	// Plugin is the CNI plugin's executable.
	Plugin string
	// Socket is the agent's socket for CNI requests. If it accepts a connection, an agent runs.
	Socket string
	// Records is the folder of the attachment records. A running agent holds its lock.
	Records string
	// Ports is the network namespace of the pre-plugged ports; empty: there is none.
	Ports string
	// Report is called with each thing that was removed.
	Report func(what string)
	// GiveBack is the name of a network of another program, whose pods Weft serves: the node is given back to that program with its pods.
	// Empty: all of Weft is removed.
	GiveBack string
	// Parts are the networks' parts.
	Parts []Part
}

// Part is one network's part of the cleanup. What all networks share is removed without it: the runtime's configuration, pods' links,
// folders.
type Part struct {
	// Name is the network's name.
	Name string
	// Run removes what the network has on the node. It is called while no agent runs, for all networks, whether or not the node has them;
	// nothing to remove is no error. It finds its state by marks, without records and without the API server, and reports what it removes by
	// Options.Report.
	Run func(ctx context.Context, o Options) error
	// GiveBack removes what only Weft uses, so that the program that Weft replaced serves the network and its pods again. Nil: there is no
	// such program.
	GiveBack func(ctx context.Context, o Options) error
}

// giveBack gives the node back, and removes the records. From then on the network's plugin works without the agent.
func (o Options) giveBack(ctx context.Context) error {
	var names []string
	for _, part := range o.Parts {
		switch {
		case part.GiveBack == nil:
			continue
		case part.Name != o.GiveBack:
			names = append(names, part.Name)
			continue
		}
		if err := o.others(); err != nil {
			return err
		}
		if err := part.GiveBack(ctx, o); err != nil {
			return fmt.Errorf("network %s: %w", part.Name, err)
		}
		return errors.Join(o.Remove(o.StateDir), o.Remove(o.RunDir))
	}
	return fmt.Errorf("network %q cannot be given back: it is one of %s", o.GiveBack, strings.Join(names, ", "))
}

// others returns an error if pods of other networks are on the node, because they would lose their records.
func (o Options) others() error {
	found, err := filepath.Glob(filepath.Join(o.At(o.Records), "*.json"))
	if err != nil {
		return fmt.Errorf("list the attachment records: %w", err)
	}
	for _, path := range found {
		text, err := os.ReadFile(path)
		if err != nil {
			return fmt.Errorf("read the attachment records: %w", err)
		}
		var record struct {
			Network      string `json:"network"`
			PodNamespace string `json:"podNamespace"`
			PodName      string `json:"podName"`
		}
		if err := json.Unmarshal(text, &record); err != nil {
			return fmt.Errorf("read attachment record %s: %w", path, err)
		}
		if kind, _, _ := strings.Cut(record.Network, "."); kind != o.GiveBack {
			return fmt.Errorf("pod %s/%s is on network %s: drain the node before it is given back to %s",
				record.PodNamespace, record.PodName, record.Network, o.GiveBack)
		}
	}
	return nil
}

// parts runs the networks' parts.
func (o Options) parts(ctx context.Context) error {
	var errs []error
	for _, part := range o.Parts {
		if err := part.Run(ctx, o); err != nil {
			errs = append(errs, fmt.Errorf("network %s: %w", part.Name, err))
		}
	}
	return errors.Join(errs...)
}

// ErrAgentRuns is returned by Run while an agent runs on the node.
var ErrAgentRuns = errors.New("an agent runs on this node, and would restore everything: delete the DaemonSet weft-agent first, or stop the agent")

// Run removes Weft from the node. It tries every step, even if others fail, and may be run again.
func Run(ctx context.Context, o Options) error {
	if o.Root == "" {
		o.Root = "/"
	}
	if o.Report == nil {
		o.Report = func(string) {}
	}
	if info, err := os.Stat(o.Root); err != nil || !info.IsDir() {
		return fmt.Errorf("root %s: not a directory, nothing was examined: give the folder where the node's file system is mounted", o.Root)
	}
	if agentRuns(ctx, o.At(o.Socket)) {
		return ErrAgentRuns
	}
	lock, err := rootdir.Lock(o.At(o.Records))
	switch {
	case err == nil:
		defer lock.Close() //nolint:errcheck // nothing was written
	case errors.Is(err, rootdir.ErrInUse):
		return ErrAgentRuns
	case !errors.Is(err, fs.ErrNotExist):
		return fmt.Errorf("finding out whether an agent runs: %w", err)
	}
	if o.GiveBack != "" {
		return o.giveBack(ctx)
	}
	return errors.Join(
		o.Remove(filepath.Join(o.CNIConfDir, o.CNIConf)), // first, so that no new pod arrives
		o.pods(ctx),
		o.parts(ctx),
		o.Remove(o.Plugin),
		o.leftovers(filepath.Dir(o.Plugin)), o.leftovers(o.CNIConfDir),
		o.ports(),
		o.Remove(o.StateDir), o.Remove(o.RunDir))
}

// At returns a path of the node under Root.
func (o Options) At(path string) string { return filepath.Join(o.Root, path) }

func agentRuns(ctx context.Context, socket string) bool {
	conn, err := new(net.Dialer).DialContext(ctx, "unix", socket)
	if err != nil {
		return false
	}
	_ = conn.Close() // only a test whether an agent listens
	return true
}

// Remove removes a file or a folder of the node and reports it. A path that does not exist is no error.
func (o Options) Remove(path string) error {
	if _, err := os.Lstat(o.At(path)); errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err := os.RemoveAll(o.At(path)); err != nil && !o.isEmptyMount(path, err) {
		return fmt.Errorf("remove %s: %w", path, err)
	}
	o.Report("file " + path)
	return nil
}

// isEmptyMount reports whether only an empty mount point is left after a failed removal; the mount belongs to the administrator.
func (o Options) isEmptyMount(path string, err error) bool {
	var at *fs.PathError
	if !errors.As(err, &at) || !errors.Is(err, unix.EBUSY) || filepath.Clean(at.Path) != o.At(path) {
		return false
	}
	left, err := os.ReadDir(o.At(path))
	return err == nil && len(left) == 0
}

// ports removes the network namespace of pre-plugged ports, which is a mount.
func (o Options) ports() error {
	if o.Ports == "" {
		return nil
	}
	if _, err := os.Lstat(o.At(o.Ports)); errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err := portspace.Remove(o.At(o.Ports)); err != nil {
		return err
	}
	o.Report("namespace " + o.Ports)
	return nil
}

// leftovers removes temporary files of an agent that was killed while it wrote files.
func (o Options) leftovers(dir string) error {
	found, err := filepath.Glob(filepath.Join(o.At(dir), ".weft-*"))
	var errs []error
	for _, path := range found {
		errs = append(errs, o.Remove(filepath.Join(dir, filepath.Base(path))))
	}
	return errors.Join(append(errs, err)...)
}

// pods removes the pods' links. Pods that still run lose their network, which they would lose anyway.
func (o Options) pods(ctx context.Context) error {
	names, err := podLinks()
	if err != nil || len(names) == 0 {
		return err
	}
	links, err := podveth.New()
	if err != nil {
		return err
	}
	defer links.Close()
	if err := links.Delete(ctx, names...); err != nil {
		return err
	}
	for _, name := range names {
		o.Report("link " + name)
	}
	return nil
}

// dumpAttempts limits how often the kernel's links are listed again when the list changes meanwhile.
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
