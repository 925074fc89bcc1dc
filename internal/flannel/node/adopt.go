package node

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"time"

	"weft.dev/weft/internal/attach"
	"weft.dev/weft/internal/flannel/handover"
	"weft.dev/weft/internal/link"
)

// adopted is the recorded reason of pods that another plugin attached.
const adopted = "attached by flannel's plugin before the agent came to the node"

// adopt writes records of the pods that flannel's plugin attached to the bridge, so that they are served like the agent's own pods: their
// packets are checked, NetworkPolicies are enforced on them, and the agent serves their DEL. The pods' interfaces are not interrupted. A
// pod that cannot be adopted is logged, and its packets are dropped.
func (n *Network) adopt(ctx context.Context, b *bridge) error {
	if n.opts.Results == "" {
		return nil
	}
	pods, err := handover.Read(n.opts.Results, b.files.Network)
	if err != nil {
		n.opts.Log.Warn("some results of the container runtime are unreadable, their pods are not taken over", "error", err)
	}
	if len(pods) == 0 {
		return nil
	}
	boot, err := attach.ReadBootID()
	if err != nil {
		return err
	}
	known := map[attach.Key]bool{}
	for _, rec := range n.opts.Records.Attached() {
		known[rec.Key()] = true
	}
	taken := 0
	for i := range pods {
		key := attach.Key{ContainerID: pods[i].ContainerID, IfName: pods[i].IfName}
		if known[key] {
			continue
		}
		if err := n.adoptPod(ctx, b, &pods[i], boot); err != nil {
			if ctx.Err() != nil {
				return ctx.Err()
			}
			if errors.Is(err, fs.ErrNotExist) { // of an earlier boot, or removed: its DEL is still to come
				n.opts.Log.Debug("a pod that flannel's plugin attached is gone", "attachment", key.String(), "error", err)
				continue
			}
			n.opts.Log.Warn("a pod that flannel's plugin attached is not taken over: delete it, so that it is attached again",
				"attachment", key.String(), "pod", pods[i].Namespace+"/"+pods[i].Name, "error", err)
			continue
		}
		taken++
	}
	if taken > 0 {
		n.opts.Log.Info("pods taken over from flannel's plugin", "pods", taken)
	}
	return nil
}

// closePorts closes the ports of pods that were not taken over. The device group is that of pods' ports, so the table of the bridge family
// drops what enters there. Otherwise such a pod could send with another pod's address, in ARP too.
func closePorts(n *Network, bridge string) error {
	closed, err := handover.Close(n.kernel, bridge, hostGroup)
	if err != nil {
		return fmt.Errorf("close the ports of pods that are not taken over: %w", err)
	}
	if len(closed) > 0 {
		n.opts.Log.Warn("ports of the bridge are closed, their pods are not taken over: delete these pods", "bridge", bridge, "ports", closed)
	}
	return nil
}

func (n *Network) adoptPod(ctx context.Context, b *bridge, pod *handover.Pod, boot string) error {
	unlock, free := n.opts.Records.TryLock(attach.Key{ContainerID: pod.ContainerID, IfName: pod.IfName})
	if !free {
		return errors.New("a request of the container runtime for it is under way")
	}
	defer unlock()
	port, err := handover.Find(pod)
	if err != nil {
		return err
	}
	if port.Bridge != b.Name {
		return fmt.Errorf("link %s is a port of bridge %q, not of %s", port.Name, port.Bridge, b.Name)
	}
	delegated, err := handover.Delegate(b.files.CacheDir, pod.ContainerID, pod.IfName)
	if err != nil {
		return fmt.Errorf("what flannel's plugin passed on: %w", err)
	}
	own := *b
	if len(delegated) > 0 {
		own.files.Delegate = delegated
	}
	rec, err := newRecord(&own, port.Name, pod.Addresses, origin{Reason: adopted})
	if err != nil {
		return err
	}
	rec.Version, rec.ContainerID, rec.IfName, rec.Netns = attach.Version, pod.ContainerID, pod.IfName, pod.Netns
	rec.PodNamespace, rec.PodName, rec.PodUID = pod.Namespace, pod.Name, pod.UID
	rec.MAC, rec.MTU, rec.BootID, rec.State, rec.Created = port.MAC.String(), port.MTU, boot, attach.Attached, time.Now()
	if err := rec.Validate(); err != nil {
		return err
	}
	d, err := detailsOf(&rec)
	if err != nil {
		return err
	}
	pair, err := d.pair(&rec)
	if err != nil {
		return err
	}
	if err := n.opts.Records.Put(ctx, rec); err != nil {
		return fmt.Errorf("write its record: %w", err)
	}
	// With the alias the pair is the agent's own: Create completes it and DEL removes it.
	if err := handover.Mark(port.Name, link.PodAliasPrefix+pair.Owner, hostGroup); err != nil {
		return err
	}
	_, err = n.opts.Node.Pods.Create(ctx, pair)
	return errors.Join(err, d.Write(&rec))
}
