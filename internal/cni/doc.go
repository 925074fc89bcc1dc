// Package cni holds the words between the CNI plugin and the agent of a node, and the plugin's end of the wire; the agent's
// is package cniserver.
//
// The plugin (what the container runtime executes) keeps no state: it turns its environment and standard input
// into a Request, hands it to the agent through a unix socket, and prints the answer. The agent runs a
// cniserver.Server with a Handler.
//
// The wire is HTTP with JSON: one POST of a Request to Endpoint per connection, answered by a Response.
// The socket is for root alone: its directory has mode 0700 and belongs to the agent's user, the socket has mode
// 0600, and the peer's uid is read from the kernel (SO_PEERCRED) before a byte of the request is.
//
// Requests are validated at both ends, so that a refusal comes early and names the field, and so that the agent
// need not trust the plugin. Errors carry the codes of the CNI specification (version 1.1.0, section "Error");
// what the specification does not number has a code of Weft's own, from 100 on: see Code.
package cni
