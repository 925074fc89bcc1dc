package node

import (
	"fmt"

	"weft.dev/weft/internal/nft"
	"weft.dev/weft/internal/node"
)

// table is the guard's table, in families inet and arp.
const table = "weft_vpc"

// Priorities of the guard's chains: before connection tracking (-200), and that of filters.
const (
	priorityClose  = -310
	priorityFilter = 0
)

// Care returns the parts of a node that belong to VPCs.
func Care() node.Care {
	return node.Care{Tables: []nft.Table{{Family: nft.FamilyInet, Name: table}, {Family: nft.FamilyARP, Name: table}}}
}

// guard returns the rules that keep the frames of pods' host veths from the kernel. Open vSwitch's userspace datapath reads the frames in
// addition to the kernel: without the rules, the node would route packets that a pod sends to its host veth's MAC address.
func guard() map[nft.Key]nft.Item {
	items := map[nft.Key]nft.Item{}
	add := func(item nft.Item) { items[item.Key()] = item }
	for _, t := range Care().Tables {
		add(&t)
	}
	for _, chain := range []nft.Chain{
		{Family: nft.FamilyInet, Table: table, Name: "close", Hook: nft.HookPrerouting, Type: nft.TypeFilter, Priority: priorityClose},
		{Family: nft.FamilyARP, Table: table, Name: "close", Hook: nft.HookInput, Type: nft.TypeFilter, Priority: priorityFilter},
	} {
		add(&chain)
		add(&nft.ChainRules{
			Family: chain.Family, Table: table, Chain: chain.Name,
			Rules: []nft.Rule{{Text: fmt.Sprintf("iifgroup %d drop", podGroup), Owner: string(owner)}},
		})
	}
	return items
}
