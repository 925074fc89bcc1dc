package rows

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"os"
	"strings"
	"time"

	"weft.dev/weft/internal/openflow"
	"weft.dev/weft/internal/overlay/pipeline"
	"weft.dev/weft/internal/service"
	"weft.dev/weft/test/bench/measure"
	"weft.dev/weft/test/bench/stage"
	"weft.dev/weft/test/probe"
	"weft.dev/weft/test/traffic"
)

const (
	// forwardRate is how many datagrams a second are sent; each is answered. It is well below what the userspace datapath
	// does on one core, so that nothing is lost.
	forwardRate = 10_000
	forwardTime = 2 * time.Second
	forwardPort = 7777
	// forwardLoss is the share of the datagrams that may be lost in a round that counts.
	forwardLoss = 0.01
)

const packetCPU = "packet-cpu"

// The two ends, and the Service whose only endpoint is the second.
func client() netip.Addr         { return netip.MustParseAddr("10.128.0.5") }
func server() netip.Addr         { return netip.MustParseAddr("10.128.0.6") }
func virtualAddress() netip.Addr { return netip.MustParseAddr("172.30.0.10") }

const clientPort, serverPort = 3, 4

// plainFlows are the least that forwards between the two.
const plainFlows = `table=0,priority=10,in_port=3,actions=output:4
table=0,priority=10,in_port=4,actions=output:3
`

// trackedFlows have one pass through conntrack between them, which knows the connection by its first packet.
const trackedFlows = `table=0,priority=10,ip,actions=ct(table=1,zone=7)
table=1,priority=20,ip,ct_state=+trk+new,in_port=3,actions=ct(commit,zone=7),output:4
table=1,priority=10,in_port=3,actions=output:4
table=1,priority=10,in_port=4,actions=output:3
`

// translatedFlows have one pass as well, which translates: what a Service with one endpoint needs at least.
const translatedFlows = `table=0,priority=10,ip,actions=ct(table=1,zone=7,nat)
table=1,priority=20,ip,ct_state=+trk+new,in_port=3,actions=ct(commit,zone=7,nat(dst=10.128.0.6)),mod_dl_dst:0a:58:0a:80:00:06,output:4
table=1,priority=10,in_port=3,actions=mod_dl_dst:0a:58:0a:80:00:06,output:4
table=1,priority=10,in_port=4,actions=mod_dl_dst:0a:58:0a:80:00:05,output:3
`

// forwarding compares what a packet costs the switch with Weft's pipeline and with a few flows by hand.
//
// Two flows without connection tracking translate nothing: to a Service's packets, the peer's go to the endpoint itself.
func forwarding(name, title, peer string, to netip.Addr, target measure.Target) Group {
	return Group{
		Title: "processor time of the switch a packet, " + title,
		Rows:  []measure.Row{{Name: "forwarding/" + name, Metric: packetCPU, Unit: "us of CPU a packet", Target: target}},
		run: func(ctx context.Context, b Bench, rows []measure.Row) (results []measure.Result, err error) {
			ours, err := openPath(ctx, b.Stage, "ours", pipelineFlows(), to)
			if err != nil {
				return nil, err
			}
			defer func() { err = errors.Join(err, ours.close()) }()
			peerTo := to
			if peer == plainFlows {
				peerTo = server()
			}
			plain, err := openPath(ctx, b.Stage, "peer", peer, peerTo)
			if err != nil {
				return nil, err
			}
			defer func() { err = errors.Join(err, plain.close()) }()
			return b.compare(ctx, rows, ours.send, plain.send)
		},
	}
}

// pipelineFlows is all that a node with the two pods and the Service has.
func pipelineFlows() string {
	return text(pipelineOf(nodeConfig(), nil))
}

// text writes flows and groups as `ovs-ofctl bundle` reads them.
func text(all map[openflow.Key]openflow.Entry) string {
	var groups, flows strings.Builder
	for key, entry := range all {
		if key.Group != 0 {
			_, _ = fmt.Fprintf(&groups, "group add %s\n", entry)
		} else {
			_, _ = fmt.Fprintf(&flows, "flow add %s\n", entry)
		}
	}
	return groups.String() + flows.String()
}

