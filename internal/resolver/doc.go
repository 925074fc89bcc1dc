// Package resolver keeps names resolved: it queries the node's name servers for the addresses of names, queries again when an answer has
// expired, and reports when the addresses of a name have changed.
//
// A Client sends the queries: to the servers of resolv.conf, in turn, over UDP and, where an answer does not fit, over TCP. It follows
// aliases. Names stores the answers. An answer is valid for its TTL, within bounds. A name that cannot be resolved keeps its last answer
// and is retried soon. The addresses are kept in a file, so that a restart begins with the last known addresses.
package resolver
