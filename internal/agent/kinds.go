package agent

import (
	"weft.dev/weft/internal/cni"
	flannel "weft.dev/weft/internal/flannel/node"
	"weft.dev/weft/internal/network"
	neutron "weft.dev/weft/internal/neutron/node"
	"weft.dev/weft/internal/node"
	"weft.dev/weft/internal/overlay"
	"weft.dev/weft/internal/overlay/host"
	"weft.dev/weft/internal/overlay/pipeline"
	vpcnode "weft.dev/weft/internal/vpc/node"
)

// Kinds returns the networks other than the overlay that an agent with these options serves. If no object says which network is the default
// one, the first that can be is, in this order.
func Kinds(o *Options) []network.Kind {
	var kinds []network.Kind
	if o.Flannel != nil {
		kinds = append(kinds, flannel.Kind(flannel.KindOptions{Node: o.Node, Flags: o.Flannel, Conflist: o.pluginKeys()}))
	}
	if o.VPC {
		kinds = append(kinds, vpcnode.Kind(vpcnode.Options{Node: o.Node, Database: o.database(), Join: joinOVN(o)}))
	}
	if o.Neutron {
		kinds = append(kinds, neutron.Kind(o.Node))
	}
	return kinds
}

// pluginKeys returns the keys by which a plugin finds an agent that is not in the default place.
func (o *Options) pluginKeys() map[string]string {
	keys := map[string]string{}
	if socket := Socket(o.Paths.RunDir); socket != cni.DefaultSocket {
		keys["socket"] = socket
	}
	if records := Records(o.Paths.StateDir); records != cni.DefaultRecords {
		keys["records"] = records
	}
	return keys
}

// overlayCare returns the part of the node's state that belongs to the overlay.
func overlayCare() node.Care {
	care := node.Care{
		Tables: host.Tables(), Unmanaged: host.Unmanaged(), Devices: host.Devices(),
		Bridges: []node.Bridge{{Name: host.Bridge, Note: pipeline.Note, IsNote: pipeline.IsNote}},
	}
	for _, s := range host.Sysctls() {
		care.Sysctls = append(care.Sysctls, node.Sysctl{Path: s.Path, Value: s.Value})
	}
	return care
}

// cares returns the networks' cares, by name.
func (a *agent) cares() map[string]node.Care {
	cares := map[string]node.Care{overlay.NetworkName: overlayCare()}
	for i := range a.opts.Networks {
		cares[a.opts.Networks[i].Name] = a.opts.Networks[i].Care
	}
	return cares
}
