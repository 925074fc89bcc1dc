// Package link has the values of links, as engines and their users exchange them: devices, veth pairs, bridges and their ports, addresses,
// routes, neighbours and policy routing rules, each with its [Key], its comparison and its validation, and the errors about them. It makes no
// request of the kernel. Package marked is the engine for these values; the other packages below are rooms of the same engine:
//
//   - netns: network namespaces; rtnetlink: the socket, its requests and dumps; devconf: settings of devices outside of rtnetlink.
//   - notify: changes by other programs; marked and whole: the engines.
//   - podlink: the values of pods' interfaces; podveth, shaping and macvlan: the kernel's side of them.
//   - conntrack, arp and fib: connections, announcements and lookups, which no engine keeps.
package link
