// Package whole is the engine for tunnel devices (VXLAN, IP in IP, WireGuard) that are taken whole: the devices, and every
// neighbour, forwarding entry (FDB), WireGuard peer and route on them, whichever program made it; and for routes into given ranges through gateways. What another program made
// as it is desired stays as it is.
//
// [Engine] works from the change: a commit sends one request for each item, over one socket, and nothing else. A request that
// fails is reported by its key and stops no other. Routes that the engine makes have protocol [Protocol].
package whole
