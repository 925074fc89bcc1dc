// Package vpc contains the network of VPCs: private networks of Kube-OVN's users, on OVN.
//
// Its packages: objects (API objects to typed values), northbound (the compiler of OVN's northbound rows), gateway (the compiler of NAT
// gateways), binding (which Subnet a pod is bound to), cluster (the part of the controller) and node (the part of the agent).
package vpc
