// Package supervisor is the one permanent process of a lab: it starts the lab, runs its programs and restarts those that end, answers on
// a unix socket, and ends everything in order.
package supervisor

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"os/signal"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sync/errgroup"

	"weft.dev/weft/lab/machine"
	"weft.dev/weft/lab/plan"
	"weft.dev/weft/lab/process"
	"weft.dev/weft/lab/report"
	"weft.dev/weft/lab/stack/openstack"
)

// upLimit is the time limit of the whole start: a first build of Kubernetes takes some 10 minutes on two idle cores.
const upLimit = 45 * time.Minute

// stepLimit is the time limit of a step that normally takes seconds: in a virtual machine with an emulated processor, on a machine with
// other work, it takes minutes.
const stepLimit = 15 * time.Minute

// basis is what a lab is run with, from its start to its end.
type basis struct {
	lab      plan.Lab
	entry    machine.Entry
	self     string // the running program
	datapath plan.Datapath
	group    *process.Group
	spaces   *spaces
	journal  *journal
	log      *slog.Logger
}

// Supervisor is one running lab.
type Supervisor struct {
	basis

	mu     sync.Mutex
	phase  report.Phase
	failed error

	down     chan struct{} // closed when the lab must end
	downOnce sync.Once
	ended    chan struct{} // closed when all programs have ended
}

// PidFile returns the path of the supervisor's own PID file.
func PidFile(l plan.Lab) string { return l.RunPath("supervisor.pid") }

// Run is the body of `weft-lab supervise`: it returns when the lab is down.
func Run(name string) error {
	ledger, err := machine.ReadLedger()
	if err != nil {
		return err
	}
	entry, known := ledger.Labs[name]
	if !known {
		return fmt.Errorf("lab %s is not in the ledger: start it with `weft-lab up`", name)
	}
	self, err := os.Executable()
	if err != nil {
		return fmt.Errorf("find the running program: %w", err)
	}
	lab := plan.New(entry.Config)
	s := &Supervisor{
		basis: basis{
			lab: lab, entry: entry, self: self, datapath: chooseDatapath(entry.Config.Datapath),
			group: process.NewGroup(lab.Path("log"), lab.RunPath("pid")), spaces: newSpaces(), journal: newJournal(),
			log: slog.New(slog.NewTextHandler(os.Stderr, nil)),
		},
		phase: report.Starting, down: make(chan struct{}), ended: make(chan struct{}),
	}
	return s.run()
}

func (s *Supervisor) run() error {
	if err := machine.JoinCgroup(s.lab.Cgroup); err != nil {
		return err
	}
	if err := machine.WritePid(PidFile(s.lab), os.Getpid()); err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	if err := s.group.Adopt(ctx); err != nil {
		return err
	}
	sig := make(chan os.Signal, 1)
	signal.Notify(sig, syscall.SIGTERM, syscall.SIGINT)
	signal.Ignore(syscall.SIGHUP)
	stopServing, err := s.serve(ctx)
	if err != nil {
		return err
	}
	defer stopServing()

	raised := make(chan struct{})
	go func() {
		defer close(raised)
		s.raise(ctx)
	}()
	select {
	case <-sig:
	case <-s.down:
	}
	s.setPhase(report.Stopping, nil)
	cancel()
	<-raised
	s.end()
	close(s.ended)
	return nil
}

// raise starts the lab and sets its phase.
func (s *Supervisor) raise(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, upLimit)
	defer cancel()
	began := time.Now()
	err := (&start{basis: s.basis, down: s.down}).run(ctx)
	switch {
	case err == nil:
		s.setPhase(report.Up, nil)
		s.journal.add(report.Event{Step: "lab " + s.lab.Name, State: report.Done, Took: time.Since(began)})
	case errors.Is(err, context.Canceled):
		s.journal.add(report.Event{Step: "lab " + s.lab.Name, State: report.Fail, Text: "taken down while it was coming up"})
	default:
		s.setPhase(report.Failed, err)
		s.journal.add(report.Event{Step: "lab " + s.lab.Name, State: report.Fail, Took: time.Since(began), Text: err.Error()})
	}
	s.journal.finish()
}

func (s *Supervisor) setPhase(p report.Phase, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.phase != report.Stopping {
		s.phase, s.failed = p, err
	}
}

// together runs parts of the start concurrently; the first error cancels the others.
func together(ctx context.Context, parts ...func(context.Context) error) error {
	g, ctx := errgroup.WithContext(ctx)
	for _, p := range parts {
		g.Go(func() error { return p(ctx) })
	}
	return g.Wait()
}

// end stops the programs: users of the network before the network, clients before servers, holders last.
func (s *Supervisor) end() {
	const grace = 3 * time.Second
	is := func(names ...string) func(string) bool {
		return func(name string) bool { return slices.Contains(names, filepath.Base(name)) }
	}
	s.group.Stop(grace, is("kubelet", "kube-proxy", "kube-scheduler", "kube-controller-manager"))
	s.group.Stop(grace, is("weft-agent", "weft-controller", "pods", "reporter"))
	s.endPods()
	s.group.Stop(grace, is("containerd"))
	s.group.Stop(grace, is("ovn-controller", "ovn-northd"))
	s.group.Stop(0, is(openstack.Agents()...)) // they keep nothing, and have processes below them that only SIGKILL ends as well
	s.group.Stop(grace, func(name string) bool { return strings.HasPrefix(name, "openstack/") })
	s.group.Stop(grace, is("ovs-vswitchd"))
	s.group.Stop(grace, is("ovsdb-server"))
	s.group.Stop(100*time.Millisecond, is("kube-apiserver")) // its graceful end takes up to a minute; no client is left
	s.group.Stop(grace, is("etcd"))
	s.group.Stop(grace, func(name string) bool { return strings.HasPrefix(name, "hold/") })
	s.group.Stop(grace, func(string) bool { return true })
}

// endPods kills the containers, because their runtime has ended.
func (s *Supervisor) endPods() {
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	for _, n := range s.lab.AllNodes() {
		if err := machine.KillCgroup(ctx, n.Cgroup, ""); err != nil {
			s.log.Warn("a pod's processes do not end", "node", n.Name, "err", err)
		}
	}
}
