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

// shared returns what two NetworkAttachmentDefinitions have in common that makes them one network; empty: nothing that is known.
func (m masters) shared(a, b string) string {
	device := m[a]
	switch {
	case a == b:
		return "NetworkAttachmentDefinition"
	case device != "" && device == m[b]:
		return "device " + device + ", the master of both NetworkAttachmentDefinitions"
	}
	return ""
}
