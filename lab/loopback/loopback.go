// Package loopback is the CNI plugin that container runtimes run in every sandbox before the cluster's network: it sets lo up. containerd
// requires it to start a pod, and the lab installs no further packages for it.
package loopback

import (
	"errors"
	"fmt"
	"net"

	"github.com/containernetworking/cni/pkg/skel"
	"github.com/containernetworking/cni/pkg/types"
	types100 "github.com/containernetworking/cni/pkg/types/100"
	"github.com/containernetworking/cni/pkg/version"
	"github.com/vishvananda/netlink"

	"weft.dev/weft/lab/ground"
)

// Name is the plugin's name in runtimes.
const Name = "loopback"

// Main runs the plugin with the runtime's environment.
func Main() {
	skel.PluginMainFuncs(skel.CNIFuncs{Add: add, Check: check, Del: del}, version.All, "loopback of weft-lab")
}

func add(args *skel.CmdArgs) error {
	conf, err := parse(args.StdinData)
	if err != nil {
		return err
	}
	if err := ground.Do(args.Netns, func() error { return setUp(args.IfName) }); err != nil {
		return err
	}
	zero := 0
	return types.PrintResult(&types100.Result{
		CNIVersion: conf.CNIVersion,
		Interfaces: []*types100.Interface{{Name: args.IfName, Mac: "00:00:00:00:00:00", Sandbox: args.Netns}},
		IPs:        []*types100.IPConfig{{Interface: &zero, Address: net.IPNet{IP: net.IPv4(127, 0, 0, 1), Mask: net.CIDRMask(8, 32)}}},
	}, conf.CNIVersion)
}

func parse(stdin []byte) (types.NetConf, error) {
	version, err := (&version.ConfigDecoder{}).Decode(stdin)
	if err != nil {
		return types.NetConf{}, fmt.Errorf("read the network configuration: %w", err)
	}
	return types.NetConf{CNIVersion: version}, nil
}

// del does not change lo: it is removed with its namespace, which may be removed already.
func del(*skel.CmdArgs) error { return nil }

var errDown = errors.New("the interface is down")

func check(args *skel.CmdArgs) error {
	return ground.Do(args.Netns, func() error {
		link, err := netlink.LinkByName(args.IfName)
		if err != nil {
			return fmt.Errorf("find %s: %w", args.IfName, err)
		}
		if link.Attrs().Flags&net.FlagUp == 0 {
			return fmt.Errorf("%s: %w", args.IfName, errDown)
		}
		return nil
	})
}

func setUp(name string) error {
	link, err := netlink.LinkByName(name)
	if err != nil {
		return fmt.Errorf("find %s: %w", name, err)
	}
	if err := netlink.LinkSetUp(link); err != nil {
		return fmt.Errorf("set %s up: %w", name, err)
	}
	return nil
}
