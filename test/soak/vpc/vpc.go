// Package vpc is the soak's part of VPCs: the programs of VPCs, which run in pods as from the manifest, and the container of the NAT gateway are
// killed under counted packets, and both databases of OVN are replaced by empty ones.
package vpc

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"regexp"
	"strings"
	"time"

	"weft.dev/weft/lab"
	"weft.dev/weft/lab/plan"
	"weft.dev/weft/test/probe"
	"weft.dev/weft/test/soak/losses"
)

// Options of a run.
type Options struct {
	// Lab is the name of the lab, Bin the folder with Weft's programs.
	Lab, Bin string
	// Faults selects faults by their names.
	Faults *regexp.Regexp
	// Calm is how long the traffic continues after a fault has been repaired. Zero: CalmTime.
	Calm time.Duration
	// Leeway multiplies the time whose packets a fault may cost: a machine that runs other tests installs flows more slowly. Zero: 1.
	Leeway int
	// Say prints a line of progress.
	Say func(format string, args ...any)
}

// Row is a result: of the control, or of a fault.
type Row struct {
	Name string
	// Sent and Lost count the datagrams of all pairs.
	Sent, Lost uint64
	// Back is the time from the fault until a new pod was served and the database was as before.
	Back, Took time.Duration
	// Wrong has what must not have happened. Lossy says which pairs lost more packets than they may: a busy machine may be the cause.
	Wrong []error
	Lossy error
}

func (r *Row) wrong(err error) {
	if err != nil {
		r.Wrong = append(r.Wrong, err)
	}
}

const (
	// rate is the number of datagrams per second that each pair exchanges.
	rate = 200
	// CalmTime is the usual value of Options.Calm.
	CalmTime = 3 * time.Second
	// Packets that may be lost, beyond those of the run without a fault, are those of this time: ovn-controller that starts installs its flows
	// anew, and empty databases are filled again.
	reinstalled = 300 * time.Millisecond
	refilled    = 500 * time.Millisecond
)

// Run runs the part in a lab of its own. An error is the reason why it could not continue.
func Run(ctx context.Context, opts Options, add func(Row)) error {
	config := lab.Config{Name: opts.Lab, Nodes: 2, Runtime: plan.RuntimeKubelet, VPC: true, WeftBin: opts.Bin}
	return losses.InLab(ctx, config, func(cluster *lab.Cluster, took time.Duration) error {
		opts.Say("lab with VPCs up in %s", took.Round(time.Second))
		return RunIn(ctx, cluster, opts, add)
	})
}

// RunIn runs the part in a lab that is up, with kubelets and VPCs. The objects of the example stay, with those that the part adds to its VPC.
func RunIn(ctx context.Context, cluster *lab.Cluster, opts Options, add func(Row)) (err error) {
	s, err := newScene(ctx, cluster)
	defer func() { err = errors.Join(err, s.close()) }()
	if err != nil {
		return err
	}
	s.calm = cmp.Or(opts.Calm, CalmTime)
	return s.faults(ctx, opts, add)
}

// fault is something that happens to OVN or to Weft's programs.
type fault struct {
	name string
	// spared is the time whose packets may be lost beyond those of the control run.
	spared time.Duration
	// anew says that rows get new versions, but the same UUIDs.
	anew bool
	do   func(context.Context) error
}

// faults runs the control and then all faults.
func (s *scene) faults(ctx context.Context, opts Options, add func(Row)) error {
	containers, err := s.containers(ctx)
	if err != nil {
		return err
	}
	var all []fault
	for _, c := range containers {
		f := fault{name: c.String() + " killed", anew: c.name == northbound, do: func(ctx context.Context) error { return s.kill(ctx, c) }}
		if c.name == ovnController {
			f.spared = reinstalled
		}
		all = append(all, f)
	}
	all = append(all, fault{name: "both databases replaced by empty ones", spared: refilled, anew: true, do: s.wipe})
	control, calm := s.strike(ctx, fault{name: "control: no fault", do: func(context.Context) error { return nil }}, nil)
	add(control)
	for _, f := range all {
		if ctx.Err() != nil {
			return ctx.Err()
		}
		if !opts.Faults.MatchString(f.name) {
			continue
		}
		f.spared *= time.Duration(cmp.Or(opts.Leeway, 1))
		r, _ := s.strike(ctx, f, calm)
		add(r)
	}
	return ctx.Err()
}

// strike lets a fault happen under traffic, and waits until a new pod is served, the database has its former rows, and all pairs exchange
// packets. calm has the losses of the control run; nil: this is it.
func (s *scene) strike(ctx context.Context, f fault, calm losses.Tallies) (Row, losses.Tallies) {
	r, began := Row{Name: f.name}, time.Now()
	defer func() { r.Took = time.Since(began) }()
	before, err := s.rows(ctx)
	if err != nil {
		r.wrong(err)
		return r, nil
	}
	tallies, _, err := losses.Count(ctx, s.pairs, rate, s.calm, func() error {
		struck := time.Now()
		r.wrong(f.do(ctx))
		r.wrong(s.fresh(ctx))
		_, err := probe.Await(ctx, probe.Patience, "the rows of the northbound database as before", func(ctx context.Context) error {
			after, err := s.rows(ctx)
			if err != nil {
				return err
			}
			return differ(before, after, f.anew)
		})
		r.Back = time.Since(struck)
		return err
	})
	r.wrong(err)
	rule := losses.Rule{Calm: calm, May: uint64(rate * f.spared / time.Second)}
	loss := rule.Judge(tallies)
	if r.Sent, r.Lost = loss.Sent, loss.Lost; calm != nil {
		r.Lossy = loss.Err
	}
	r.wrong(s.reach(ctx))
	return r, tallies
}

// wipe removes the files of both databases, and kills their servers, which begin with empty ones.
func (s *scene) wipe(ctx context.Context) error {
	containers, err := s.containers(ctx)
	if err != nil {
		return err
	}
	var servers []container
	for _, c := range containers {
		if c.name == northbound || c.name == southbound {
			servers = append(servers, c)
		}
	}
	if len(servers) == 0 {
		return errNoServer
	}
	node, err := s.cluster.NodeNamed(servers[0].node)
	if err != nil {
		return err
	}
	for _, file := range []string{"ovnnb.db", "ovnsb.db"} {
		if err := os.Remove(node.Root("/var/lib/weft/ovn-central/" + file)); err != nil {
			return fmt.Errorf("remove a database: %w", err)
		}
	}
	var errs []error
	for _, c := range servers {
		errs = append(errs, s.kill(ctx, c))
	}
	return errors.Join(errs...)
}

var errNoServer = errors.New("no container serves OVN's databases")

// differ returns an error if two states of the database do not have the same rows of the same versions, or, anew, the same rows.
func differ(before, after map[string]string, anew bool) error {
	var wrong []string
	for row, version := range before {
		if now, there := after[row]; !there || now != version && !anew {
			wrong = append(wrong, fmt.Sprintf("%s was of version %s, is of %q", row, version, now))
		}
	}
	if len(wrong) > 0 || len(after) != len(before) {
		const few = 3
		return fmt.Errorf("%w: %d rows, were %d; %s", errDiffers, len(after), len(before), strings.Join(wrong[:min(few, len(wrong))], "; "))
	}
	return nil
}

var errDiffers = errors.New("the northbound database differs")
