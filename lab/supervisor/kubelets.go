package supervisor

import (
	"context"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"time"

	"weft.dev/weft/lab/addon"
	"weft.dev/weft/lab/image"
	"weft.dev/weft/lab/kubebuild"
	"weft.dev/weft/lab/kubenode"
	"weft.dev/weft/lab/loopback"
	"weft.dev/weft/lab/plan"
	"weft.dev/weft/lab/process"
)

// applets are the commands that the busybox image provides as files.
var applets = []string{ //nolint:gochecknoglobals // a constant table
	"sh", "sleep", "ping", "httpd", "ip", "ls", "cat", "hostname", "arping", "traceroute", "grep", "env", "date", "id", "timeout", "seq",
}

// tools are Debian's programs in place of upstream's test images'. busybox has commands of these names too. But if it is built
// statically, those that resolve names crash on some processors, and its nc lacks options of OpenBSD's that upstream's tests use.
var tools = map[string]string{ //nolint:gochecknoglobals // a constant table
	"/usr/bin/curl": "curl", "/usr/bin/wget": "wget", "/bin/nc": "nc.openbsd", "/usr/bin/dig": "dig", "/usr/bin/nslookup": "nslookup",
}

// toolFiles returns the tools and their libraries, by their path in an image.
func (s *start) toolFiles(ctx context.Context) (map[string]string, error) {
	files := map[string]string{}
	for path, name := range tools {
		found, err := exec.LookPath(name)
		if err != nil {
			return nil, fmt.Errorf("find %s for the pods' images: %w (apt-get install curl wget netcat-openbsd bind9-dnsutils)", name, err)
		}
		files[path] = found
		for _, library := range image.Libraries(ctx, s.group.Run, found) {
			files[library] = library
		}
	}
	return files, nil
}

// bringKubelets starts the programs that run pods on every node, and Weft in pods.
func (s *start) bringKubelets(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, 10*time.Minute)
	defer cancel()
	if err := s.group.Start(ctx, s.plane.ControllerManager()); err != nil {
		return err
	}
	if err := s.group.Start(ctx, s.plane.Scheduler()); err != nil {
		return err
	}
	var archives []string
	err := s.journal.step("images", func() error {
		var err error
		archives, err = s.makeImages(ctx)
		return err
	})
	if err != nil {
		return err
	}
	var parts []func(context.Context) error
	if s.lab.OpenStack != "" {
		parts = append(parts, func(ctx context.Context) error {
			return s.journal.step("OpenStack", func() error { return s.bringOpenStack(ctx) })
		})
	}
	for _, n := range s.lab.AllNodes() {
		kn := kubenode.Node{Node: n, Space: s.spaces.of(n.Name), Group: s.group, Plane: s.plane}
		parts = append(parts, func(ctx context.Context) error {
			return s.journal.step("containerd, kubelet and kube-proxy of "+n.Name, func() error { return s.bringKubelet(ctx, kn, archives) })
		})
	}
	if err := together(ctx, parts...); err != nil {
		return err
	}
	if s.lab.NoWeft {
		return nil
	}
	if err := s.journal.step("Weft in pods", func() error { return s.deployWeft(ctx) }); err != nil {
		return err
	}
	return s.journal.step("DNS in pods", func() error { return s.deployDNS(ctx) })
}

func (s *start) bringKubelet(ctx context.Context, n kubenode.Node, archives []string) error {
	if err := s.installLoopback(n.Node); err != nil {
		return err
	}
	if s.lab.Network.Flannel() {
		// flannel's plugin executes bridge and host-local; with Weft's agent, host ports are portmap's task.
		if err := installBorrowed(n.Node, "portmap", "bridge", "host-local"); err != nil {
			return err
		}
	}
	containerd, err := n.Containerd()
	if err != nil {
		return err
	}
	if err := s.group.Start(ctx, containerd); err != nil {
		return err
	}
	for _, a := range archives {
		if err := n.Import(ctx, a); err != nil {
			return err
		}
	}
	for _, program := range []func() (process.Program, error){n.Kubelet, n.Proxy} {
		p, err := program()
		if err != nil {
			return err
		}
		if err := s.group.Start(ctx, p); err != nil {
			return err
		}
	}
	return s.awaitNode(ctx, n.Name)
}

// installLoopback installs this program as container runtimes' loopback plugin; under that name, it acts as the plugin.
func (s *start) installLoopback(n plan.Node) error {
	dir := filepath.Join(n.Dir, "root", "opt/cni/bin")
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return fmt.Errorf("install the loopback plugin on %s: %w", n.Name, err)
	}
	if err := os.Symlink(s.self, filepath.Join(dir, loopback.Name)); err != nil {
		return fmt.Errorf("install the loopback plugin on %s: %w", n.Name, err)
	}
	return nil
}

// awaitNode waits until the kubelet has registered its node.
func (s *start) awaitNode(ctx context.Context, name string) error {
	for {
		_, err := s.kubectl().run(ctx, "", "get", "node", name)
		if err == nil {
			return nil
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("node %s does not register: %w (last: %w)", name, ctx.Err(), err)
		case <-time.After(300 * time.Millisecond):
		}
	}
}

