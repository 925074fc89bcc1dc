// Package handover reads which pods flannel's plugin has attached to a node, from the container runtime's cache of results.
package handover

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// ResultsDir is the directory in which libcni keeps the result of each ADD until its DEL.
const ResultsDir = "/var/lib/cni/results"

// resultKind is the kind in libcni's files since version 0.7.
const resultKind = "cniCacheV1"

// Pod is a pod's interface that a plugin has attached.
type Pod struct {
	ContainerID, IfName string
	// Netns is the path of the pod's network namespace.
	Netns string
	// Namespace, Name and UID are the pod's, from the runtime.
	Namespace, Name, UID string
	Addresses            []netip.Prefix
	// Bridge is the result's first interface on the host: that of the delegate bridge.
	Bridge string
}

// cached is a file of libcni.
type cached struct {
	Kind        string      `json:"kind"`
	ContainerID string      `json:"containerId"`
	IfName      string      `json:"ifName"`
	Network     string      `json:"networkName"`
	Netns       string      `json:"netns"`
	Args        [][2]string `json:"cniArgs"`
	Result      struct {
		Interfaces []struct {
			Name    string `json:"name"`
			Sandbox string `json:"sandbox"`
		} `json:"interfaces"`
		IPs []struct {
			Address   string `json:"address"`
			Interface *int   `json:"interface"`
		} `json:"ips"`
	} `json:"result"`
}

// Read returns the pods of a network, from libcni's files in a directory. An unreadable file is reported in the error, and does not affect
// the others. Without the directory there are no pods.
func Read(dir, network string) ([]Pod, error) {
	entries, err := os.ReadDir(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("results of the container runtime: %w", err)
	}
	var pods []Pod
	var errs []error
	for _, entry := range entries {
		if !strings.HasPrefix(entry.Name(), network+"-") || !entry.Type().IsRegular() {
			continue
		}
		path := filepath.Join(dir, entry.Name())
		text, err := os.ReadFile(path)
		if errors.Is(err, fs.ErrNotExist) {
			continue // its DEL came meanwhile
		}
		var pod *Pod
		if err == nil {
			pod, err = parse(text, network)
		}
		if err != nil {
			errs = append(errs, fmt.Errorf("%s: %w", path, err))
		} else if pod != nil {
			pods = append(pods, *pod)
		}
	}
	return pods, errors.Join(errs...)
}

// parse parses a file of libcni; it returns nil for another network's.
func parse(text []byte, network string) (*Pod, error) {
	var c cached
	if err := json.Unmarshal(text, &c); err != nil {
		return nil, fmt.Errorf("not a result that libcni keeps: %w", err)
	}
	switch {
	case c.Kind != resultKind:
		return nil, fmt.Errorf("kind %q: it should be %q", c.Kind, resultKind)
	case c.Network != network:
		return nil, nil //nolint:nilnil // another network's file is no error
	case c.ContainerID == "" || c.IfName == "":
		return nil, errors.New("containerId or ifName is missing")
	}
	pod := &Pod{ContainerID: c.ContainerID, IfName: c.IfName, Netns: c.Netns}
	own := -1
	for i, link := range c.Result.Interfaces {
		switch {
		case link.Sandbox == "" && pod.Bridge == "":
			pod.Bridge = link.Name
		case link.Sandbox != "" && link.Name == c.IfName && own < 0:
			own = i
			pod.Netns = link.Sandbox
		}
	}
	if !filepath.IsAbs(pod.Netns) {
		return nil, fmt.Errorf("the pod's network namespace %q is not an absolute path", pod.Netns)
	}
	for _, arg := range c.Args {
		switch arg[0] {
		case "K8S_POD_NAMESPACE":
			pod.Namespace = arg[1]
		case "K8S_POD_NAME":
			pod.Name = arg[1]
		case "K8S_POD_UID":
			pod.UID = arg[1]
		}
	}
	for _, ip := range c.Result.IPs {
		if ip.Interface != nil && *ip.Interface != own {
			continue
		}
		prefix, err := netip.ParsePrefix(ip.Address)
		if err != nil {
			return nil, fmt.Errorf("result.ips: address %q: %w", ip.Address, err)
		}
		pod.Addresses = append(pod.Addresses, prefix)
	}
	if len(pod.Addresses) == 0 {
		return nil, errors.New("result.ips: the pod has no address")
	}
	slices.SortStableFunc(pod.Addresses, func(a, b netip.Prefix) int { return a.Addr().BitLen() - b.Addr().BitLen() })
	return pod, nil
}

// Delegate returns the configuration that flannel's plugin passed to the delegate for a pod, from the plugin's own file; nil if there is
// none.
func Delegate(dir, container, ifName string) (json.RawMessage, error) {
	for _, name := range []string{container + "@" + ifName, container} {
		text, err := os.ReadFile(filepath.Join(dir, name))
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err == nil && !json.Valid(text) {
			err = fmt.Errorf("%s is not JSON", filepath.Join(dir, name))
		}
		return text, err
	}
	return nil, nil
}

// Port is the host veth of a pod's interface.
type Port struct {
	Name string
	// MAC and MTU are those of the pod's interface.
	MAC net.HardwareAddr
	MTU int
	// Bridge is the bridge of which it is a port; empty: none.
	Bridge string
}
