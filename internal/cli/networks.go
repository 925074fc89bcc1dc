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

// sections are what the networks besides the overlay say in weft status: a network adds its own by one line.
func sections() []status.Section {
	return []status.Section{flanneltell.Section(), vpctell.Section(), neutrontell.Section()}
}

// cleanupParts are what weft cleanup removes of each network: a network adds its own by one line.
func cleanupParts() []cleanup.Part {
	return []cleanup.Part{
		clean.Part(), flannelclean.Part(),
	}
}