// pipelineOf is what a node of a configuration has; rules, if given, are policies' and isolate the pods.
func pipelineOf(config *pipeline.Config, rules *policyNode) map[openflow.Key]openflow.Entry {
	all := config.Static()
	add := func(fragment map[openflow.Key]openflow.Entry) { maps.Copy(all, fragment) }
	add(config.Pod(pipeline.Pod{Owner: "attachment/client/eth0", OFPort: clientPort, Addrs: []netip.Addr{client()}, Isolation: rules.isolation(clientName)}))
	add(config.Pod(pipeline.Pod{Owner: "attachment/server/eth0", OFPort: serverPort, Addrs: []netip.Addr{server()}, Isolation: rules.isolation(serverName)}))
	add(rules.flows())
	svc := service.Service{
		Namespace: "bench", Name: "server", ClusterIP: virtualAddress(), Ports: []service.Port{{Protocol: service.UDP, Number: forwardPort}},
	}
	slice := service.Slice{
		Namespace: svc.Namespace, Service: svc.Name, Name: "a", Ports: []service.SlicePort{{Protocol: service.UDP, Number: forwardPort}},
		Endpoints: []service.SliceEndpoint{{IP: server(), Node: "n1", Ready: true, Serving: true}},
	}
	add(config.Service(service.Compile(svc, []service.Slice{slice}, service.Place{Node: "n1"}), &pipeline.GroupIDs{}))
	return all
}

// path is a switch with two ends and flows.
type path struct {
	sw   *stage.Switch
	from string // the sender's namespace
	to   netip.AddrPort
	echo *traffic.Echo
}

func openPath(ctx context.Context, s *stage.Stage, name, flows string, to netip.Addr) (p *path, err error) {
	sw, err := s.Switch(ctx, name)
	if err != nil {
		return nil, err
	}
	p = &path{sw: sw}
	defer func() {
		if err != nil {
			err = errors.Join(err, p.close())
		}
	}()
	if !strings.HasPrefix(flows, "group") {
		flows = "flow add " + strings.ReplaceAll(strings.TrimSpace(flows), "\n", "\nflow add ") + "\n"
	}
	if err := os.WriteFile(sw.File("flows"), []byte(flows), 0o600); err != nil {
		return nil, fmt.Errorf("write flows: %w", err)
	}
	if _, err := sw.Run(ctx, "ovs-ofctl", "-O", "OpenFlow15", "bundle", stage.Bridge, sw.File("flows")); err != nil {
		return nil, err
	}
	bits := nodeConfig().LocalSubnet.Bits()
	from, err := sw.Attach(ctx, clientPort, netip.PrefixFrom(client(), bits), pipeline.PodMAC, server(), virtualAddress())
	if err != nil {
		return nil, err
	}
	end, err := sw.Attach(ctx, serverPort, netip.PrefixFrom(server(), bits), pipeline.PodMAC, client())
	if err != nil {
		return nil, err
	}
	if p.echo, err = traffic.NewEcho(end.Netns, netip.AddrPortFrom(server(), forwardPort)); err != nil {
		return nil, err
	}
	limited, cancel := context.WithTimeout(ctx, probe.Patience)
	defer cancel()
	p.from, p.to = from.Netns, netip.AddrPortFrom(to, forwardPort)
	_, err = traffic.Ping(limited, p.from, p.to)
	return p, err
}

// send measures a stream of one connection. Its first packets make the megaflows, and are part of it.
func (p *path) send(ctx context.Context) (measure.Figures, error) {
	before, err := p.sw.Meter().Used()
	if err != nil {
		return nil, err
	}
	stream, err := traffic.NewStream(p.from, p.to, forwardRate)
	if err != nil {
		return nil, err
	}
	select {
	case <-ctx.Done():
	case <-time.After(forwardTime):
	}
	tally, err := stream.Stop()
	if err = errors.Join(err, ctx.Err()); err != nil {
		return nil, err
	}
	after, err := p.sw.Meter().Used()
	if err != nil {
		return nil, err
	}
	if float64(tally.Lost) > forwardLoss*float64(tally.Sent) {
		return nil, fmt.Errorf("%s: more than a hundredth: the machine is too busy for %d packets a second, or the flows do not forward", tally, 2*forwardRate)
	}
	return measure.Figures{packetCPU: microseconds(after-before) / float64(2*(tally.Sent-tally.Lost))}, nil
}

func (p *path) close() error {
	var errs []error
	if p.echo != nil {
		errs = append(errs, p.echo.Close())
	}
	return errors.Join(append(errs, p.sw.Strike())...)
}
