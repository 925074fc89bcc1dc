package stage

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"
	"time"
)

// ErrLoaded reports that the machine does other work.
var ErrLoaded = errors.New("the machine is loaded")

// busyLimit is the maximum share of the machine's processor time in use while nothing is measured. An idle lab with its API server, etcd
// and switches full of ports uses some. One busy program on two cores uses half.
const busyLimit = 0.25

// window is the duration of a measurement of the machine's load.
const window = 3 * time.Second

// AwaitQuiet returns when the machine has been idle for some time. After patience it returns an ErrLoaded with the load.
func AwaitQuiet(ctx context.Context, patience time.Duration) error {
	deadline := time.Now().Add(patience)
	for {
		busy, err := busyShare(ctx)
		if err != nil {
			return err
		}
		if busy <= busyLimit {
			return nil
		}
		if time.Now().After(deadline) {
			return fmt.Errorf("%w: %.0f %% of its processor time is taken (at most %.0f %%), load average %s: figures would prove "+
				"nothing; end other programs (see top), and try again", ErrLoaded, 100*busy, 100*busyLimit, loadAverage())
		}
	}
}

// busyShare returns the share of the processors' time in use during a window.
func busyShare(ctx context.Context) (float64, error) {
	busy, all, err := readStat()
	if err != nil {
		return 0, err
	}
	select {
	case <-ctx.Done():
		return 0, ctx.Err()
	case <-time.After(window):
	}
	busyAfter, allAfter, err := readStat()
	if err != nil || allAfter <= all {
		return 0, errors.Join(err, ctx.Err())
	}
	return float64(busyAfter-busy) / float64(allAfter-all), nil
}

func readStat() (busy, all uint64, err error) {
	raw, err := os.ReadFile("/proc/stat")
	if err != nil {
		return 0, 0, fmt.Errorf("read how busy the machine is: %w", err)
	}
	return parseStat(string(raw))
}

// parseStat parses the first line of /proc/stat (proc(5)): user nice system idle iowait irq softirq steal, in ticks. Time that a
// hypervisor gave to others (steal) counts as busy; guest time is included in user.
func parseStat(raw string) (busy, all uint64, err error) {
	line, _, _ := strings.Cut(raw, "\n")
	fields := strings.Fields(line)
	const idle, iowait, steal = 3, 4, 7
	if len(fields) < steal+2 || fields[0] != "cpu" {
		return 0, 0, fmt.Errorf("/proc/stat begins with %q", line)
	}
	for i, field := range fields[1 : steal+2] {
		ticks, err := strconv.ParseUint(field, 10, 64)
		if err != nil {
			return 0, 0, fmt.Errorf("/proc/stat, field %d: %w", i+1, err)
		}
		all += ticks
		if i != idle && i != iowait {
			busy += ticks
		}
	}
	return busy, all, nil
}

func loadAverage() string {
	raw, err := os.ReadFile("/proc/loadavg")
	if err != nil {
		return err.Error()
	}
	fields := strings.Fields(string(raw))
	return strings.Join(fields[:min(3, len(fields))], " ")
}
