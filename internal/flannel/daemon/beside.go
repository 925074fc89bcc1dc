package daemon

import (
	"bytes"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync/atomic"

	"golang.org/x/sys/unix"

	"weft.dev/weft/internal/flannel/host"
	"weft.dev/weft/internal/nft"
)

// soleName is an abstract socket, which exists once per network namespace: two Weft daemons on a node would change each other's state.
const soleName = "@weft.dev/flanneld"

// sole makes sure that no other Weft daemon serves this node. The node is reserved for this daemon until the socket is closed.
func sole() (net.Listener, error) {
	listener, err := net.Listen("unix", soleName) //nolint:noctx // binds at once
	if errors.Is(err, unix.EADDRINUSE) {
		return nil, errors.New("another weft flanneld, or a weft agent with the flannel network, runs on this node: stop it, or this one")
	}
	if err != nil {
		return nil, fmt.Errorf("claim this node's flannel network: %w", err)
	}
	return listener, nil
}

// beside returns the processes in this network namespace whose name is flanneld, as far as this process sees other processes.
func beside() []int {
	own, err := os.Readlink("/proc/self/ns/net")
	names, globErr := filepath.Glob("/proc/[0-9]*/comm")
	if err != nil || globErr != nil {
		return nil
	}
	var out []int
	for _, path := range names {
		name, err := os.ReadFile(path)
		if err != nil || !bytes.HasPrefix(name, []byte("flanneld")) {
			continue
		}
		dir := filepath.Dir(path)
		pid, err := strconv.Atoi(filepath.Base(dir))
		space, linkErr := os.Readlink(dir + "/ns/net")
		if err == nil && linkErr == nil && pid != os.Getpid() && space == own {
			out = append(out, pid)
		}
	}
	return out
}

// rival is a flanneld that runs on this node as well. The daemon does not remove what it creates while both run.
type rival struct {
	log     *slog.Logger
	served  *atomic.Bool // a lease of the daemon has been in effect
	sighted atomic.Bool  // the flanneld was detected by what it creates
}

// report warns of a flanneld on this node, if there is a sign of one or a process.
func (r *rival) report(sign string) {
	pids := beside()
	if len(pids) == 0 && sign == "" {
		return
	}
	r.log.Warn("flanneld runs on this node as well: stop one of the two", "pids", pids, "sign", sign)
}

// spare reports whether an item that no fragment names stays: flanneld's tables, if they are created while this daemon serves the node.
func (r *rival) spare(key nft.Key, _ nft.Item) bool {
	if !r.served.Load() || !host.Flanneld(key.Table) {
		return false
	}
	if !r.sighted.Swap(true) {
		r.report("table " + strings.Join([]string{string(key.Family), key.Table}, " "))
	}
	return true
}
