package openflow

import "weft.dev/weft/internal/openflow/wire"

// Reserved ports (OpenFlow 1.5.1, 7.2.1).
const (
	PortMax        = wire.PortMax
	PortUnset      = wire.PortUnset
	PortInPort     = wire.PortInPort
	PortTable      = wire.PortTable
	PortNormal     = wire.PortNormal
	PortFlood      = wire.PortFlood
	PortAll        = wire.PortAll
	PortController = wire.PortController
	PortLocal      = wire.PortLocal
	// PortAny matches any port; for a bucket it means that the bucket watches no port.
	PortAny = wire.PortAny
)
