package stage

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"weft.dev/weft/lab/ground"
	"weft.dev/weft/lab/ovsnode"
	"weft.dev/weft/lab/plan"
)

// Bridge is the name of every switch's bridge.
const Bridge = "br0"

// Switch is a separate Open vSwitch for a row, in its own namespace, with a bridge on the userspace datapath that drops packets that
// match no flow.
type Switch struct {
	stage *Stage
	place plan.Node
	Space ground.Space

	clients []ground.Space
}

// Switch starts a switch.
func (s *Stage) Switch(ctx context.Context, name string) (*Switch, error) {
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	place, space, err := s.space(ctx, name, nil)
	if err != nil {
		return nil, err
	}
	w := &Switch{stage: s, place: place, Space: space}
	if err := (ovsnode.Switch{Node: place, Space: space, Group: s.group}).Start(ctx); err != nil {
		return nil, errors.Join(err, w.Strike())
	}
	_, err = w.Run(ctx, "ovs-vsctl", "--timeout=30", "add-br", Bridge, "--", "set", "bridge", Bridge, "datapath_type=netdev", "fail_mode=secure",
		"protocols=OpenFlow13,OpenFlow15")
	if err != nil {
		return nil, errors.Join(err, w.Strike())
	}
	return w, nil
}

// Strike removes the switch, and what is attached to it.
func (w *Switch) Strike() error {
	stop := func(program string) {
		w.stage.group.Stop(grace, func(have string) bool { return have == program })
	}
	name := w.place.Name
	stop(name + "/ovs-vswitchd")
	stop(name + "/ovsdb-server")
	errs := []error{os.RemoveAll(w.place.Dir), os.RemoveAll(filepath.Dir(w.place.RunDir))}
	for _, space := range append(w.clients, w.Space) {
		stop("hold/" + space.Name)
		errs = append(errs, os.Remove(filepath.Join(ground.NetnsDir, space.Name)))
	}
	if err := errors.Join(errs...); err != nil {
		return fmt.Errorf("remove the switch %s: %w", name, err)
	}
	return nil
}

// Mgmt returns the path of the bridge's OpenFlow socket.
func (w *Switch) Mgmt() string { return filepath.Join(w.place.RunDir, "openvswitch", Bridge+".mgmt") }

// File returns the path of a file of the switch, as seen outside of its namespace.
func (w *Switch) File(name string) string { return filepath.Join(w.place.Dir, name) }

// Meter reads the processor time of the switch's daemon.
func (w *Switch) Meter() Meter {
	return Meter{daemons: []int{w.stage.group.Pid(w.place.Name + "/ovs-vswitchd")}}
}

// Run runs a command in the switch's place and returns its usage.
func (w *Switch) Run(ctx context.Context, argv ...string) (Ran, error) {
	return run(ctx, w.Space.Enter(argv...))
}

// Ran is a command's usage.
type Ran struct {
	Wall, CPU time.Duration
	Out       string
}

func run(ctx context.Context, argv []string) (Ran, error) {
	cmd := exec.CommandContext(ctx, argv[0], argv[1:]...)
	var out, errs strings.Builder
	cmd.Stdout, cmd.Stderr = &out, &errs
	began := time.Now()
	err := cmd.Run()
	r := Ran{Wall: time.Since(began), Out: out.String()}
	if err != nil {
		return r, fmt.Errorf("%s: %w: %s", strings.Join(argv, " "), err, strings.TrimSpace(errs.String()))
	}
	r.CPU = cmd.ProcessState.UserTime() + cmd.ProcessState.SystemTime()
	return r, nil
}

// Run runs a command on the node.
func (n Node) Run(ctx context.Context, argv ...string) (Ran, error) {
	return run(ctx, n.Enter(argv...))
}
