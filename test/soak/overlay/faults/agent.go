package faults

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"
	"time"

	"golang.org/x/sync/errgroup"

	"weft.dev/weft/lab"
	"weft.dev/weft/test/probe"
	"weft.dev/weft/test/soak/losses"
	"weft.dev/weft/test/soak/overlay/kubelet"
	"weft.dev/weft/test/soak/overlay/program"
)

// agentFaults are the faults of the agent.
func agentFaults() []Fault {
	away := func(name string, spares losses.Scope, opens bool, command ...string) Fault {
		return Fault{Name: name, Spares: spares, Opens: opens, Kills: []string{"n1/weft-agent"}, Do: func(ctx context.Context, s *Scene, n lab.Node) (string, error) {
			return "", program.WhileAway(ctx, s.Cluster, n, func() error {
				_, err := probe.Run(ctx, n.Enter(command...))
				return err
			})
		}}
	}
	ofctl := []string{"ovs-ofctl", "-O", "OpenFlow15"}
	return []Fault{
		{Name: "agent hangs", Spares: losses.All, Do: func(ctx context.Context, s *Scene, n lab.Node) (string, error) {
			return "", program.Hang(ctx, s.Cluster, program.Agent(n), 3*time.Second, func() error { return nil })
		}},
		{Name: "DEL while the agent is away", Spares: losses.All, Kills: []string{"n1/weft-agent"}, Do: delWhileAway},
		{Name: "a truncated record", Spares: losses.All, Kills: []string{"n1/weft-agent"}, Do: halfRecord},
		away("flows deleted while the agent is away", losses.Far, false, append(ofctl, "del-flows", "br0")...),
		away("a flow altered while the agent is away", losses.Far, false, append(ofctl, "mod-flows", "br0", "table=90,actions=drop")...),
		away("the bridge deleted while the agent is away", losses.Far, false, "ovs-vsctl", "del-br", "br0"),
		away("rules deleted while the agent is away", losses.All, true, "nft", "delete", "table", "inet", "weft"),
		away("a stray port added while the agent is away", losses.All, false, "ovs-vsctl", "add-port", "br0", "wtstray", "--", "set", "Interface", "wtstray", "type=internal"),
		{Name: "agents of both nodes killed at once", Spares: losses.All, Kills: []string{"n1/weft-agent", "n2/weft-agent"}, Do: func(ctx context.Context, s *Scene, _ lab.Node) (string, error) {
			var group errgroup.Group
			for _, n := range s.Cluster.Nodes() {
				group.Go(func() error {
					old, err := probe.Signal(ctx, s.Cluster, program.Agent(n), syscall.SIGKILL)
					return errors.Join(err, program.AwaitAgent(ctx, s.Cluster, n, old))
				})
			}
			return "", group.Wait()
		}},
		{Name: "agent killed again and again while it starts", Spares: losses.All, Kills: []string{"n1/weft-agent"}, Do: func(ctx context.Context, s *Scene, n lab.Node) (string, error) {
			for range 9 {
				if err := probe.Kill(ctx, s.Cluster, program.Agent(n), syscall.SIGKILL); err != nil {
					return "", err
				}
				<-time.After(s.Within(500 * time.Millisecond))
			}
			old, err := probe.Signal(ctx, s.Cluster, program.Agent(n), syscall.SIGKILL)
			if err != nil {
				return "", err
			}
			return "", program.AwaitAgent(ctx, s.Cluster, n, old)
		}},
	}
}

// delWhileAway deletes pods while there is no agent, as a kubelet does, which repeats DEL until it succeeds.
func delWhileAway(ctx context.Context, s *Scene, n lab.Node) (string, error) {
	pods, err := kubelet.AddSome(ctx, s.Cluster, n, 3)
	if err != nil {
		return "", err
	}
	old, err := probe.Signal(ctx, s.Cluster, program.Agent(n), syscall.SIGKILL)
	if err != nil {
		return "", err
	}
	refused := 0
	var group errgroup.Group
	for _, p := range pods {
		if kubelet.DeleteOnce(ctx, p) != nil {
			refused++
		}
		group.Go(func() error { return probe.Detach(ctx, p) })
	}
	return fmt.Sprintf("%d of 3 requests answered with try again", refused), errors.Join(group.Wait(), program.AwaitAgent(ctx, s.Cluster, n, old))
}

// halfRecord truncates a pod's record as a power cut would. The agent rebuilds it from the runtime's result of the ADD, and the pod is
// not affected.
func halfRecord(ctx context.Context, s *Scene, n lab.Node) (note string, err error) {
	p, err := kubelet.Add(ctx, s.Cluster, n, "half")
	if err != nil {
		return "", err
	}
	path, raw, err := recordOf(p)
	if err != nil {
		return "", err
	}
	if err := program.WhileAway(ctx, s.Cluster, n, func() error { return os.WriteFile(path, raw[:len(raw)/2], 0o600) }); err != nil {
		return "", err
	}
	if _, err := probe.Await(ctx, probe.Patience, "the agent rebuilding "+path, func(context.Context) error {
		rebuilt, err := os.ReadFile(path)
		if err == nil && !json.Valid(rebuilt) {
			err = errors.New("the record is not whole")
		}
		return err
	}); err != nil {
		return "", err
	}
	if err := s.Cast.Reached(ctx, p); err != nil {
		return "", err
	}
	if err := probe.Detach(ctx, p); err != nil {
		return "", err
	}
	broken := filepath.Join(filepath.Dir(path), "broken", filepath.Base(path))
	if _, err := os.Stat(broken); !errors.Is(err, fs.ErrNotExist) {
		return "", fmt.Errorf("%s is left of a record that was rebuilt (%w)", broken, err)
	}
	return "", nil
}

// recordOf returns the file of a pod's attachment, and its content.
func recordOf(p *lab.Pod) (path string, raw []byte, err error) {
	found, err := filepath.Glob(filepath.Join(p.Node.Dir, "root/var/lib/weft/attachments/*"))
	if err != nil {
		return "", nil, err
	}
	for _, path := range found {
		if raw, err := os.ReadFile(path); err == nil && bytes.Contains(raw, []byte(p.Sandbox.ID)) {
			return path, raw, nil
		}
	}
	return "", nil, fmt.Errorf("no record of %s among %d files", p.Sandbox.ID, len(found))
}
