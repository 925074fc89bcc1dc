package stage

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync/atomic"
	"time"

	"weft.dev/weft/internal/child"
	"weft.dev/weft/lab"
	"weft.dev/weft/lab/controlplane"
	"weft.dev/weft/lab/flannelbuild"
)

// KindNodes is the lab of flannel's daemons with leases in Kubernetes.
const KindNodes = "d"

const (
	daemonConf  = `{"Network":"10.0.0.0/8","EnableNFTables":true,"Backend":{"Type":"vxlan"}}`
	daemonLimit = 2 * time.Minute
)

// BuildFlanneld builds the original flanneld if it is missing, from the modules that c was built from.
func (s *Stage) BuildFlanneld(ctx context.Context, c *lab.Cluster) error {
	return flannelbuild.Flanneld().Ensure(ctx, filepath.Dir(c.Config.KubernetesModule), s.group.Run)
}

// Daemon is a flannel daemon on a node of a lab without a flannel network, with leases in Kubernetes.
type Daemon struct {
	argv    []string
	dir     string
	node    lab.Node
	leases  int
	env     []string
	process *child.Process
}

// Daemon returns the daemon of the Node object name, `weft flanneld` or the original, which Start starts. leases is the number of other
// Node objects.
func (s *Stage) Daemon(n lab.Node, name string, original bool, leases int) (*Daemon, error) {
	d := &Daemon{argv: []string{filepath.Join(s.config.Bin, "weft"), "flanneld"}, dir: n.Dir, node: n, leases: leases, env: append(os.Environ(), "NODE_NAME="+name)}
	if original {
		d.argv = []string{flannelbuild.Flanneld().Path()}
	}
	conf := filepath.Join(d.dir, "bench-net-conf.json")
	if err := os.WriteFile(conf, []byte(daemonConf), 0o600); err != nil {
		return nil, fmt.Errorf("write the network's configuration: %w", err)
	}
	kubeconfig := filepath.Join(filepath.Dir(n.Dir), "kubeconfig", controlplane.Weft)
	d.argv = append(d.argv, "--kube-subnet-mgr", "--kubeconfig-file="+kubeconfig, "--net-config-path="+conf, "--iface="+n.IP.String(), "--ip-masq",
		"--subnet-file="+filepath.Join(d.dir, "bench-subnet.env"))
	return d, nil
}

// Start starts the daemon, and waits until the routes to all other nodes' pods are there.
func (d *Daemon) Start(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, daemonLimit)
	defer cancel()
	argv := d.node.Enter(d.argv...)
	cmd := exec.Command(argv[0], argv[1:]...) //nolint:gosec,noctx // it lives until Stop
	cmd.Env = d.env
	printed, err := cmd.StderrPipe()
	if err != nil {
		return err
	}
	if d.process, err = child.Start(cmd, ""); err != nil {
		return err
	}
	ended := make(chan struct{})
	var last atomic.Value // the last line printed
	last.Store("nothing")
	go func() {
		defer close(ended)
		lines := bufio.NewScanner(printed)
		for lines.Scan() {
			last.Store(lines.Text())
		}
		_, _ = io.Copy(io.Discard, printed) // after a line that is too long
	}()
	ticker := time.NewTicker(time.Second / 4)
	defer ticker.Stop()
	for {
		routes := -1
		ran, err := run(ctx, d.node.Enter("ip", "route", "show", "dev", tunnelDevice))
		if err == nil {
			routes = strings.Count(ran.Out, "\n")
		}
		if routes >= d.leases {
			return nil
		}
		select {
		case <-ticker.C:
		case <-ended:
			return fmt.Errorf("%s ended: %s", d.argv[0], last.Load())
		case <-ctx.Done():
			return fmt.Errorf("%s has %d routes of %d: %w; it printed last: %s", d.argv[0], routes, d.leases, ctx.Err(), last.Load())
		}
	}
}

// Pid returns the process ID of the running daemon.
func (d *Daemon) Pid() int { return d.process.Pid() }

// Stop ends the daemon, and removes its device with the entries, and its rules.
func (d *Daemon) Stop(ctx context.Context) error {
	d.Kill()
	_, err := run(ctx, d.node.Enter("ip", "link", "del", tunnelDevice))
	for _, table := range []string{"ip weft-flannel", "ip6 weft-flannel", "ip flannel-ipv4", "ip6 flannel-ipv6"} {
		_, _ = run(ctx, d.node.Enter(append([]string{"nft", "delete", "table"}, strings.Fields(table)...)...)) // most do not exist
	}
	return err
}

// Kill ends the daemon.
func (d *Daemon) Kill() {
	if d.process != nil {
		d.process.Kill()
		d.process = nil
	}
}
