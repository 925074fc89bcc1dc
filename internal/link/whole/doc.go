// Package whole is the engine for tunnel devices (VXLAN, IP in IP, WireGuard) that it manages completely: the devices, and every neighbour,
// forwarding entry (FDB), WireGuard peer and route on them, whichever program made it. It also manages routes into given ranges through
// gateways. What another program made as desired stays unchanged.
//
// [Engine] works from the change: a commit sends one request for each item, over one socket, and nothing else. A request that fails is
// reported by its key and does not affect the others. Routes that the engine adds have protocol [Protocol].
package whole
