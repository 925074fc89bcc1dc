// Package openflow speaks OpenFlow 1.5 to Open vSwitch: it compiles typed flows and groups to the wire and back,
// keeps a connection, commits changes in atomic bundles, reads back what is programmed, and hears what others change.
// It is a mechanism: it knows nothing of networks, and it logs nothing.
//
// One table, the field registry in field.go, drives the encoding, the decoding and the text of every match field
// and of every action that names a field. The text is that of ovs-ofctl(8), so that what a log, a dry run or a test
// prints can be compared with what `ovs-ofctl -O OpenFlow15 --no-stats dump-flows` prints, and pasted into it.
//
// Whatever the decoder does not know (an action, an instruction, a field of another version of the switch) becomes
// an opaque value that encodes to the same bytes; it is never dropped and never nil.
//
// Numbers and layouts are those of the OpenFlow Switch Specification 1.5.1 and of the Nicira extensions described in
// ovs-fields(7) and ovs-actions(7), as Open vSwitch 3.1 implements them.
package openflow
