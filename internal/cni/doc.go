// Package cni has the requests and answers between the CNI plugin and the agent of a node, and the plugin's client. The agent's server is
// package cniserver.
//
// The plugin (which the container runtime executes) has no state: it converts its environment and standard input to a Request, sends it
// to the agent through a unix socket, and prints the answer. The agent runs a cniserver.Server with a Handler.
//
// The protocol is HTTP with JSON: one POST of a Request to Endpoint per connection, answered by a Response. Only root may use the socket:
// its directory has mode 0700 and belongs to the agent's user, the socket has mode 0600, and the server reads the peer's uid from the
// kernel (SO_PEERCRED) before it reads the request.
//
// Both sides validate requests, so that a refusal comes early and names the field, and so that the agent does not depend on the plugin's
// validation. Errors have the codes of the CNI specification (version 1.1.0, section "Error"). Other errors have codes of Weft's own,
// from 100 on: see Code.
package cni
