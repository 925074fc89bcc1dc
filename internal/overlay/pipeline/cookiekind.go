package pipeline

// CookieKind returns the kind of object that a flow with the cookie was compiled from, "" for a cookie that is not Weft's.
func CookieKind(cookie uint64) string {
	const kindShift = 56
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
