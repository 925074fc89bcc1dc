// Package resolver keeps names resolved: it asks the node's name servers for the addresses of names, again whenever an answer
// is no longer good, and tells when a name stands for other addresses than before.
//
// A Client asks: the servers of resolv.conf, in turn, over UDP and, where an answer does not fit, over TCP; it follows aliases.
// Names keeps what it was told: an answer is good for its TTL, within bounds; a name that cannot be resolved keeps its last
// answer, and is asked for again soon. What names stand for is kept in a file, so that a restart begins with what was known.
package resolver
