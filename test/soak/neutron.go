package main

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"weft.dev/weft/internal/neutron/host"
	"weft.dev/weft/lab"
	"weft.dev/weft/lab/plan"
	"weft.dev/weft/test/probe"
	"weft.dev/weft/test/soak/losses"
)

const (
	// neutronRate is the number of datagrams per second that each pair of pods on Neutron networks exchanges.
	neutronRate = 1000
	// neutronCrowd is the number of pods that a round adds and deletes.
	neutronCrowd = 100
	// neutronCalm is how long the traffic continues after a program is back.
	neutronCalm = 3 * time.Second
)

// neutron kills every program of pods on OpenStack's networks under traffic, and adds and deletes pods, in a lab with its own OpenStack.
func (s *soak) neutron(ctx context.Context) error {
	name := s.opts.lab + "n"
	bin, err := filepath.Abs(s.opts.bin)
	if err != nil {
		return err
	}
	config := lab.Config{Name: name, Nodes: 2, Runtime: plan.RuntimeCNI, OpenStack: plan.OpenStackOVN, WeftBin: bin}
	return losses.InLab(ctx, config, func(cluster *lab.Cluster, took time.Duration) (err error) {
		t, err := newTenants(ctx, cluster)
		if err != nil {
			return err
		}
		defer func() { err = errors.Join(err, t.close()) }()
		s.say("lab with an OpenStack and two tenants up in %s", took.Round(time.Second))
		if err := s.neutronKills(ctx, t); err != nil {
			return err
		}
		return s.neutronCrowds(ctx, t)
	})
}

// neutronKills kills one program after the other, while pods exchange packets and one pod is added and deleted.
func (s *soak) neutronKills(ctx context.Context, t *tenants) error {
	control := row{Part: "neutron", Name: "control: no program is killed", Spared: string(all), Count: 1}
	calm, err := t.load(ctx, func() error { return t.fresh(ctx, "control") })
	if err != nil {
		return err
	}
	rule := losses.Rule{}
	loss := rule.Judge(calm)
	control.Sent, control.Others = loss.Sent, loss.Lost
	s.add(control)
	programs, err := t.cluster.Programs(ctx)
	if err != nil {
		return err
	}
	for _, p := range programs {
		spared := sparedBy(p.Name)
		if spared == untested || !s.opts.faults.MatchString(p.Name) {
			continue
		}
		r := row{Part: "neutron", Name: p.Name + " killed", Count: 1, Spared: string(spared)}
		r.wrong(s.neutronKill(ctx, t, &r, p.Name))
		s.compare(&r, calm)
		s.add(r)
		if ctx.Err() != nil {
			return ctx.Err()
		}
	}
	return nil
}

// sparedBy returns the pairs that must lose no packet when a program ends. The end of the switch or of ovn-controller may cost packets of
// all pairs. Programs without a case here are not killed.
func sparedBy(program string) scope {
	switch program {
	case "n1/ovs-vswitchd", "n1/ovn-controller":
		return none
	case "weft-controller", "n1/weft-agent", "n1/ovsdb-server":
		return all
	}
	if strings.HasPrefix(program, "openstack/") {
		return all
	}
	return untested
}

// compare adds the pairs' losses to a row, and an error for losses beyond those of the run without a failure.
func (s *soak) compare(r *row, calm losses.Tallies) {
	rule := losses.Rule{Spares: scope(r.Spared).covers, Calm: calm}
	loss := rule.Judge(r.pairs)
	r.Sent, r.Lost, r.Others = loss.Sent, loss.Lost, loss.Others
	if s.opts.loss {
		r.wrong(loss.Err)
	} else if r.Spared == string(all) {
		r.Verdict = unjudged
	}
}

// neutronKill kills one program, and waits until a new pod is served and OpenStack, switches and objects have their former state.
func (s *soak) neutronKill(ctx context.Context, t *tenants, r *row, program string) error {
	began := time.Now()
	defer func() { r.Took = time.Since(began) }()
	held, err := t.inventory(ctx)
	if err != nil {
		return err
	}
	r.pairs, err = t.load(ctx, func() error {
		begun := time.Now()
		err := probe.Kill(ctx, t.cluster, program, syscall.SIGKILL)
		if err == nil {
			err = t.fresh(ctx, "after")
		}
		r.Back = time.Since(begun)
		return err
	})
	if err != nil {
		return err
	}
	_, err = probe.Await(ctx, probe.Patience, "the same objects in OpenStack as before", func(ctx context.Context) error {
		now, err := t.inventory(ctx)
		if err != nil {
			return err
		}
		if !slices.Equal(now, held) {
			return fmt.Errorf("added: %v; missing: %v", held.More(now), now.More(held))
		}
		return t.matched(ctx)
	})
	if err != nil {
		r.Leaks++
	}
	return errors.Join(err, t.reach(ctx))
}

// neutronCrowds adds and deletes pods, and counts what remains of them.
func (s *soak) neutronCrowds(ctx context.Context, t *tenants) error {
	before, err := t.census(ctx)
	if err != nil {
		return err
	}
	crowd := min(neutronCrowd, s.opts.crowd)
	for i := range s.opts.rounds {
		r := row{Part: "neutron", Name: fmt.Sprintf("round %d: %d pods added and deleted", i+1, crowd)}
		began := time.Now()
		r.wrong(t.crowd(ctx, &r, crowd))
		gone := time.Now()
		if err := losses.Census(t.census).NothingLeft(ctx, before, t.matched); err != nil {
			r.Leaks++
			r.wrong(err)
		}
		r.Back, r.Took = time.Since(gone), time.Since(began)
		s.add(r)
		if ctx.Err() != nil {
			return ctx.Err()
		}
	}
	return nil
}

// crowd adds that many pods on both nodes, half of each tenant, and deletes them.
func (t *tenants) crowd(ctx context.Context, r *row, count int) (err error) {
	crowd := losses.Crowd{
		Pods: count, Together: atATime,
		Add: func(ctx context.Context, i int) (*lab.Pod, error) {
			return t.start(ctx, lab.PodSpec{Namespace: []string{"blue", "red"}[i/2%2], Node: t.cluster.Node(1 + i%2).Name, Name: "crowd-" + strconv.Itoa(i)})
		},
		Delete:  t.cluster.DelPod,
		Network: func(p *lab.Pod) string { return p.Namespace },
	}
	r.Count, err = crowd.Run(ctx)
	return err
}

// hostQueue is how many packets the queue of the host's port holds: those of 2 s.
const hostQueue = 2 * neutronRate

// load sends on all pairs while act runs, and for some time after it.
func (t *tenants) load(ctx context.Context, act func() error) (losses.Tallies, error) {
	// The userspace datapath forwards nothing while ovs-vswitchd is not connected to its database. Packets to sockets wait in buffers of 8 MiB;
	// a tap device has room for 500 packets, and a restarted ovs-vswitchd creates it again.
	if t.cluster.Datapath == plan.DatapathNetdev {
		lengthen := []string{"ip", "link", "set", host.Device, "txqueuelen", strconv.Itoa(hostQueue)}
		if _, err := probe.Run(ctx, t.cluster.Node(1).Enter(lengthen...)); err != nil {
			return nil, err
		}
	}
	tallies, _, err := losses.Count(ctx, t.pairs, neutronRate, neutronCalm, act) // the caller judges the losses
	return tallies, err
}
