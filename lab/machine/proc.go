package machine

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// ProcStat identifies a process: PIDs are reused, but PID and start time together are unique.
type ProcStat struct {
	Pid    int    `json:"pid"`
	Start  uint64 `json:"start"` // clock ticks since boot, field 22 of /proc/PID/stat (proc(5))
	State  byte   `json:"-"`
	Parent int    `json:"-"`
}

// Stat reads a process's identity.
func Stat(pid int) (ProcStat, error) {
	raw, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/stat")
	if err != nil {
		return ProcStat{}, fmt.Errorf("process %d: %w", pid, err)
	}
	return parseStat(pid, raw)
}

// parseStat skips the program's name, which may contain spaces and parentheses, up to the last closing parenthesis.
func parseStat(pid int, raw []byte) (ProcStat, error) {
	end := bytes.LastIndexByte(raw, ')')
	if end < 0 {
		return ProcStat{}, fmt.Errorf("process %d: stat without a name", pid)
	}
	fields := strings.Fields(string(raw[end+1:]))
	const state, parent, start = 0, 1, 19 // counted from field 3 on
	if len(fields) <= start {
		return ProcStat{}, fmt.Errorf("process %d: short stat", pid)
	}
	ticks, err := strconv.ParseUint(fields[start], 10, 64)
	if err != nil {
		return ProcStat{}, fmt.Errorf("process %d: start time: %w", pid, err)
	}
	ppid, err := strconv.Atoi(fields[parent])
	if err != nil {
		return ProcStat{}, fmt.Errorf("process %d: parent: %w", pid, err)
	}
	return ProcStat{Pid: pid, Start: ticks, State: fields[state][0], Parent: ppid}, nil
}

// WritePid writes a process's identity to a file.
func WritePid(path string, pid int) error {
	s, err := Stat(pid)
	if err != nil {
		return err
	}
	raw, err := json.Marshal(s)
	if err != nil {
		return fmt.Errorf("encode %s: %w", path, err)
	}
	return WriteFile(path, raw, 0o644)
}

// ReadPid returns the process that a file names, or 0 if that process has ended.
func ReadPid(path string) int {
	raw, err := os.ReadFile(path)
	if err != nil {
		return 0
	}
	var want ProcStat
	if json.Unmarshal(raw, &want) != nil {
		return 0
	}
	now, err := Stat(want.Pid)
	if err != nil || now.Start != want.Start || now.State == 'Z' {
		return 0
	}
	return want.Pid
}

// Kill signals the process that a file names, unless it has ended.
func Kill(path string, sig unix.Signal) error {
	pid := ReadPid(path)
	if pid == 0 {
		return nil
	}
	fd, err := unix.PidfdOpen(pid, 0)
	if err != nil {
		return nil //nolint:nilerr // gone meanwhile
	}
	defer func() { _ = unix.Close(fd) }()
	if ReadPid(path) != pid {
		return nil
	}
	if err := unix.PidfdSendSignal(fd, sig, nil, 0); err != nil && !errors.Is(err, unix.ESRCH) {
		return fmt.Errorf("signal process %d: %w", pid, err)
	}
	return nil
}
