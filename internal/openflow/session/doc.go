// Package session is a connection to one bridge by OpenFlow: the channel with its handshake, XIDs, echo requests and barriers; the requests
// that Weft makes; and bundles, which the switch applies atomically. It keeps no state of the bridge.
package session
