// Package openflow speaks OpenFlow 1.5 to Open vSwitch. It encodes typed flows and groups and decodes them, keeps a connection, commits
// changes in atomic bundles, reads back the programmed state, and reports the changes of others. It has no code for networks, and it logs
// nothing.
//
// One table, the field registry in field.go, drives the encoding, the decoding and the text of every match field and of every action that
// names a field. The text is that of ovs-ofctl(8). So the output of a log, a dry run or a test can be compared with the output of
// `ovs-ofctl -O OpenFlow15 --no-stats dump-flows`, and passed to ovs-ofctl.
//
// What the decoder does not support (an action, an instruction, a field of another version of the switch) becomes an opaque value that
// encodes to the same bytes; it is never dropped and never nil.
//
// Numbers and layouts are those of the OpenFlow Switch Specification 1.5.1 and of the Nicira extensions described in ovs-fields(7) and
// ovs-actions(7), as Open vSwitch 3.1 implements them.
package openflow
