// Package cookies has the cookies of the pipeline's flows: each identifies the owner of a flow, and the kind of the owner.
package cookies

import (
	"crypto/sha256"
	"encoding/binary"
	"strings"

	"weft.dev/weft/internal/reconcile"
)

// kindShift is the position of the kind.
const kindShift = 56

// Kinds of owners, in the top byte of a cookie. The number of a kind never changes. Neither 0 nor 0xff is a kind: a cookie of 0 has no
// owner, and to the switch a cookie of all ones means "do not change".
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

// Of returns the cookie of an owner's flows: the owner's kind (the text before the first slash) in the top byte, the first 7 bytes of
// the owner's SHA-256 in the others. An owner has the same cookie on every node.
func Of(owner reconcile.Owner) uint64 {
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

// Kind returns the kind of object that a flow with the cookie was compiled from, "" for a cookie that is not Weft's.
func Kind(cookie uint64) string {
	switch cookie >> kindShift {
	case kindCluster:
		return "cluster"
	case kindAttachment:
		return "attachment"
	case kindHostSubnet:
		return "hostsubnet"
	case kindState:
		return "state"
	case kindService:
		return "service"
	case kindNodes:
		return "nodes"
	case kindTargets:
		return "targets"
	case kindLearned:
		return "affinity"
	case kindFirewall:
		return "egressfirewall"
	case kindEgressIP:
		return "egressip"
	case kindMulticast:
		return "multicast"
	case kindPolicyRule:
		return "policyrule"
	case kindPolicyTerm:
		return "policyterm"
	case kindOther:
		return "other"
	}
	return ""
}
