// Package stage has what the rows of the benchmark run on: a lab with Weft, nodes of the same kind with a peer's network, separate
// switches, and measurements of processor time and of the removal of links.
//
// Close removes all of it; the next Open removes what a killed run left.
package stage

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"weft.dev/weft/lab"
	"weft.dev/weft/lab/ground"
	"weft.dev/weft/lab/machine"
	"weft.dev/weft/lab/plan"
	"weft.dev/weft/lab/process"
	"weft.dev/weft/lab/report"
)

// Directories that are not the lab's.
const (
	root  = "/run/weft-bench"     // sockets, pid files, logs, the places' own /run: short, as paths of unix sockets have to be
	state = "/var/lib/weft-bench" // persistent files of a place: it sees this directory, and has another /run
)

// Kinds are the labs that Lab starts for single rows. The letter ends the lab's name.
const (
	// KindPolicies is the lab of policies.
	KindPolicies = "p"
	// KindFailover is the lab in which nodes die.
	KindFailover = "f"
	// KindVPC is the lab of VPCs.
	KindVPC = "v"
	// KindFewVPCs is the lab that one with many VPCs is compared with.
	KindFewVPCs = "w"
	// KindNeutron is the lab with an OpenStack.
	KindNeutron = "n"
)

// Config is the configuration of a stage.
type Config struct {
	// Name is the lab's.
	Name string
	// Bin is the directory of weft, weft-cni and weft-lab.
	Bin string
	// Say is called with progress messages of slow steps.
	Say func(format string, args ...any)
}

// Stage is the stage of one run.
type Stage struct {
	config  Config
	lock    *os.File
	group   *process.Group
	cluster *Cluster
}

