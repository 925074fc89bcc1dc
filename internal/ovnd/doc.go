// Package ovnd runs OVN in containers: its databases and northd (StatefulSet weft-ovn) and ovn-controller on each node (DaemonSet
// weft-ovn-controller). It prepares what a distribution's start scripts prepare, and the container becomes the daemon. There is no shell in
// the image.
//
// # Certificates
//
// There is no certificate authority and no Secret. Each side makes a key and a self-signed certificate ([Keys]) and shows the certificate
// where only that side can write: a node's agent in the status of its NodeNetwork ([Member]), a controller in the ConfigMap weft-ovn-clients
// ([Northbound]), the databases in the ConfigMap weft-ovn ([Guard]). The guard makes of the nodes' certificates the list that the southbound
// server trusts, and of the controllers' the northbound server's. A certificate is no authority: a node cannot sign another's.
//
// # Gate
//
// Nodes reach the southbound database only while it is complete. Its server starts without a port for them; the guard adds the port once the
// controller has marked the northbound database as complete ([CompleteKey]) and northd has computed all of it. A northbound database that is
// new takes the port away before it is served. Nodes keep their flows meanwhile.
package ovnd
