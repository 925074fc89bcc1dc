// Package arp announces and probes addresses on the network of a device, and has the kernel resolve neighbours again.
package arp
