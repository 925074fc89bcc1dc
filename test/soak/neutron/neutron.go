// Package neutron is the soak's part of pods on OpenStack's networks: every program that they need is killed under counted packets, and
// crowds of pods come and go, in a lab with an OpenStack and two tenants.
package neutron

import (
	"context"
	"errors"
	"fmt"
	"regexp"
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
	"weft.dev/weft/test/soak/report"
)

const (
	// rate is the number of datagrams per second that each pair of pods on Neutron networks exchanges.
	rate = 1000
	// crowdSize is the number of pods that a round adds and deletes.
	crowdSize = 100
	// calmTime is how long the traffic continues after a program is back.
	calmTime = 3 * time.Second
)

// Options of a run.
type Options struct {
	// Lab is the name of the lab, Bin the folder with Weft's programs.
	Lab, Bin string
	// Faults selects the programs that are killed, by their names.
	Faults *regexp.Regexp
	// Rounds is the number of rounds of pods, Crowd the number of pods of a round, at most.
	Rounds, Crowd int
	// Loss says that lost packets are judged.
	Loss bool
	// Say prints a line of progress.
	Say func(format string, args ...any)
}

// part is a run of the part.
type part struct {
	*tenants
	opts Options
	add  func(report.Row)
}

// Run kills every program of pods on OpenStack's networks under traffic, and adds and deletes pods, in a lab with its own OpenStack. An error
// is the reason why it could not continue.
func Run(ctx context.Context, opts Options, add func(report.Row)) error {
	config := lab.Config{Name: opts.Lab, Nodes: 2, Runtime: plan.RuntimeCNI, OpenStack: plan.OpenStackOVN, WeftBin: opts.Bin}
	return losses.InLab(ctx, config, func(cluster *lab.Cluster, took time.Duration) (err error) {
		t, err := newTenants(ctx, cluster)
		if err != nil {
			return err
		}
		defer func() { err = errors.Join(err, t.close()) }()
		opts.Say("lab with an OpenStack and two tenants up in %s", took.Round(time.Second))
		p := &part{tenants: t, opts: opts, add: add}
		if err := p.kills(ctx); err != nil {
			return err
		}
		return p.crowds(ctx)
	})
}

// kills kills one program after the other, while pods exchange packets and one pod is added and deleted.
func (p *part) kills(ctx context.Context) error {
	control := report.Row{Part: "neutron", Name: "control: no program is killed", Spared: string(losses.All), Count: 1}
	calm, err := p.load(ctx, func() error { return p.fresh(ctx, "control") })
	if err != nil {
		return err
	}
	rule := losses.Rule{}
	loss := rule.Judge(calm)
	control.Sent, control.Others = loss.Sent, loss.Lost
	p.add(control)
	programs, err := p.cluster.Programs(ctx)
	if err != nil {
		return err
	}
	for _, program := range programs {
		spared := sparedBy(program.Name)
		if spared == losses.Untested || !p.opts.Faults.MatchString(program.Name) {
			continue
		}
		r := report.Row{Part: "neutron", Name: program.Name + " killed", Count: 1, Spared: string(spared)}
		tallies, err := p.kill(ctx, &r, program.Name)
		r.Fail(err)
		p.compare(&r, tallies, calm)
		p.add(r)
		if ctx.Err() != nil {
			return ctx.Err()
		}
	}
	return nil
}

// sparedBy returns the pairs that must lose no packet when a program ends. The end of the switch or of ovn-controller may cost packets of
// all pairs. Programs without a case here are not killed.
func sparedBy(program string) losses.Scope {
	switch program {
	case "n1/ovs-vswitchd", "n1/ovn-controller":
		return losses.None
	case "weft-controller", "n1/weft-agent", "n1/ovsdb-server":
		return losses.All
	}
	if strings.HasPrefix(program, "openstack/") {
		return losses.All
	}
	return losses.Untested
}

// compare adds the pairs' losses to a row, and an error for losses beyond those of the run without a failure.
func (p *part) compare(r *report.Row, tallies, calm losses.Tallies) {
	rule := losses.Rule{Spares: losses.Scope(r.Spared).Covers, Calm: calm}
	loss := rule.Judge(tallies)
	r.Sent, r.Lost, r.Others = loss.Sent, loss.Lost, loss.Others
	if p.opts.Loss {
		r.Fail(loss.Err)
	} else if r.Spared == string(losses.All) {
		r.Verdict = report.Unjudged
	}
}

// kill kills one program, and waits until a new pod is served and OpenStack, switches and objects have their former state. It returns the
// counts of each pair's datagrams.
func (p *part) kill(ctx context.Context, r *report.Row, program string) (tallies losses.Tallies, err error) {
	began := time.Now()
	defer func() { r.Took = time.Since(began) }()
	held, err := p.inventory(ctx)
	if err != nil {
		return nil, err
	}
	tallies, err = p.load(ctx, func() error {
		begun := time.Now()
		err := probe.Kill(ctx, p.cluster, program, syscall.SIGKILL)
		if err == nil {
			err = p.fresh(ctx, "after")
		}
		r.Back = time.Since(begun)
		return err
	})
	if err != nil {
		return tallies, err
	}
	_, err = probe.Await(ctx, probe.Patience, "the same objects in OpenStack as before", func(ctx context.Context) error {
		now, err := p.inventory(ctx)
		if err != nil {
			return err
		}
		if !slices.Equal(now, held) {
			return fmt.Errorf("added: %v; missing: %v", held.More(now), now.More(held))
		}
		return p.matched(ctx)
	})
	if err != nil {
		r.Leaks++
	}
	return tallies, errors.Join(err, p.reach(ctx))
}

// crowds adds and deletes pods, and counts what remains of them.
func (p *part) crowds(ctx context.Context) error {
	before, err := p.census(ctx)
	if err != nil {
		return err
	}
	crowd := min(crowdSize, p.opts.Crowd)
	for i := range p.opts.Rounds {
		r := report.Row{Part: "neutron", Name: fmt.Sprintf("round %d: %d pods added and deleted", i+1, crowd)}
		began := time.Now()
		r.Fail(p.crowd(ctx, &r, crowd))
		gone := time.Now()
		if err := losses.Census(p.census).NothingLeft(ctx, before, p.matched); err != nil {
			r.Leaks++
			r.Fail(err)
		}
		r.Back, r.Took = time.Since(gone), time.Since(began)
		p.add(r)
		if ctx.Err() != nil {
			return ctx.Err()
		}
	}
	return nil
}

// crowd adds that many pods on both nodes, half of each tenant, and deletes them.
func (t *tenants) crowd(ctx context.Context, r *report.Row, count int) (err error) {
	crowd := losses.Crowd{
		Pods: count, Together: losses.AtATime,
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
const hostQueue = 2 * rate

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
	tallies, _, err := losses.Count(ctx, t.pairs, rate, calmTime, act) // the caller judges the losses
	return tallies, err
}
