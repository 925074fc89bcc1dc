// Package ipam chooses addresses and numbers: subnets for nodes, VNIDs for namespaces, addresses and ofports for pods.
//
// It has only values, and stores nothing. What is in use is always derived from the objects that use it (HostSubnets, NetNamespaces,
// attachments), so there is no second store that could leak or disagree. An allocator adds only the order of assignment.
//
// Allocators are not safe for concurrent use.
package ipam

import "errors"

// ErrExhausted is returned when nothing is free. It is wrapped in an error that says how much is in use.
var ErrExhausted = errors.New("all values are in use")
