// Package objects turns objects of kubeovn.io/v1 into typed values, which the compilers of VPCs and gateways take.
//
// A field that cannot be used becomes a [Problem] that names the field and what would be right. The rest of the object is
// used, except that a rule that cannot be read never opens anything: an ACL or policy route with an invalid match drops all
// packets at its priority.
package objects
