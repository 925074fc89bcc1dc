// Package ipam chooses addresses and numbers: subnets for nodes, VNIDs for namespaces, addresses and ofports for pods.
//
// It holds values only. Nothing here is a record of what is in use: that is derived, every time, from the objects that
// use it (HostSubnets, NetNamespaces, attachments), so there is no second store that could leak or disagree. What an
// allocator adds is the order in which it hands things out.
//
// Allocators are not safe for use by several goroutines at once.
package ipam

import "errors"

// ErrExhausted is returned, wrapped in an error that says how much is in use, when nothing is left to hand out.
var ErrExhausted = errors.New("all values are in use")
