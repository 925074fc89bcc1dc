// Package podlink has the values of pods' interfaces: veth pairs, pre-plugged ports, shapes and macvlans; the interfaces of what programs
// them, and [Fake], which does it in memory.
package podlink
