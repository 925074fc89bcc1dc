// Package oxm has OpenFlow's match fields and matches (OpenFlow Extensible Match), and their bytes and text. One table, the field registry in
// fieldtable.go, drives the encoding, the decoding and the text of every match field and of every action that names a field. Numbers are those
// of the OpenFlow Switch Specification 1.5.1 and of the Nicira extensions described in ovs-fields(7).
//
// A field that the decoder does not support is kept as its bytes; it is never dropped.
package oxm
