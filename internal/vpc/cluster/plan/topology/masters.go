package topology

import "weft.dev/weft/internal/vpc/objects"

// masters are the devices of NetworkAttachmentDefinitions, by "<name>.<namespace>".
type masters map[string]string

// set reads the configuration of a NetworkAttachmentDefinition, and reports whether its device changed. Without a valid configuration the
// device is not known.
func (m masters) set(definition, config string) (changed bool) {
	parsed, problems := objects.ParseDefinition(config)
	before := m[definition]
	if len(problems) > 0 || parsed.Master == "" {
		delete(m, definition)
	} else {
		m[definition] = parsed.Master
	}
	return m[definition] != before
}

// shared returns why two NetworkAttachmentDefinitions are one network, or may be, as words about an older Subnet; empty: they are two.
func (m masters) shared(a, b string) string {
	if a == b {
		return "of the same NetworkAttachmentDefinition"
	}
	for _, one := range []string{a, b} {
		if m[one] == "" {
			return "which may be of the same network, because there is no valid NetworkAttachmentDefinition " + one
		}
	}
	if m[a] == m[b] {
		return "on the same device " + m[a]
	}
	return ""
}
