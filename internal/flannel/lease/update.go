package lease

// Update is a store's report about the leases of other nodes.
type Update struct {
	// All reports that Set is complete: leases that are not in it do not exist any more.
	All bool
	// Set has leases by the name of their origin, a Node or an etcd key.
	Set map[string]Claim
	// Delete names leases that do not exist any more, even if Set has them.
	Delete []string
	// Problems has the errors of leases in Set, by name: an invalid family, or all, of such a lease is left out.
	Problems map[string]error
	// Restart, if not nil, is why the node's generation has to restart: its configuration changed, or its own lease.
	Restart error
}
