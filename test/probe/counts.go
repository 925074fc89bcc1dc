package probe

import (
	"context"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"weft.dev/weft/internal/link"
	"weft.dev/weft/internal/link/podlink"
	"weft.dev/weft/lab"
	"weft.dev/weft/lab/plan"
)

// Counts is how many of everything a node has that pods could leak.
type Counts map[string]int

// programs are those of a node that Count looks into.
func programs() []string { return []string{"weft-agent", "ovs-vswitchd", "ovsdb-server"} }

// Count counts what a node has.
func Count(ctx context.Context, c *lab.Cluster, n lab.Node) (Counts, error) {
	have := Counts{}
	lines := map[string][]string{
		"links":      {"ip", "-o", "link"},
		"OVS ports":  {"ovs-vsctl", "list-ports", "br0"},
		"OVS rows":   {"ovs-vsctl", "--columns=_uuid", "--format=csv", "--no-headings", "list", "Interface"},
		"flows":      {"ovs-ofctl", "-O", "OpenFlow15", "--no-stats", "dump-flows", "br0"},
		"rules":      {"nft", "list", "ruleset"},
		"routes":     {"ip", "route", "show", "table", "all"},
		"namespaces": {"sh", "-c", "ls /run/netns"},
	}
	for name, command := range lines {
		out, err := Run(ctx, n.Enter(command...))
		if err != nil {
			return nil, err
		}
		have[name] = strings.Count(out, "\n")
		if name == "links" {
			have[freePorts] = free(n, out)
		}
	}
	err := filepath.WalkDir(filepath.Join(n.Dir, "root/var/lib"), func(_ string, entry os.DirEntry, err error) error {
		if err == nil && !entry.IsDir() {
			have["files"]++
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	for _, name := range programs() {
		status, err := Program(ctx, c, n.Name+"/"+name)
		if err != nil {
			return nil, err
		}
		have["restarts of "+name] = status.Restarts
		descriptors, err := os.ReadDir(filepath.Join("/proc", strconv.Itoa(status.Pid), "fd"))
		if err != nil {
			return nil, err
		}
		have["descriptors of "+name] = len(descriptors)
	}
	of := []string{"links", "OVS ports", "OVS rows"}
	if c.Datapath == plan.DatapathNetdev { // which reads each port by a socket
		of = append(of, "descriptors of ovs-vswitchd")
	}
	for _, name := range of {
		have[name] -= have[freePorts]
	}
	have["goroutines"], err = goroutines(ctx, n)
	return have, err
}

// freePorts are the free pre-plugged ports. Their number follows the pods', within a bound: they are no leak.
const freePorts = "free pre-plugged ports"

// mostFree is the maximum number of free pre-plugged ports: four times the agent's default.
const mostFree = 4 * 32

// free counts, in what ip says of the node's links, the pre-plugged ports that no record of an attachment names.
func free(n lab.Node, links string) int {
	var count int
	for line := range strings.Lines(links) {
		_, owner, preplugged := strings.Cut(line, link.PodAliasPrefix+podlink.PrepluggedOwner(""))
		if !preplugged {
			continue
		}
		name := strings.Fields(owner)[0]
		records, _ := filepath.Glob(filepath.Join(n.Dir, "root/var/lib/weft/attachments/*.json"))
		taken := slices.ContainsFunc(records, func(path string) bool {
			record, err := os.ReadFile(path)
			return err == nil && strings.Contains(string(record), `"`+name+`"`) // one that has just gone has no port
		})
		if !taken {
			count++
		}
	}
	return count
}

// goroutines counts those of a node's agent.
func goroutines(ctx context.Context, n lab.Node) (int, error) {
	profile, err := AskAgent(ctx, n, "/debug/pprof/goroutine?debug=1")
	if err != nil {
		return 0, err
	}
	var total int
	if _, err := fmt.Sscanf(profile, "goroutine profile: total %d", &total); err != nil {
		return 0, fmt.Errorf("goroutines of %s: %w", n.Name, err)
	}
	return total, nil
}

// More returns an error that names what there is more of than before.
func (have Counts) More(before Counts) error {
	var found []string
	for _, name := range slices.Sorted(maps.Keys(have)) {
		if have[name] > before[name] && (name != freePorts || have[name] > mostFree) {
			found = append(found, fmt.Sprintf("%s: %d, were %d", name, have[name], before[name]))
		}
	}
	if len(found) > 0 {
		return fmt.Errorf("left over: %s", strings.Join(found, "; "))
	}
	return nil
}

// Memory returns the resident memory of one of the lab's programs, in KiB.
func Memory(ctx context.Context, c *lab.Cluster, name string) (int, error) {
	status, err := Program(ctx, c, name)
	if err != nil {
		return 0, err
	}
	raw, err := os.ReadFile(filepath.Join("/proc", strconv.Itoa(status.Pid), "status"))
	if err != nil {
		return 0, fmt.Errorf("memory of %s: %w", name, err)
	}
	for line := range strings.Lines(string(raw)) {
		if rest, ok := strings.CutPrefix(line, "VmRSS:"); ok {
			return strconv.Atoi(strings.Fields(rest)[0])
		}
	}
	return 0, fmt.Errorf("memory of %s: no VmRSS in the kernel's status", name)
}
