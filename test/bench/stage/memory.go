package stage

import (
	"context"
	"fmt"
	"math"
	"os"
	"strconv"
	"strings"
	"time"
)

// settleStep is the interval between two measurements; a value counts once the next one is the same, to a hundredth.
const settleStep = time.Second

// SettledSize returns a process's resident size in bytes once it is the same twice, to a hundredth.
func SettledSize(ctx context.Context, pid int) (float64, error) {
	last, err := ResidentSize(pid)
	for err == nil {
		select {
		case <-ctx.Done():
			return 0, ctx.Err()
		case <-time.After(settleStep):
		}
		var now float64
		if now, err = ResidentSize(pid); err == nil && math.Abs(now-last) <= last/100 {
			return now, nil
		}
		last = now
	}
	return 0, err
}

// ResidentSize is VmRSS of /proc/PID/status (proc(5)), in bytes.
func ResidentSize(pid int) (float64, error) {
	raw, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/status")
	if err != nil {
		return 0, fmt.Errorf("read a program's memory: %w", err)
	}
	const kilobyte = 1024
	n, err := NumberBehind(string(raw), "VmRSS:")
	return n * kilobyte, err
}

// NumberBehind returns the number behind a name in a program's statistics.
func NumberBehind(text, name string) (float64, error) {
	_, rest, _ := strings.Cut(text, name)
	fields := strings.Fields(rest)
	if len(fields) == 0 {
		return 0, fmt.Errorf("no field %s in the program's memory statistics", name)
	}
	n, err := strconv.ParseFloat(fields[0], 64)
	if err != nil {
		return 0, fmt.Errorf("%s: %w", name, err)
	}
	return n, nil
}
