package pipeline

import (
	"weft.dev/weft/internal/openflow/action"
	"weft.dev/weft/internal/openflow/oxm"
	"weft.dev/weft/internal/overlay/pipeline/layout"
)

// tcpAck is the ACK flag of TCP (RFC 9293, 3.1). The first packet of a connection has tcpSyn and not tcpAck.
const tcpAck = 0x010

// closePorts rejects TCP connections of pods to the closed ports (Config.ClosedTCP). It rejects only a connection's first packet: a client
// outside may use such a port as its own, and must get replies.
func (p *program) closePorts(table uint8, priority uint16, on ...oxm.MatchField) {
	for _, port := range p.config.ClosedTCP {
		p.Add(table, priority, "a TCP port of nodes that is closed to pods: the host rejects",
			append(match(on...), oxm.TCPDst(port), oxm.TCPFlags(tcpSyn, tcpSyn|tcpAck)), p.config.toReject()...)
	}
}

// closeMetadata rejects packets from pods to metadata services, except to their name servers. A fragment without ports is rejected.
func (p *program) closeMetadata() {
	const closed, names = 310, 320
	for _, addr := range p.config.Metadata {
		to := oxm.IPDst(host(addr))
		for _, port := range []oxm.MatchField{oxm.UDPDst(dnsPort), oxm.TCPDst(dnsPort)} {
			p.Add(layout.TableExternal, names, "the name server of the metadata service", match(to, port), action.GotoTable(layout.TableEgressFirewall))
		}
		p.Add(layout.TableExternal, closed, "the metadata service is closed to pods: the host rejects", match(to), p.config.toReject()...)
	}
}
