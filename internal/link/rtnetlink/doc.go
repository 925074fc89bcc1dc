// Package rtnetlink is the socket of rtnetlink, which sends many requests in one datagram, with the requests and dumps that the engines use,
// and the kernel's messages as values.
package rtnetlink
