package host

import (
	"fmt"

	"weft.dev/weft/internal/neutron/pipeline"
	"weft.dev/weft/internal/nft"
)

// toPods is the chain for what leaves by the host's interface. In the direction in which a connection was opened, a program of the node reaches
// a pod only at the address that it has asked for, and by host ports.
//
// Tenants' addresses are unique on a node only. The translation of a Service leads to an endpoint that may be on another node, and the routes
// of this node then lead to the pod that has the same address here. kube-proxy masquerades such packets to HostAddress, from which all pods
// accept packets. Translation in the hook output changes the packet's route, but not the device that later rules of that hook match: so the
// chain is in postrouting, before sources are translated.
//
// IPVS translates without the status dnat. The source is then the one of the route to the Service. A direct connection has the source of the
// pod's route, HostAddress.
func toPods() []nft.Item {
	chain := &nft.Chain{
		Family: nft.FamilyInet, Table: table, Name: "to-pods", Type: nft.TypeFilter, Hook: nft.HookPostrouting, Priority: priorityFilter,
	}
	own := string(pipeline.Owner)
	return []nft.Item{chain, &nft.ChainRules{Family: chain.Family, Table: table, Chain: chain.Name, Rules: []nft.Rule{
		{Text: fmt.Sprintf(`oifname != "%s" accept`, Device), Owner: own}, // most packets cross this rule only
		{Text: "ct direction reply accept", Owner: own},
		{Text: "ct state related accept", Owner: own}, // ICMP errors
		{Text: toHostPort + " accept", Owner: own},
		{Text: "ct status dnat counter drop", Owner: "translated by a Service: the endpoint may be another tenant's pod on another node"},
		{
			Text:  fmt.Sprintf("ip saddr != %s counter drop", pipeline.HostAddress()),
			Owner: "not from the node's address for pods: translated by IPVS, or bound to another address",
		},
	}}}
}
