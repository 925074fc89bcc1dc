// Package ovnd runs OVN in containers: its databases and northd (StatefulSet weft-ovn) and ovn-controller on each node (DaemonSet
// weft-ovn-controller). It does what a distribution's start scripts do; then the container's process becomes the daemon. There is no shell
// in the image.
//
// # Certificates
//
// There is no certificate authority and no Secret. Each side creates a key and a self-signed certificate ([Keys]) and publishes the
// certificate where only that side can write: a node's agent in the status of its NodeNetwork ([Member]), a controller in the ConfigMap
// weft-ovn-clients ([Northbound]), the databases in the ConfigMap weft-ovn ([Guard]). The guard writes the nodes' certificates into the
// list that the southbound server trusts, and the controllers' into that of the northbound server. A certificate cannot sign others: so a
// node cannot sign a certificate for another node. Its subject is the node's name and nothing else: so Open vSwitch, whose role-based
// access uses the first common name of a subject, finds no other name in it. The guard writes it anew, with the fields that it expects:
// so that no node's text makes a server refuse the whole list.
//
// # Three servers
//
// The number of servers is 1 or 3, and fixed at installation. Three form a cluster (raft) for each database. ovsdb-server trusts one list of
// certificates for its clients and for its cluster, so the servers have addresses in the cluster that are Unix sockets, which the guards relay
// with the certificates of servers only. Server 0 creates a cluster whose ID the ConfigMap weft-ovn does not have; a server without a file of
// the recorded cluster joins it, after it has removed a former server with its address.
//
// # Gate
//
// Nodes reach the southbound database only while it is complete. Its server starts without a port for nodes; the guard adds the port once
// the controller has marked the northbound database as complete ([CompleteKey]) and northd has computed all of it. If the northbound
// database is new, the port is removed before that database is served. Nodes keep their flows meanwhile.
package ovnd
