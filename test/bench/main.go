// Bench measures Weft against other programs that do the same work on the same machine, in the same minutes. `make bench` runs it;
// docs/benchmarks.md explains its output.
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

	"weft.dev/weft/test/bench/measure"
	"weft.dev/weft/test/bench/rows"
	"weft.dev/weft/test/bench/stage"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM, syscall.SIGHUP)
	err := run(ctx, os.Args[1:], os.Stdout, os.Stderr)
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "bench:", err)
		os.Exit(1)
	}
}

type options struct {
	rows   *regexp.Regexp
	bin    string
	out    string
	name   string
	rounds int
	list   bool
	loaded bool
}

func parse(args []string, errs io.Writer) (options, error) {
	var o options
	flags := flag.NewFlagSet("bench", flag.ContinueOnError)
	flags.SetOutput(errs)
	pattern := flags.String("rows", "", "measure rows whose names match this regular expression")
	flags.StringVar(&o.bin, "bin", "bin", "folder with weft, weft-cni and weft-lab")
	flags.StringVar(&o.out, "out", "out/bench.json", "file for the results")
	flags.StringVar(&o.name, "lab", "bench", "name of the lab that is brought up")
	flags.IntVar(&o.rounds, "rounds", measure.MinRounds, "rounds of a comparison, at least 7")
	flags.BoolVar(&o.list, "list", false, "print the rows' names, and measure nothing")
	flags.BoolVar(&o.loaded, "even-if-loaded", false, "for work on the benchmark itself: measure on a loaded machine too, and mark the results as not valid")
	if err := flags.Parse(args); err != nil {
		return o, err
	}
	var err error
	if o.rows, err = regexp.Compile(*pattern); err != nil {
		return o, fmt.Errorf("rows: %w", err)
	}
	if o.rounds < measure.MinRounds {
		return o, fmt.Errorf("rounds: %d are too few: at least %d", o.rounds, measure.MinRounds)
	}
	if o.bin, err = filepath.Abs(o.bin); err != nil {
		return o, fmt.Errorf("find Weft's programs: %w", err)
	}
	return o, nil
}

var errMissed = errors.New("targets are missed")

func run(ctx context.Context, args []string, out, errs io.Writer) error {
	o, err := parse(args, errs)
	if errors.Is(err, flag.ErrHelp) {
		return nil
	}
	if err != nil {
		return err
	}
	groups := rows.Matching(rows.All(), o.rows)
	if len(groups) == 0 {
		return fmt.Errorf("no row matches %q; the rows are:\n%s", o.rows, strings.Join(names(rows.All()), "\n"))
	}
	if o.list {
		_, err := fmt.Fprintln(out, strings.Join(names(groups), "\n"))
		return err
	}
	results, err := play(ctx, o, groups, errs)
	if len(results) > 0 {
		err = errors.Join(err, write(o.out, out, results))
	}
	if err != nil {
		return err
	}
	if missed := measure.Missed(results); len(missed) > 0 {
		return fmt.Errorf("%w: %s", errMissed, strings.Join(missed, ", "))
	}
	return nil
}

func names(groups []rows.Group) []string {
	var all []string
	for _, g := range groups {
		for _, r := range g.Rows {
			all = append(all, r.Name)
		}
	}
	return all
}

// quietPatience is how long the benchmark waits for other work on the machine to end: building Weft, for instance.
const quietPatience = time.Minute

// play measures group by group. With an error it returns the results so far.
func play(ctx context.Context, o options, groups []rows.Group, errs io.Writer) (results []measure.Result, err error) {
	began := time.Now()
	say := func(format string, args ...any) {
		_, _ = fmt.Fprintf(errs, "%4.0f s  %s\n", time.Since(began).Seconds(), fmt.Sprintf(format, args...))
	}
	s, err := stage.Open(ctx, stage.Config{Name: o.name, Bin: o.bin, Say: say})
	if err != nil {
		return nil, err
	}
	defer func() { //nolint:contextcheck // what takes things down has to outlive the run's context
		say("taking everything down")
		err = errors.Join(err, s.Close())
	}()
	b := rows.Bench{Stage: s, Rounds: o.rounds, Progress: func(done, all int) {
		if done == 0 || done == all {
			say("    %d of %d rounds", done, all)
		}
	}}
	var failed []error
	for _, g := range groups {
		measured, err := measureGroup(ctx, o, g, b)
		results = append(results, measured...)
		switch {
		case ctx.Err() != nil:
			return results, fmt.Errorf("ended early: %w", context.Cause(ctx))
		case errors.Is(err, stage.ErrLoaded):
			return results, errors.Join(append(failed, err)...)
		case err != nil: // the others are still measured
			say("    FAILED: %v", err)
			failed = append(failed, fmt.Errorf("%s: %w", g.Title, err))
		}
	}
	return results, errors.Join(failed...)
}

func measureGroup(ctx context.Context, o options, g rows.Group, b rows.Bench) ([]measure.Result, error) {
	if err := g.Prepare(ctx, b); err != nil {
		return nil, err
	}
	invalid, err := judgeMachine(ctx, o, b.Stage.Say)
	if err != nil {
		return nil, err
	}
	b.Stage.Say("%s", g.Title)
	results, err := g.Run(ctx, b)
	for i := range results {
		results[i].Invalid = invalid
	}
	return results, err
}

// judgeMachine returns why figures are not valid, or the error that ends the run for that reason.
func judgeMachine(ctx context.Context, o options, say func(string, ...any)) (string, error) {
	patience := quietPatience
	if o.loaded {
		patience = 0
	}
	err := stage.AwaitQuiet(ctx, patience)
	if o.loaded && errors.Is(err, stage.ErrLoaded) {
		say("NOT VALID: %v", err)
		return err.Error(), nil
	}
	return "", err
}

func write(path string, out io.Writer, results []measure.Result) error {
	if err := measure.WriteTable(out, results); err != nil {
		return err
	}
	for _, r := range results {
		if r.Invalid != "" {
			_, _ = fmt.Fprintf(out, "NOT VALID: %s\n", r.Invalid)
			break
		}
	}
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return fmt.Errorf("make the folder of the results: %w", err)
	}
	f, err := os.Create(path)
	if err != nil {
		return fmt.Errorf("write the results: %w", err)
	}
	return errors.Join(measure.WriteJSON(f, results), f.Close())
}
