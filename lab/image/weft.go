package image

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
)

// Ref is the name of Weft's image in the manifests.
const Ref = "weft.local/weft:dev"

// Runner runs a command and returns its output.
type Runner func(ctx context.Context, stdin string, argv ...string) (string, error)

// borrowed are Debian's programs in Weft's image: nft for Weft's nftables engine, Open vSwitch for nodes without one, OVN for VPCs, and
// the tools to inspect them.
var borrowed = []struct{ program, pkg string }{ //nolint:gochecknoglobals // a constant table
	{"nft", "nftables"},
	{"ovsdb-server", "openvswitch-switch"},
	{"ovs-vswitchd", "openvswitch-switch"},
	{"ovsdb-tool", "openvswitch-common"},
	{"ovsdb-client", "openvswitch-common"},
	{"ovs-vsctl", "openvswitch-switch"},
	{"ovs-appctl", "openvswitch-common"},
	{"ovs-ofctl", "openvswitch-common"},
	{"ovs-dpctl", "openvswitch-switch"},
	{"ovn-northd", "ovn-central"},
	{"ovn-controller", "ovn-host"},
	{"ovn-nbctl", "ovn-common"},
	{"ovn-sbctl", "ovn-common"},
	{"ovn-appctl", "ovn-common"},
}

// Allocator is the library that the servers of OVN's databases load by LD_PRELOAD (package ovnd), and allocatorPackage is Debian's package.
const (
	Allocator        = "libjemalloc.so.2"
	allocatorPackage = "libjemalloc2"
)

// allocating is the program of the image that loads it.
const allocating = "/usr/sbin/ovsdb-server"

// data are the files beside programs: the schemas of the databases, and the CA certificates for outgoing TLS.
var data = []struct{ path, pkg string }{ //nolint:gochecknoglobals // a constant table
	{"/usr/share/openvswitch/vswitch.ovsschema", "openvswitch-common"},
	{"/usr/share/ovn/ovn-nb.ovsschema", "ovn-common"},
	{"/usr/share/ovn/ovn-sb.ovsschema", "ovn-common"},
	{"/etc/ssl/certs/ca-certificates.crt", "ca-certificates"},
}

// beside returns the path of a library in the folder of a program's C library, which is of the same architecture.
func beside(libraries []string, name string) (string, error) {
	for _, library := range libraries {
		if filepath.Base(library) == "libc.so.6" {
			path := filepath.Join(filepath.Dir(library), name)
			_, err := os.Stat(path)
			return path, err //nolint:wrapcheck // it names the file
		}
	}
	return "", errNoLibc
}

var errNoLibc = errors.New("the program that loads it has no libc.so.6")

// Programs returns the names of Weft's own programs in its image.
func Programs() []string { return []string{"weft", "weft-cni", "weft-flannel", "weft-provider"} }

// Weft describes Weft's image: its programs from the directory bin, and the programs that they run from this machine.
func Weft(ctx context.Context, run Runner, bin string) (Image, error) {
	files := map[string]string{}
	var programs []string
	for _, own := range Programs() {
		program := filepath.Join(bin, own)
		files["/"+own] = program
		programs = append(programs, program)
	}
	for _, b := range borrowed {
		found, err := exec.LookPath(b.program)
		if err != nil {
			return Image{}, fmt.Errorf("find %s: %w (apt-get install %s)", b.program, err, b.pkg)
		}
		files["/usr/sbin/"+b.program] = found
		programs = append(programs, found)
	}
	allocator, err := beside(Libraries(ctx, run, files[allocating]), Allocator)
	if err != nil {
		return Image{}, fmt.Errorf("find %s: %w (apt-get install %s)", Allocator, err, allocatorPackage)
	}
	files[allocator] = allocator
	programs = append(programs, allocator)
	for _, program := range programs {
		for _, library := range Libraries(ctx, run, program) {
			files[library] = library
		}
	}
	for _, d := range data {
		files[d.path] = d.path
	}
	return Image{
		Ref: Ref, Files: files,
		// Open vSwitch's tools use /var/run.
		Env: []string{"OVS_RUNDIR=/run/openvswitch", "OVS_DBDIR=/var/lib/openvswitch"},
		// flannel's manifest works with this image: its daemon, and what its init containers run and copy.
		Links: map[string]string{
			"/var/run": "/run", "/opt/bin/flanneld": "/weft", "/opt/bin/install-conf": "/weft", "/bin/cp": "/weft", "/flannel": "/weft-flannel",
		},
		Labels: map[string]string{
			"org.opencontainers.image.title":       "Weft",
			"org.opencontainers.image.description": "A network for Kubernetes on Open vSwitch, nftables and the Linux kernel",
			"org.opencontainers.image.licenses":    "Apache-2.0 AND GPL-2.0-or-later AND BSD-2-Clause AND GPL-3.0-or-later WITH GCC-exception-3.1",
			"org.opencontainers.image.version":     "dev",
		},
	}, nil
}
