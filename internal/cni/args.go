package cni

import "strings"

// maxName is the maximum length of names from outside, in bytes: the longest name in Kubernetes is that of an object (a DNS subdomain,
// RFC 1123).
const maxName = 253

// maxContainerID is the maximum length of a container id, in bytes. The specification has no limit; runtimes' ids have 64.
const maxContainerID = 128

// Args is the pod's data that a Kubernetes runtime passes in CNI_ARGS. With other runtimes it is empty.
type Args struct {
	// PodNamespace is K8S_POD_NAMESPACE.
	PodNamespace string `json:"podNamespace,omitempty"`
	// PodName is K8S_POD_NAME.
	PodName string `json:"podName,omitempty"`
	// PodUID is K8S_POD_UID; older runtimes do not set it.
	PodUID string `json:"podUID,omitempty"`
	// InfraContainerID is K8S_POD_INFRA_CONTAINER_ID, the sandbox; the same as CNI_CONTAINERID in practice.
	InfraContainerID string `json:"infraContainerID,omitempty"`
}

// ParseArgs parses a CNI_ARGS string: pairs KEY=VALUE separated by semicolons. It ignores unknown keys, because runtimes add their own
// (IgnoreUnknown among them). It refuses a part that is not a pair, a key given twice, and an invalid value, with CodeInvalidEnvironment
// and the part's name.
func ParseArgs(s string) (Args, error) {
	var args Args
	if s == "" {
		return args, nil
	}
	seen := map[string]bool{}
	for part := range strings.SplitSeq(s, ";") {
		key, value, ok := strings.Cut(part, "=")
		if !ok || key == "" || strings.Contains(value, "=") {
			return Args{}, Errorf(CodeInvalidEnvironment, "CNI_ARGS: %q is not KEY=VALUE", part)
		}
		if seen[key] {
			return Args{}, Errorf(CodeInvalidEnvironment, "CNI_ARGS: %s is given twice", key)
		}
		seen[key] = true
		if field := args.field(key); field != nil {
			*field = value
		}
	}
	return args, args.validate()
}

// field returns the field for the value of a key; nil for an unknown key.
func (a *Args) field(key string) *string {
	switch key {
	case "K8S_POD_NAMESPACE":
		return &a.PodNamespace
	case "K8S_POD_NAME":
		return &a.PodName
	case "K8S_POD_UID":
		return &a.PodUID
	case "K8S_POD_INFRA_CONTAINER_ID":
		return &a.InfraContainerID
	default:
		return nil
	}
}

func (a *Args) validate() error {
	for _, arg := range []struct {
		key, value string
		valid      func(string) bool
	}{
		{"K8S_POD_NAMESPACE", a.PodNamespace, isObjectName},
		{"K8S_POD_NAME", a.PodName, isObjectName},
		{"K8S_POD_UID", a.PodUID, IsIdentifier},
		{"K8S_POD_INFRA_CONTAINER_ID", a.InfraContainerID, isContainerID},
	} {
		if arg.value != "" && !arg.valid(arg.value) {
			return Errorf(CodeInvalidEnvironment, "CNI_ARGS: %s=%q is not a valid name", arg.key, arg.value)
		}
	}
	return nil
}

// isObjectName reports whether s is a valid name of a Kubernetes object: lower case letters, digits, '-' and '.', with a letter or digit
// at both ends (RFC 1123).
func isObjectName(s string) bool {
	if s == "" || len(s) > maxName {
		return false
	}
	for i := range len(s) {
		alphanumeric := s[i] >= 'a' && s[i] <= 'z' || s[i] >= '0' && s[i] <= '9'
		inside := i > 0 && i < len(s)-1 && (s[i] == '-' || s[i] == '.')
		if !alphanumeric && !inside {
			return false
		}
	}
	return true
}

// isContainerID reports whether s is a valid container id.
func isContainerID(s string) bool { return IsIdentifier(s) && len(s) <= maxContainerID }

// IsIdentifier reports whether the CNI specification allows s as container id and network name: a letter or digit, followed by letters,
// digits, '_', '.' and '-'.
func IsIdentifier(s string) bool {
	if s == "" || len(s) > maxName {
		return false
	}
	for i := range len(s) {
		c := s[i]
		alphanumeric := c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= '0' && c <= '9'
		if !alphanumeric && (i == 0 || c != '_' && c != '.' && c != '-') {
			return false
		}
	}
	return true
}
