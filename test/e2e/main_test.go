//go:build lab

// Package e2e tests what Weft's users rely on, in a lab of two nodes whose pods are namespaces attached through libcni: every test runs
// real agents on real switches, and checks packets.
package e2e

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"github.com/go-logr/logr"
	ctrllog "sigs.k8s.io/controller-runtime/pkg/log"

	"weft.dev/weft/lab"
	"weft.dev/weft/lab/plan"
	"weft.dev/weft/lab/programs"
	"weft.dev/weft/lab/report"
	"weft.dev/weft/test/probe"
)

// child marks the process that runs the tests, in contrast to the one that keeps the lab: a test that panics or times out ends only its
// process, and the lab is still removed.
const child = "WEFT_E2E_CHILD"

var ( //nolint:gochecknoglobals // flags of the test binary
	labName = flag.String("lab.name", "e2e", "name of the lab that the tests bring up")
	keepLab = flag.Bool("lab.keep", false, "use the lab if it is up, and do not take it down")
	weftBin = flag.String("lab.bin", "", "folder with weft, weft-cni and weft-lab; without it, they are built")

	// Smaller numbers are for slower machines. The assertions are the same.
	pairRate  = flag.Int("lab.rate", 1000, "datagrams a second of each pair of pods in tests that allow no loss")
	bandwidth = flag.Float64("lab.bandwidth", 1, "share of their usual bandwidth that limited pods have")
	restarts  = flag.Int("lab.restarts", 20, "number of restarts of agents")
	starts    = flag.Int("lab.starts", 60, "number of isolated pods that start under hostile traffic")
	rounds    = flag.Int("lab.rounds", 5, "number of crowds of pods that are added and deleted")
	perRound  = flag.Int("lab.crowd", 200, "number of pods in a crowd")
	windows   = flag.Float64("lab.windows", 1, "share of their usual length that measurements, and traffic without a fault, have")
)

// window returns the length of a measurement, or of traffic without a fault, whose usual length is given.
func window(usual time.Duration) time.Duration { return time.Duration(float64(usual) * *windows) }

func TestMain(m *testing.M) {
	flag.Parse()
	if os.Getenv(child) != "" {
		ctrllog.SetLogger(logr.Discard()) // clients return their errors
		os.Exit(m.Run())
	}
	code, err := keep()
	if err != nil {
		fmt.Fprintln(os.Stderr, "e2e:", err)
		code = max(code, 1)
	}
	os.Exit(code)
}

// keep brings the lab up, runs the tests in a process of their own, takes the lab down, and checks for leftovers.
func keep() (code int, err error) {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM, syscall.SIGQUIT)
	defer stop()
	if *keepLab {
		if _, err := lab.Open(ctx, *labName); err == nil {
			return runTests(ctx)
		}
	}
	bin := *weftBin
	if bin == "" {
		scratch, err := os.MkdirTemp("", "weft-e2e-")
		if err != nil {
			return 1, err
		}
		if !*keepLab {
			defer func() { _ = os.RemoveAll(scratch) }()
		}
		if bin, err = build(ctx, scratch); err != nil {
			return 1, err
		}
	}
	if err := lab.Down(ctx, *labName, nil); err != nil { // of a killed run
		return 1, err
	}
	before, err := probe.TakeInventory(*labName)
	if err != nil {
		return 1, err
	}
	config := lab.Config{Name: *labName, Nodes: 2, Runtime: plan.RuntimeCNI, KubeProxy: true, WeftBin: bin}
	begin := time.Now()
	c, err := lab.Up(ctx, config, func(e report.Event) {
		if e.State == report.Fail {
			fmt.Fprintf(os.Stderr, "e2e: the lab does not come up: %s: %s\n", e.Step, e.Text)
		} else if e.State == report.Done && testing.Verbose() {
			fmt.Printf("%s %s\n", e.Step, e.Took.Round(10*time.Millisecond))
		}
	})
	if err == nil {
		fmt.Printf("lab up in %s, datapath %s\n", time.Since(begin).Round(10*time.Millisecond), c.Datapath)
		code, err = runTests(ctx)
		err = errors.Join(err, crashed(c))
	}
	if *keepLab {
		return code, err
	}
	return code, errors.Join(err, takeDown(before))
}

// crashed returns an error that names the programs of the lab that crashed during the tests.
func crashed(c *lab.Cluster) error {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	return c.Crashed(ctx)
}

// takeDown ends the lab, however the tests ended, and returns an error that lists its leftovers.
func takeDown(before probe.Inventory) error {
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Minute)
	defer cancel()
	if err := lab.Down(ctx, *labName, nil); err != nil {
		return err
	}
	return before.Left()
}

// build returns the directory with Weft's programs. It builds them into dir, unless they are built already.
func build(ctx context.Context, dir string) (string, error) {
	root, err := filepath.Abs("../..")
	if err != nil {
		return "", err
	}
	return programs.Folder(ctx, root, dir)
}

func runTests(ctx context.Context) (int, error) {
	self, err := os.Executable()
	if err != nil {
		return 1, err
	}
	cmd := exec.CommandContext(ctx, self, os.Args[1:]...)
	cmd.Env = append(os.Environ(), child+"=1")
	cmd.Stdin, cmd.Stdout, cmd.Stderr = os.Stdin, os.Stdout, os.Stderr
	cmd.Cancel = func() error { return cmd.Process.Signal(os.Interrupt) }
	cmd.WaitDelay = 5 * time.Second
	var failed *exec.ExitError
	if err := cmd.Run(); errors.As(err, &failed) {
		return max(failed.ExitCode(), 1), nil
	} else if err != nil {
		return 1, err
	}
	return 0, nil
}
