package cli

import (
	"weft.dev/weft/internal/cleanup"
	flannelclean "weft.dev/weft/internal/flannel/clean"
	flanneltell "weft.dev/weft/internal/flannel/tell"
	neutrontell "weft.dev/weft/internal/neutron/tell"
	"weft.dev/weft/internal/overlay/clean"
	"weft.dev/weft/internal/status"
	vpctell "weft.dev/weft/internal/vpc/tell"
)

// sections returns the sections of weft status for the networks other than the overlay. A new network adds one line.
func sections() []status.Section {
	return []status.Section{flanneltell.Section(), vpctell.Section(), neutrontell.Section()}
}

// cleanupParts returns what weft cleanup removes for each network. A new network adds one line.
func cleanupParts() []cleanup.Part {
	return []cleanup.Part{
		clean.Part(), flannelclean.Part(),
	}
}
