// Package macvlan programs additional interfaces of pods: macvlans on devices of the node.
package macvlan
