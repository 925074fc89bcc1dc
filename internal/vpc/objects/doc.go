// Package objects turns objects of kubeovn.io/v1 into typed values, the input of the compilers of VPCs and gateways.
//
// An invalid field becomes a [Problem] that names the field and what would be valid. The rest of the object is used, except that an invalid
// rule never permits anything: an ACL or policy route with an invalid match drops all packets at its priority.
package objects
