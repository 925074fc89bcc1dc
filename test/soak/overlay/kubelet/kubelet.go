// Package kubelet does to pods what kubelets and container runtimes do, and what they do wrong.
package kubelet

import (
	"context"
	"fmt"

	"golang.org/x/sync/errgroup"

	"weft.dev/weft/lab"
	"weft.dev/weft/test/probe"
)

// Add adds a pod as a kubelet does.
func Add(ctx context.Context, c *lab.Cluster, n lab.Node, name string) (*lab.Pod, error) {
	return probe.AddPod(ctx, c, lab.PodSpec{Node: n.Name, Name: name, NoObject: true})
}

// DeleteOnce sends one DEL.
func DeleteOnce(ctx context.Context, p *lab.Pod) error {
	_, err := p.Detach(ctx)
	return err
}

// AddSome adds pods concurrently.
func AddSome(ctx context.Context, c *lab.Cluster, n lab.Node, many int) ([]*lab.Pod, error) {
	pods := make([]*lab.Pod, many)
	var group errgroup.Group
	for i := range pods {
		group.Go(func() (err error) {
			pods[i], err = probe.AddPod(ctx, c, lab.PodSpec{Node: n.Name, Name: fmt.Sprintf("kill-%d", i), NoObject: true})
			return err
		})
	}
	return pods, group.Wait()
}

// Forget makes the runtime lose a sandbox without a DEL: its namespace is removed, and the runtime's data about it.
func Forget(ctx context.Context, p *lab.Pod) error {
	script := `umount -l /run/netns/$0; rm -f /run/netns/$0 /var/lib/cni/pods/$0; ! [ -e /run/netns/$0 ]`
	_, err := probe.Run(ctx, p.Node.Enter("sh", "-c", script, p.Sandbox.ID))
	return err
}
