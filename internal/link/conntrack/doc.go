// Package conntrack flushes connections from the kernel's connection tracking.
package conntrack
