// Package wire has what all structures of OpenFlow are made of: numbers in network byte order, values of up to 128 bits, padding to 8 bytes,
// TLVs and properties, port numbers, and their text as ovs-ofctl(8) prints it.
package wire
