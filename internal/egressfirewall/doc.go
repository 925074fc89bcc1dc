// Package egressfirewall compiles EgressNetworkPolicies to firewalls, which define what the pods of a namespace may reach outside the
// cluster. It is pure: plain values in, plain values out, without access to a switch, an API server, a name server or a clock.
//
// An Index holds the policies, the VNIDs and the addresses of names, and returns the firewalls that have changed since the last call. A
// Firewall is a list of ranges with a verdict each, where the longest matching range decides. Every list of rules in which the first match
// decides can be compiled to such a list, without the rules that are covered by others. So a new or deleted rule, or a new address of a
// name, changes only the ranges that it is about.
//
// Undecidable cases are closed: several policies in a namespace, a policy with an error, namespaces that share a VNID, and, for a name with
// unknown addresses, everything that the rule might deny.
//
// Package oracle evaluates destinations by the text of the API alone, for tests.
package egressfirewall
