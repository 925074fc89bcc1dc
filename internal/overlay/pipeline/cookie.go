package pipeline

import (
	"crypto/sha256"
	"encoding/binary"
	"strings"

	"weft.dev/weft/internal/reconcile"
)

// Kinds of owners, as they stand in the top byte of a cookie. A kind keeps its number for good. Neither 0 nor 0xff is
// one: a cookie of 0 is nobody's, and one of all ones means "leave it" to the switch.
const (
	kindOther      = 0x01
	kindCluster    = 0x02
	kindAttachment = 0x03
	kindHostSubnet = 0x04
	kindState      = 0x05
	kindService    = 0x06
	kindNodes      = 0x07
	kindLearned    = 0x08
	kindTargets    = 0x09
	kindFirewall   = 0x0a
	kindEgressIP   = 0x0c
	kindMulticast  = 0x0d
	kindPolicyRule = 0x10
	kindPolicyTerm = 0x11
)

// Owners of the fragments that are no object's.
const (
	// OwnerCluster owns what Static returns.
	OwnerCluster reconcile.Owner = "cluster"
	// OwnerState owns the note with the state's hash.
	OwnerState reconcile.Owner = "state"
	// OwnerNodes owns what Nodes returns.
	OwnerNodes reconcile.Owner = "nodes"
	// OwnerTargets owns what Targets returns.
	OwnerTargets reconcile.Owner = "targets"
)

// Cookie returns the cookie of an owner's flows: the owner's kind (what stands before the first slash) in the top byte,
// the first 7 bytes of the SHA-256 of the owner in the others. The same owner has the same cookie on every node.
func Cookie(owner reconcile.Owner) uint64 {
	const kindShift = 56
	kind, _, _ := strings.Cut(string(owner), "/")
	number := uint64(kindOther)
	switch kind {
	case "cluster":
		number = kindCluster
	case "attachment":
		number = kindAttachment
	case "hostsubnet":
		number = kindHostSubnet
	case "state":
		number = kindState
	case "service":
		number = kindService
	case "nodes":
		number = kindNodes
	case "targets":
		number = kindTargets
	case "egressfirewall":
		number = kindFirewall
	case "egressip":
		number = kindEgressIP
	case "multicast":
		number = kindMulticast
	case "policyrule":
		number = kindPolicyRule
	case "policyterm":
		number = kindPolicyTerm
	case "affinity":
		number = kindLearned
	}
	sum := sha256.Sum256([]byte(owner))
	return number<<kindShift | binary.BigEndian.Uint64(sum[:8])>>8
}
