package probe

import (
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/vishvananda/netlink"
)

// Inventory is what a machine has of a lab: names of namespaces, links, mounts, cgroups, processes, folders. Labs run side
// by side, so only what bears the lab's name, or is new without bearing another's, counts.
type Inventory struct {
	lab  string
	have map[string]bool
}

// TakeInventory lists what a machine has of the lab of that name.
func TakeInventory(name string) (Inventory, error) {
	have := map[string]bool{}
	links, err := netlink.LinkList()
	if err != nil {
		return Inventory{}, err
	}
	for _, l := range links {
		if own := "wl-" + name; l.Attrs().Name == own || !strings.HasPrefix(l.Attrs().Name, "wl-") && l.Type() != "veth" {
			have["link "+l.Attrs().Name] = true
		}
	}
	for kind, pattern := range map[string]string{
		"namespace": "/run/netns/wl-" + name + "-*", "state": "/var/lib/weft-lab/" + name, "run": "/run/weft-lab/" + name,
		"cgroup": "/sys/fs/cgroup/*/wl-" + name, "cgroup2": "/sys/fs/cgroup/wl-" + name,
	} {
		found, err := filepath.Glob(pattern)
		if err != nil {
			return Inventory{}, err
		}
		for _, path := range found {
			have[kind+" "+path] = true
		}
	}
	mounts, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		return Inventory{}, err
	}
	for line := range strings.Lines(string(mounts)) {
		if point := strings.Fields(line)[4]; strings.Contains(point+"/", "weft-lab/"+name+"/") {
			have["mount "+point] = true
		}
	}
	return Inventory{name, have}, addProcesses(name, have)
}

// addProcesses adds the processes in the lab's cgroup, or whose command line has a path of the lab's.
func addProcesses(name string, have map[string]bool) error {
	found, err := filepath.Glob("/proc/[0-9]*")
	if err != nil {
		return err
	}
	for _, dir := range found {
		group, err := os.ReadFile(filepath.Join(dir, "cgroup"))
		if err != nil {
			continue // it has ended
		}
		command, _ := os.ReadFile(filepath.Join(dir, "cmdline"))
		words := strings.ReplaceAll(string(command), "\x00", " ")
		if strings.Contains(string(group)+"\n", "/wl-"+name+"\n") || strings.Contains(words, "weft-lab/"+name+"/") {
			have[fmt.Sprintf("process %s: %s", filepath.Base(dir), words)] = true
		}
	}
	return nil
}

// Left returns an error that names what the machine has of the lab now and did not have then.
func (i Inventory) Left() error {
	now, err := TakeInventory(i.lab)
	if err != nil {
		return err
	}
	var left []string
	for _, item := range slices.Sorted(maps.Keys(now.have)) {
		if !i.have[item] {
			left = append(left, item)
		}
	}
	if len(left) > 0 {
		return fmt.Errorf("the lab left behind:\n\t%s", strings.Join(left, "\n\t"))
	}
	return nil
}
