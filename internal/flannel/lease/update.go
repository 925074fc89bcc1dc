package lease

// Update is what a store reports of the leases of other nodes.
type Update struct {
	// All says that Set is complete: leases that are not in it are gone.
	All bool
	// Set has leases by the name of what they come from, a Node or an etcd key.
	Set map[string]Claim
	// Delete names those that are gone, also where Set has them.
	Delete []string
	// Problems says what is wrong with leases in Set, by name: a family, or all, of such a lease is left out.
	Problems map[string]error
	// Restart, if not nil, says why the node has to begin anew: its configuration changed, or its own lease.
	Restart error
}
