package attach

import (
	"os"
	"time"

	"golang.org/x/sys/unix"
)

// Booted returns a time before which nothing of this boot was written: an older file belongs to a former boot, and so does the interface
// of its record. It returns the zero time if that is not known.
//
// Clock and uptime alone do not prove it: if the clock is set forward after a file was written (by NTP, on a node without a real-time
// clock, or after a virtual machine was restored from a snapshot), the file appears to be older than the boot. So the earliest of three
// times counts: the clock less the uptime; the time of /sys, whose root keeps the time at which the kernel's sysfs was first mounted,
// before any program that makes pods; and the times of this boot's records.
func (s *Store) Booted() time.Time {
	var up unix.Timespec
	sys, err := os.Stat("/sys")
	if err != nil || unix.ClockGettime(unix.CLOCK_BOOTTIME, &up) != nil {
		return time.Time{}
	}
	boot := time.Now().Add(-time.Duration(up.Nano()))
	if sys.ModTime().Before(boot) {
		boot = sys.ModTime()
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, rec := range s.records {
		if rec.BootID == s.bootID && rec.Created.Before(boot) {
			boot = rec.Created
		}
	}
	return boot
}