// makeImages makes the archives that every node loads.
func (s *start) makeImages(ctx context.Context) ([]string, error) {
	images, err := s.images(ctx)
	if err != nil {
		return nil, err
	}
	var archives []string
	for i, im := range images {
		path := s.lab.Path("images", fmt.Sprintf("%d.tar", i))
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			return nil, fmt.Errorf("make images: %w", err)
		}
		f, err := os.Create(path)
		if err != nil {
			return nil, fmt.Errorf("make images: %w", err)
		}
		err = image.Write(f, im)
		if cerr := f.Close(); err == nil {
			err = cerr
		}
		if err != nil {
			return nil, err
		}
		archives = append(archives, path)
	}
	return archives, nil
}

func (s *start) images(ctx context.Context) ([]image.Image, error) {
	busybox, err := exec.LookPath("busybox")
	if err != nil {
		return nil, fmt.Errorf("find busybox: %w (apt-get install busybox-static)", err)
	}
	coredns, err := kubebuild.CoreDNS(s.lab.KubernetesModule)
	if err != nil {
		return nil, err
	}
	links := map[string]string{}
	for _, a := range applets {
		links["/bin/"+a] = "busybox"
	}
	pause := map[string]string{"/bin/busybox": busybox}
	box, err := s.toolFiles(ctx)
	if err != nil {
		return nil, err
	}
	box["/bin/busybox"] = busybox
	agnhost := maps.Clone(box)
	agnhost["/agnhost"] = filepath.Join(s.plane.Bin, "agnhost")
	images := []image.Image{
		{Ref: kubenode.Pause, Entrypoint: []string{"/bin/busybox", "sleep", "infinity"}, Files: pause},
		{Ref: "weft.local/busybox:1", Entrypoint: []string{"/bin/busybox"}, Files: box, Links: links},
		{Ref: "weft.local/agnhost:dev", Entrypoint: []string{"/agnhost"}, Files: agnhost, Links: links},
		{Ref: addon.CoreDNSImage, Entrypoint: []string{"/coredns"}, Files: map[string]string{"/coredns": filepath.Join(s.plane.Bin, coredns)}},
	}
	if s.lab.VPC {
		images = append(images, vpcImages(box, agnhost, links)...)
	}
	if s.lab.NoWeft {
		return images, nil
	}
	weft, err := image.Weft(ctx, s.group.Run, s.lab.WeftBin)
	return append(images, weft), err
}

// deployDNS starts the cluster's DNS, and waits until it answers. A kubelet repeats what failed after delays that grow up to 2 minutes.
func (s *start) deployDNS(ctx context.Context) error {
	if _, err := s.kubectl().run(ctx, addon.CoreDNS, "apply", "-f", "-"); err != nil {
		return err
	}
	if _, err := s.kubectl().run(ctx, "", "-n", "kube-system", "rollout", "status", "deployment/coredns", "--timeout=300s"); err != nil {
		pods, _ := s.kubectl().run(ctx, "", "-n", "kube-system", "get", "pods", "-o", "wide")
		events, _ := s.kubectl().run(ctx, "", "-n", "kube-system", "get", "events", "--field-selector=type=Warning")
		return fmt.Errorf("%w\n%s\n%s", err, pods, events)
	}
	return nil
}

// deployWeft installs Weft as its users do, and waits until it runs and every node is ready.
func (s *start) deployWeft(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, 4*time.Minute)
	defer cancel()
	if err := s.cloudSecret(ctx); err != nil {
		return err
	}
	if _, err := s.kubectl().run(ctx, "", "apply", "-f", filepath.Join(s.lab.DeployDir, s.manifest())); err != nil {
		return err
	}
	var waits [][]string
	if s.lab.NoSwitch {
		waits = [][]string{
			{"label", "nodes", "--all", "weft.dev/open-vswitch=pod"},
			{
				"-n", "weft", "wait", "--for=jsonpath={.status.numberReady}=" + strconv.Itoa(s.lab.Nodes),
				"daemonset/weft-openvswitch", "--timeout=120s",
			},
		}
	}
	waits = append(waits, s.vpcWaits()...)
	waits = append(waits, [][]string{
		{"-n", "weft", "rollout", "status", "daemonset/weft-agent", "--timeout=180s"},
		{"wait", "--for=condition=Ready", "nodes", "--all", "--timeout=120s"},
		// On one node, only one replica of two can run.
		{"-n", "weft", "wait", "--for=condition=Available", "deployment/weft-controller", "--timeout=120s"},
	}...)
	for _, w := range waits {
		if _, err := s.kubectl().run(ctx, "", w...); err != nil {
			pods, _ := s.kubectl().run(ctx, "", "-n", "weft", "get", "pods", "-o", "wide")
			return fmt.Errorf("%w\n%s", err, pods)
		}
	}
	return nil
}
