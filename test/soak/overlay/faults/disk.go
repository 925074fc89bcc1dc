package faults

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"strings"

	"weft.dev/weft/lab"
	"weft.dev/weft/test/probe"
	"weft.dev/weft/test/soak/losses"
	"weft.dev/weft/test/soak/overlay/kubelet"
	"weft.dev/weft/test/soak/overlay/program"
)

// diskFaults are the faults of the records' disk. Meanwhile the records are on a small file system of their own.
func diskFaults() []Fault {
	return []Fault{
		{Name: "the disk of the records is full", Spares: losses.All, Kills: []string{"n1/weft-agent"}, Do: func(ctx context.Context, s *Scene, n lab.Node) (string, error) {
			return s.onSmallDisk(ctx, n, func() (string, error) { return s.fullDisk(ctx, n) })
		}},
		{Name: "the disk of the records becomes read-only", Spares: losses.All, Kills: []string{"n1/weft-agent"}, Do: func(ctx context.Context, s *Scene, n lab.Node) (string, error) {
			return s.onSmallDisk(ctx, n, func() (string, error) { return s.readOnlyDisk(ctx, n) })
		}},
	}
}

const (
	// stateDir is the agent's state directory on the node.
	stateDir = "/var/lib/weft"
	// filler is the file that fills the disk.
	filler = stateDir + "/filler"
)

// onSmallDisk runs f while the agent keeps its records on a file system of 1 MiB.
func (s *Scene) onSmallDisk(ctx context.Context, n lab.Node, f func() (string, error)) (note string, err error) {
	shell := func(ctx context.Context, script string) error {
		_, err := probe.Run(ctx, n.Enter("sh", "-ec", script))
		return err
	}
	err = program.WhileAway(ctx, s.Cluster, n, func() error {
		return shell(ctx, `cp -a `+stateDir+` /run/wtdisk; mount -t tmpfs -o size=1m,mode=0700 wtdisk `+stateDir+`; cp -a /run/wtdisk/. `+stateDir)
	})
	if err != nil {
		return "", err
	}
	note, err = f()
	back := program.WhileAway(context.WithoutCancel(ctx), s.Cluster, n, func() error {
		return shell(context.WithoutCancel(ctx), `rm -rf /run/wtdisk; cp -a `+stateDir+` /run/wtdisk; umount -l `+stateDir+
			`; rm -rf `+stateDir+`/attachments; cp -a /run/wtdisk/. `+stateDir+`; rm -rf /run/wtdisk`)
	})
	return note, errors.Join(err, back)
}

// fullDisk fills the disk: ADD fails with a clear error and leaves nothing, DEL works, a restarted agent serves the existing pods, and
// ADD works as soon as there is space.
func (s *Scene) fullDisk(ctx context.Context, n lab.Node) (note string, err error) {
	leaving, err := kubelet.AddSome(ctx, s.Cluster, n, 3)
	if err != nil {
		return "", err
	}
	// The error is expected: it writes until the disk is full.
	_, _ = probe.Run(ctx, n.Enter("sh", "-c", "cat /dev/zero >"+filler))
	p, err := s.Cluster.AddPod(ctx, lab.PodSpec{Node: n.Name, Name: "full", NoObject: true})
	failure, known := probe.AsFailure(err)
	switch {
	case err == nil:
		return "", errors.Join(errors.New("ADD succeeded on a full disk"), probe.Detach(ctx, p))
	case !known || !strings.Contains(failure.Error(), "no space left"):
		return "", fmt.Errorf("the error of ADD on a full disk does not name the reason: %w", err)
	}
	note = failure.Error()
	var errs []error
	for _, p := range append(leaving, p) {
		if err := kubelet.DeleteOnce(ctx, p); err != nil {
			errs = append(errs, fmt.Errorf("DEL on a full disk: %w", err))
		}
	}
	errs = append(errs, program.WhileAway(ctx, s.Cluster, n, func() error { return nil }), s.Cast.Reach(ctx))
	_, err = probe.Run(ctx, n.Enter("rm", filler))
	for _, p := range append(leaving, p) {
		errs = append(errs, probe.Detach(ctx, p))
	}
	return note, errors.Join(append(errs, err, s.Cast.Fresh(ctx, n.Name, "room"))...)
}

// readOnlyDisk makes the file system read-only, as after an error. DEL cannot work then, and returns the reason.
func (s *Scene) readOnlyDisk(ctx context.Context, n lab.Node) (note string, err error) {
	remount := func(how string) error {
		_, err := probe.Run(context.WithoutCancel(ctx), n.Enter("mount", "-o", "remount,"+how, stateDir))
		return err
	}
	leaving, err := kubelet.AddSome(ctx, s.Cluster, n, 2)
	if err != nil {
		return "", err
	}
	if err := remount("ro"); err != nil {
		return "", err
	}
	var said bytes.Buffer
	p, addErr := s.Cluster.AddPod(ctx, lab.PodSpec{Node: n.Name, Name: "read-only", NoObject: true})
	if failure, known := probe.AsFailure(addErr); !known || !strings.Contains(failure.Error(), "read-only file system") {
		err = fmt.Errorf("the error of ADD on a read-only disk does not name the reason: %w", addErr)
	} else {
		said.WriteString(failure.Error())
	}
	if delErr := kubelet.DeleteOnce(ctx, leaving[0]); delErr != nil && !strings.Contains(delErr.Error(), "read-only file system") {
		err = errors.Join(err, fmt.Errorf("the error of DEL on a read-only disk does not name the reason: %w", delErr))
	}
	err = errors.Join(err, s.Cast.Reach(ctx), remount("rw"))
	for _, p := range append(leaving, p) {
		err = errors.Join(err, probe.Detach(ctx, p))
	}
	return said.String(), errors.Join(err, s.Cast.Fresh(ctx, n.Name, "writable"))
}
