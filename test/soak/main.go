// Soak exposes Weft to the faults that occur on a cluster, for as long as needed: agents that are killed under traffic and in the middle
// of requests, crowds of pods, and faults of every kind, while a pod sends hostile packets all the time. It ends with a table, and the
// same data as JSON. docs/testing.md explains how to read it.
//
// It needs root, and an otherwise idle machine. `make soak` runs it.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"time"

	"github.com/go-logr/logr"
	ctrllog "sigs.k8s.io/controller-runtime/pkg/log"

	"weft.dev/weft/test/soak/overlay"
)

// options are the options of a run. The defaults make a whole run.
type options struct {
	lab, bin, out string
	parts         *regexp.Regexp
	faults        *regexp.Regexp
	seed          uint64
	restarts      int
	kills         int
	rounds, crowd int
	rate          int
	clock, loss   bool
	list          bool
}

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	os.Exit(run(ctx, os.Args[1:], os.Stdout, os.Stderr))
}

// run returns the exit code: 0 if all selected parts passed with a verdict, 1 if not, 2 for wrong use.
func run(ctx context.Context, args []string, stdout, stderr io.Writer) int {
	opts, err := parse(args, stderr)
	if errors.Is(err, flag.ErrHelp) {
		return 0
	} else if err != nil {
		_, _ = fmt.Fprintln(stderr, "soak:", err)
		return 2
	}
	if opts.list {
		for _, p := range selected(opts.parts) {
			_, _ = fmt.Fprintln(stdout, p.name)
		}
		return 0
	}
	ctrllog.SetLogger(logr.Discard()) // clients return their errors
	s := newSoak(opts, stdout)
	err = s.run(ctx)
	if err != nil {
		s.report.Error = err.Error()
	}
	if err := s.report.Finish(opts.out); err != nil {
		_, _ = fmt.Fprintln(stderr, "soak:", err)
		return 1
	}
	if !s.report.Passed {
		return 1
	}
	return 0
}

func parse(args []string, stderr io.Writer) (options, error) {
	var o options
	var parts, faults string
	flags := flag.NewFlagSet("soak", flag.ContinueOnError)
	flags.SetOutput(stderr)
	flags.StringVar(&o.lab, "lab", "soak", "name of the lab that is brought up")
	flags.StringVar(&o.bin, "bin", "bin", "folder with Weft's programs")
	flags.StringVar(&o.out, "out", "out/soak.json", "file that gets the results as JSON")
	flags.StringVar(&parts, "parts", "", "regular expression: which parts run, of "+strings.Join(partNames(), ", ")+"; empty: all")
	flags.StringVar(&faults, "faults", "", "regular expression: which faults the part faults runs; empty: all")
	flags.BoolVar(&o.list, "list", false, "print the names of the parts that -parts selects, and run nothing")
	flags.Uint64Var(&o.seed, "seed", 0, "seed of all random choices; 0: a seed is chosen and printed")
	flags.IntVar(&o.restarts, "restarts", 500, "restarts of agents, under traffic")
	flags.IntVar(&o.kills, "kills", 1000, "kills of agents during ADD and DEL")
	flags.IntVar(&o.rounds, "rounds", 5, "rounds of pods that are added and deleted")
	flags.IntVar(&o.crowd, "crowd", 1000, "pods of a round, on two nodes; a node has addresses for 509")
	flags.IntVar(&o.rate, "rate", 500, "datagrams a second of each of the four pairs of pods, all of them answered")
	flags.BoolVar(&o.clock, "clock", false, "allow the part clock to set the clock of the whole machine; it is set back afterwards")
	flags.BoolVar(&o.loss, "loss", true, "judge lost packets; with -loss=false the run proves less and does not pass")
	if err := flags.Parse(args); err != nil {
		return o, err
	}
	var err error
	if o.parts, err = regexp.Compile(parts); err != nil {
		return o, fmt.Errorf("-parts: %w", err)
	}
	if o.faults, err = regexp.Compile(faults); err != nil {
		return o, fmt.Errorf("-faults: %w", err)
	}
	if o.bin, err = filepath.Abs(o.bin); err != nil {
		return o, fmt.Errorf("-bin: %w", err)
	}
	if o.crowd > overlay.CrowdMax {
		return o, fmt.Errorf("-crowd %d: two nodes have addresses for %d pods beside the permanent ones", o.crowd, overlay.CrowdMax)
	}
	if flags.NArg() > 0 {
		return o, fmt.Errorf("%q: unexpected argument; there are only flags", flags.Arg(0))
	}
	if o.seed == 0 {
		o.seed = uint64(time.Now().UnixNano())
	}
	return o, nil
}
