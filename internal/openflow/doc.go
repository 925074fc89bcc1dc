// Package openflow is the codec of OpenFlow 1.5 as Open vSwitch speaks it. It encodes typed flows and groups and decodes them, and the messages
// about them. Its matches are in package oxm, its actions in package action. Package session is a connection to a bridge, and package bridge
// the engine that programs one.
//
// The text of flows and groups is that of ovs-ofctl(8). So the output of a log, a dry run or a test can be compared with the output of
// `ovs-ofctl -O OpenFlow15 --no-stats dump-flows`, and passed to ovs-ofctl.
//
// What the decoder does not support (an action, an instruction, a field of another version of the switch) becomes an opaque value that
// encodes to the same bytes; it is never dropped and never nil.
//
// Numbers and layouts are those of the OpenFlow Switch Specification 1.5.1 and of the Nicira extensions described in ovs-fields(7) and
// ovs-actions(7), as Open vSwitch 3.1 implements them.
package openflow
