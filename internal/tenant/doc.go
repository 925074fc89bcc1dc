// Package tenant changes which namespaces share a network, in clusters where pods are isolated by VNID. It requests the change by the
// annotation of NetNamespaces, and waits until the controller has made it and until it is in effect on all nodes. It is for operators, and
// has no code of agent and controller.
package tenant
