package reach

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"weft.dev/weft/internal/attach"
	"weft.dev/weft/lab"
)

// recordsDir has a node's attachment records.
const recordsDir = "/var/lib/weft/attachments"

// Pod is a pod of a lab with its addresses.
type Pod struct {
	// Name is namespace/name.
	Name string
	IP   netip.Addr
	MAC  net.HardwareAddr
	// Netns is the path of its network namespace, and Node its node.
	Netns string
	Node  lab.Node
}

// Pods returns pods by namespace/name.
func Pods(ctx context.Context, c *lab.Cluster, k kubernetes.Interface, names ...string) (map[string]Pod, error) {
	pods := map[string]Pod{}
	for _, name := range names {
		found, err := podOf(ctx, c, k, name)
		if err != nil {
			return nil, fmt.Errorf("pod %s: %w", name, err)
		}
		pods[name] = found
	}
	return pods, nil
}

func podOf(ctx context.Context, c *lab.Cluster, k kubernetes.Interface, name string) (Pod, error) {
	namespace, podName, _ := strings.Cut(name, "/")
	p, err := k.CoreV1().Pods(namespace).Get(ctx, podName, metav1.GetOptions{})
	if err != nil {
		return Pod{}, err //nolint:wrapcheck // the caller names the pod
	}
	node, err := c.NodeNamed(p.Spec.NodeName)
	if err != nil {
		return Pod{}, err
	}
	rec, err := recordOf(node, name)
	if err != nil {
		return Pod{}, err
	}
	ip, err := netip.ParseAddr(p.Status.PodIP)
	if err != nil {
		return Pod{}, fmt.Errorf("its address: %w", err)
	}
	mac, err := net.ParseMAC(rec.MAC)
	if err != nil {
		return Pod{}, fmt.Errorf("its MAC address: %w", err)
	}
	// A runtime may name the namespace through /var/run, an absolute link that would lead out of the node's root.
	path := rec.Netns
	if rest, ok := strings.CutPrefix(path, "/var/run/"); ok {
		path = "/run/" + rest
	}
	return Pod{Name: name, IP: ip, MAC: mac, Netns: node.Root(path), Node: node}, nil
}

var errRecord = errors.New("it has no attachment record")

// recordOf returns the newest attachment record of a pod.
func recordOf(n lab.Node, name string) (attach.Record, error) {
	var newest attach.Record
	paths, err := filepath.Glob(n.Root(filepath.Join(recordsDir, "*.json")))
	if err != nil {
		return newest, fmt.Errorf("list the attachments of %s: %w", n.Name, err)
	}
	for _, path := range paths {
		raw, err := os.ReadFile(path)
		if errors.Is(err, os.ErrNotExist) {
			continue // it has just ended
		}
		if err != nil {
			return newest, fmt.Errorf("read the attachments of %s: %w", n.Name, err)
		}
		rec, err := attach.ParseRecord(raw)
		if err != nil {
			return newest, fmt.Errorf("%s: %w", path, err)
		}
		if rec.PodNamespace+"/"+rec.PodName == name && !rec.Created.Before(newest.Created) {
			newest = rec
		}
	}
	if newest.Netns == "" {
		return newest, fmt.Errorf("node %s: %w", n.Name, errRecord)
	}
	return newest, nil
}
