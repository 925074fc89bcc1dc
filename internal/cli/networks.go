package cli

import (
	"weft.dev/weft/internal/cleanup"
	"weft.dev/weft/internal/overlay/clean"
	"weft.dev/weft/internal/status"
	"weft.dev/weft/internal/vpc/tell"
)

// sections are what the networks besides the overlay say in weft status: a network adds its own by one line.
func sections() []status.Section { return []status.Section{tell.Section()} }

// cleanupParts are what weft cleanup removes of each network: a network adds its own by one line.
func cleanupParts() []cleanup.Part {
	return []cleanup.Part{
		clean.Part(),
	}
}
