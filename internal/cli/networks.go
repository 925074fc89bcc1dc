package cli

import (
	"weft.dev/weft/internal/cleanup"
	flannelclean "weft.dev/weft/internal/flannel/clean"
	flannelsection "weft.dev/weft/internal/flannel/section"
	neutronsection "weft.dev/weft/internal/neutron/section"
	"weft.dev/weft/internal/overlay/clean"
	"weft.dev/weft/internal/status"
	vpcsection "weft.dev/weft/internal/vpc/section"
)

// sections returns the sections of weft status for the networks other than the overlay. A new network adds one line.
func sections() []status.Section {
	return []status.Section{flannelsection.Section(), vpcsection.Section(), neutronsection.Section()}
}

// cleanupParts returns what weft cleanup removes for each network. A new network adds one line.
func cleanupParts() []cleanup.Part {
	return []cleanup.Part{
		clean.Part(), flannelclean.Part(),
	}
}
