package supervisor

import (
	"context"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"

	"weft.dev/weft/lab/addon"
	"weft.dev/weft/lab/image"
	"weft.dev/weft/lab/kubebuild"
	"weft.dev/weft/lab/kubenode"
	"weft.dev/weft/lab/plan"
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

// Images in users' manifests, for which a lab without a registry has its own.
const (
	gatewayImage = "docker.io/kubeovn/vpc-nat-gateway:v1.12.4"
	webImage     = "docker.io/library/nginx:alpine"
)

// images makes the images of pods: a lab has no registry.
type images struct {
	lab plan.Lab
	bin string // directory of Kubernetes' programs
	run func(ctx context.Context, stdin string, argv ...string) (string, error)
}

// archives makes the archives that every node loads.
func (m images) archives(ctx context.Context) ([]string, error) {
	images, err := m.all(ctx)
	if err != nil {
		return nil, err
	}
	var archives []string
	for i, im := range images {
		path := m.lab.Path("images", fmt.Sprintf("%d.tar", i))
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

func (m images) all(ctx context.Context) ([]image.Image, error) {
	busybox, err := exec.LookPath("busybox")
	if err != nil {
		return nil, fmt.Errorf("find busybox: %w (apt-get install busybox-static)", err)
	}
	coredns, err := kubebuild.CoreDNS(m.lab.KubernetesModule)
	if err != nil {
		return nil, err
	}
	links := map[string]string{}
	for _, a := range applets {
		links["/bin/"+a] = "busybox"
	}
	pause := map[string]string{"/bin/busybox": busybox}
	box, err := m.toolFiles(ctx)
	if err != nil {
		return nil, err
	}
	box["/bin/busybox"] = busybox
	agnhost := maps.Clone(box)
	agnhost["/agnhost"] = filepath.Join(m.bin, "agnhost")
	images := []image.Image{
		{Ref: kubenode.Pause, Entrypoint: []string{"/bin/busybox", "sleep", "infinity"}, Files: pause},
		{Ref: "weft.local/busybox:1", Entrypoint: []string{"/bin/busybox"}, Files: box, Links: links},
		{Ref: "weft.local/agnhost:dev", Entrypoint: []string{"/agnhost"}, Files: agnhost, Links: links},
		{Ref: addon.CoreDNSImage, Entrypoint: []string{"/coredns"}, Files: map[string]string{"/coredns": filepath.Join(m.bin, coredns)}},
	}
	if m.lab.VPC {
		images = append(images, vpcImages(box, agnhost, links)...)
	}
	if m.lab.NoWeft {
		return images, nil
	}
	weft, err := image.Weft(ctx, m.run, m.lab.WeftBin)
	return append(images, weft), err
}

// toolFiles returns the tools and their libraries, by their path in an image.
func (m images) toolFiles(ctx context.Context) (map[string]string, error) {
	files := map[string]string{}
	for path, name := range tools {
		found, err := exec.LookPath(name)
		if err != nil {
			return nil, fmt.Errorf("find %s for the pods' images: %w (apt-get install curl wget netcat-openbsd bind9-dnsutils)", name, err)
		}
		files[path] = found
		for _, library := range image.Libraries(ctx, m.run, found) {
			files[library] = library
		}
	}
	return files, nil
}

// vpcImages returns the lab's own images with the names in the example manifests: a NAT gateway's, which only sleeps, and a web server
// that answers on port 80 like agnhost's netexec, with the sender's address at /clientip.
func vpcImages(box, agnhost, links map[string]string) []image.Image {
	return []image.Image{
		{Ref: gatewayImage, Entrypoint: []string{"/bin/busybox"}, Files: box, Links: links},
		{Ref: webImage, Entrypoint: []string{"/agnhost", "netexec", "--http-port=80"}, Files: agnhost, Links: links},
	}
}
