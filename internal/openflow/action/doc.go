// Package action has OpenFlow's actions and instructions, and their bytes and text: those of the OpenFlow Switch Specification 1.5.1 that
// Weft uses, and Nicira's extensions, described in ovs-actions(7).
//
// What the decoder does not support becomes an opaque action that encodes to the same bytes; it is never dropped and never nil.
package action
