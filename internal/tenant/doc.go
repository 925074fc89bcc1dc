// Package tenant changes which namespaces are one network, where pods are isolated by VNID: it asks for the change by the
// annotation of NetNamespaces, waits until the controller has made it, and until it is in effect on all nodes. It is for
// operators; what an agent or the controller does is theirs.
package tenant