// Open takes the machine's only stage and removes what a killed run left.
func Open(ctx context.Context, config Config) (*Stage, error) {
	if os.Geteuid() != 0 {
		return nil, errors.New("the benchmark makes namespaces, links and switches: run it as root")
	}
	if err := os.MkdirAll(root, 0o755); err != nil {
		return nil, fmt.Errorf("make %s: %w", root, err)
	}
	lock, err := os.Open(root)
	if err != nil {
		return nil, fmt.Errorf("open %s: %w", root, err)
	}
	if err := unix.Flock(int(lock.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
		_ = lock.Close()
		return nil, fmt.Errorf("another benchmark runs on this machine (it has locked %s): wait for its end: %w", root, err)
	}
	s := &Stage{config: config, lock: lock, group: process.NewGroup(filepath.Join(root, "log"), filepath.Join(root, "pid"))}
	if err := s.reclaim(ctx); err != nil {
		return nil, errors.Join(err, lock.Close())
	}
	return s, nil
}

// reclaim ends what a killed run left: its programs by their pid files, its lab by its name.
func (s *Stage) reclaim(ctx context.Context) error {
	var errs []error
	walk := func(path string, _ os.DirEntry, err error) error {
		if err == nil && strings.HasSuffix(path, ".pid") {
			errs = append(errs, machine.Kill(path, unix.SIGKILL))
		}
		return nil
	}
	_ = filepath.WalkDir(filepath.Join(root, "pid"), walk)
	errs = append(errs, lab.Down(ctx, s.config.Name, nil), s.strikeLabs(ctx), clearRoot())
	return errors.Join(errs...)
}

func clearRoot() error {
	names, err := filepath.Glob(filepath.Join(ground.NetnsDir, spaceName("*")))
	if err != nil {
		return fmt.Errorf("list the names of namespaces: %w", err)
	}
	within, err := filepath.Glob(filepath.Join(root, "*"))
	if err != nil {
		return fmt.Errorf("list %s: %w", root, err)
	}
	var errs []error
	for _, path := range append(append(names, within...), state) {
		errs = append(errs, os.RemoveAll(path))
	}
	return errors.Join(errs...)
}

// Close ends and removes everything.
func (s *Stage) Close() error {
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
	defer cancel()
	err := errors.Join(s.StrikeCluster(ctx), s.strikeLabs(ctx), clearRoot())
	if err == nil {
		err = os.Remove(root)
	}
	return errors.Join(err, s.lock.Close())
}

// Bin is the directory of the programs.
func (s *Stage) Bin() string { return s.config.Bin }

// Say reports the progress of a slow step.
func (s *Stage) Say(format string, args ...any) { s.config.Say(format, args...) }

const grace = 3 * time.Second

// Cluster is the lab of the rows about nodes: two nodes with Weft, and as many of the same kind with the peer's network.
type Cluster struct {
	*lab.Cluster
	// Ours and Peers are the compared nodes: Ours[i] with Peers[i].
	Ours, Peers []Node

	running [2][]Pod // on the first node of each side: those that Populate keeps
}

// clusterNodes is the number of nodes of each side.
const clusterNodes = 2

// hostSubnetLength gives a node room for 2,046 addresses: the curve goes to 1,000.
const hostSubnetLength = 11

// Cluster returns the lab, and starts it if needed.
func (s *Stage) Cluster(ctx context.Context) (*Cluster, error) {
	if s.cluster != nil {
		return s.cluster, nil
	}
	s.Say("bringing the lab %s up (the first time on a machine, Kubernetes itself is built, which takes minutes)", s.config.Name)
	up, err := lab.Up(ctx, lab.Config{
		Name: s.config.Name, Nodes: clusterNodes, Runtime: plan.RuntimeCNI, WeftBin: s.config.Bin, HostSubnetLength: hostSubnetLength,
	}, func(e report.Event) {
		if e.State == report.Fail {
			s.Say("the lab does not come up: %s: %s", e.Step, e.Text)
		}
	})
	if err != nil {
		return nil, err
	}
	c := &Cluster{Cluster: up}
	if err := s.furnish(ctx, c); err != nil {
		return nil, err
	}
	s.cluster = c
	return c, nil
}

// Lab starts a lab for single rows, without a peer. The stage sets the configuration's name and programs.
func (s *Stage) Lab(ctx context.Context, kind string, config lab.Config) (*lab.Cluster, error) {
	config.Name, config.Runtime, config.WeftBin = s.config.Name+kind, plan.RuntimeCNI, s.config.Bin
	s.Say("bringing the lab %s up", config.Name)
	return lab.Up(ctx, config, func(e report.Event) {
		if e.State == report.Fail {
			s.Say("the lab does not come up: %s: %s", e.Step, e.Text)
		}
	})
}

// StrikeLab removes a lab of Lab.
func (s *Stage) StrikeLab(ctx context.Context, kind string) error {
	return lab.Down(ctx, s.config.Name+kind, nil)
}

func (s *Stage) strikeLabs(ctx context.Context) error {
	return errors.Join(s.StrikeLab(ctx, KindPolicies), s.StrikeLab(ctx, KindFailover), s.StrikeLab(ctx, KindFlannel), s.StrikeLab(ctx, KindVPC),
		s.StrikeLab(ctx, KindFewVPCs), s.StrikeLab(ctx, KindNodes), s.StrikeLab(ctx, KindNeutron))
}

// furnish opens the lab's nodes, and makes the peer's.
func (s *Stage) furnish(ctx context.Context, c *Cluster) error {
	for i, n := range c.Nodes() {
		c.Ours = append(c.Ours, Node{Node: n, cpu: func(ctx context.Context) (Meter, error) { return labMeter(ctx, c.Cluster, n.Name) }})
		peer, err := s.peer(ctx, fmt.Sprintf("p%d", i+1))
		if err != nil {
			return err
		}
		c.Peers = append(c.Peers, peer)
	}
	return nil
}

// StrikeCluster removes the lab and the peer's nodes.
func (s *Stage) StrikeCluster(ctx context.Context) error {
	s.cluster = nil
	s.group.Stop(grace, func(name string) bool { return strings.HasSuffix(name, "/pods") })
	s.group.Stop(grace, func(name string) bool { return strings.HasSuffix(name, "/ovs-vswitchd") })
	s.group.Stop(grace, func(string) bool { return true })
	return lab.Down(ctx, s.config.Name, nil)
}

// self is the program that holds namespaces and attaches pods.
func (s *Stage) self() string { return filepath.Join(s.config.Bin, "weft-lab") }

// spaceName is the name under /run/netns.
func spaceName(place string) string { return "weft-bench-" + place }

// Space makes a namespace for a row, which exists until the next row.
func (s *Stage) Space(ctx context.Context, name string) (ground.Space, error) {
	_, space, err := s.space(ctx, name, nil)
	return space, err
}

// space makes a namespace of the same kind as a lab's node.
func (s *Stage) space(ctx context.Context, name string, binds []plan.Bind) (plan.Node, ground.Space, error) {
	place := plan.Node{Name: name, Dir: filepath.Join(state, name), RunDir: filepath.Join(root, name, "run")}
	for i := range binds {
		binds[i].Source = filepath.Join(place.Dir, "root", binds[i].Target)
	}
	for _, dir := range []string{place.Dir, place.RunDir} {
		if err := os.MkdirAll(dir, 0o755); err != nil {
			return place, ground.Space{}, fmt.Errorf("make %s: %w", dir, err)
		}
	}
	space, err := ground.NewSpace(ctx, s.group, s.self(), spaceName(name),
		ground.Hold{RunDir: place.RunDir, Binds: binds, Forward: true})
	return place, space, err
}
