//go:build !vm

package ovstest

// Datapath is the type of the bridges of tests that run on either datapath: here the userspace datapath, and with the build tag vm the
// kernel's, which not every machine has.
const Datapath = "netdev"

// Slowness is the factor of time limits: the processor of the virtual machine is emulated.
const Slowness = 1
