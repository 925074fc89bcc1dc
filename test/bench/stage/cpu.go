package stage

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"weft.dev/weft/lab"
)

// Meter reads the processor time, user and system, of a side's programs so far.
type Meter struct {
	daemons []int // their own time
	parents []int // programs whose ended children count, with the children's ended children
}

// Used returns the time so far.
func (m Meter) Used() (time.Duration, error) {
	var all time.Duration
	for _, pid := range m.daemons {
		used, err := processTime(pid)
		if err != nil {
			return 0, err
		}
		all += used
	}
	for _, pid := range m.parents {
		used, err := childrenTime(pid)
		if err != nil {
			return 0, err
		}
		all += used
	}
	return all, nil
}

// processTime returns the time of all threads of a process, including ended ones. A process's clock has nanoseconds, while /proc has
// ticks of 10 ms; its number is derived from the PID (clock_getcpuclockid(3), linux/posix-timers.h).
func processTime(pid int) (time.Duration, error) {
	const schedulerClock = 2
	var ts unix.Timespec
	if err := unix.ClockGettime(int32(^pid<<3|schedulerClock), &ts); err != nil {
		return 0, fmt.Errorf("read the processor time of process %d: %w", pid, err)
	}
	return time.Duration(ts.Nano()), nil
}

// tick is the unit of /proc/PID/stat: USER_HZ is 100 on every architecture that Go supports with Linux.
const tick = 10 * time.Millisecond

// childrenTime returns cutime and cstime, fields 16 and 17 of /proc/PID/stat (proc(5)).
func childrenTime(pid int) (time.Duration, error) {
	raw, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/stat")
	if err != nil {
		return 0, fmt.Errorf("read the processor time of the children of process %d: %w", pid, err)
	}
	return parseChildrenTime(raw)
}

func parseChildrenTime(raw []byte) (time.Duration, error) {
	const user, system = 13, 14 // counted from field 3 on
	fields := strings.Fields(string(raw[bytes.LastIndexByte(raw, ')')+1:]))
	if len(fields) <= system {
		return 0, fmt.Errorf("the line of a process has %d fields behind its name: %q", len(fields), raw)
	}
	var ticks int64
	for _, i := range []int{user, system} {
		n, err := strconv.ParseInt(fields[i], 10, 64)
		if err != nil {
			return 0, fmt.Errorf("field %d of a process's line: %w", i+3, err)
		}
		ticks += n
	}
	return time.Duration(ticks) * tick, nil
}

// labMeter reads the processor time of Weft and the switch on a node: the agent, the switch's two daemons, and the plugin, which is a
// child of the node's container runtime. The runtime itself counts for neither side.
func labMeter(ctx context.Context, c *lab.Cluster, node string) (Meter, error) {
	pids, err := programs(ctx, c, node+"/weft-agent", node+"/ovs-vswitchd", node+"/ovsdb-server", node+"/pods")
	if err != nil {
		return Meter{}, err
	}
	return Meter{daemons: pids[:3], parents: pids[3:]}, nil
}

// programs returns the PIDs of a lab's programs.
func programs(ctx context.Context, c *lab.Cluster, names ...string) ([]int, error) {
	all, err := c.Programs(ctx)
	if err != nil {
		return nil, err
	}
	have := map[string]int{}
	for _, p := range all {
		have[p.Name] = p.Pid
	}
	pids := make([]int, 0, len(names))
	for _, name := range names {
		if have[name] == 0 {
			return nil, fmt.Errorf("%s is not running: see its log (weft-lab --name %s status)", name, c.Name())
		}
		pids = append(pids, have[name])
	}
	return pids, nil
}

// ProgramMeter reads the processor time of a lab's programs.
func ProgramMeter(ctx context.Context, c *lab.Cluster, names ...string) (Meter, error) {
	pids, err := programs(ctx, c, names...)
	return Meter{daemons: pids}, err
}

// OwnMeter reads the processor time of this process.
func OwnMeter() Meter { return Meter{daemons: []int{os.Getpid()}} }
