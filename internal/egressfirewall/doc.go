// Package egressfirewall compiles EgressNetworkPolicies to what a namespace's pods may reach outside the cluster. It is pure:
// plain values in, plain values out; it knows no switch, no API server, no name server and no clock.
//
// An Index holds the policies, the VNIDs and the addresses of names, and tells which namespaces' firewalls are others since it
// was asked last. A Firewall is a list of ranges with a verdict each, of which the longest that holds a destination decides: any
// list of rules of which the first that matches decides comes to such a list, without the rules that others hide. So a rule
// that comes or goes, and an address that a name has now, touch the ranges that they are about and no others.
//
// What cannot be judged is closed: several policies in a namespace, a policy with an error, namespaces that share a VNID, and, of
// a name that is not known, everything that the rule might deny.
//
// Package oracle judges destinations by the words of the API alone, for tests.
package egressfirewall
