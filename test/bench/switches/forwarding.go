package switches

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"os"
	"strings"

	"weft.dev/weft/internal/openflow"
	"weft.dev/weft/internal/overlay/pipeline"
	"weft.dev/weft/internal/overlay/pipeline/groupid"
	"weft.dev/weft/internal/service"
	"weft.dev/weft/internal/transport"
	"weft.dev/weft/test/bench/measure"
	"weft.dev/weft/test/bench/sending"
	"weft.dev/weft/test/bench/stage"
	"weft.dev/weft/test/probe"
	"weft.dev/weft/test/traffic"
)

// forwardPort is where the second end answers.
const forwardPort = 7777

// The two ends, and the Service whose only endpoint is the second end.
func client() netip.Addr         { return netip.MustParseAddr("10.128.0.5") }
func server() netip.Addr         { return netip.MustParseAddr("10.128.0.6") }
func virtualAddress() netip.Addr { return netip.MustParseAddr("172.30.0.10") }

const clientPort, serverPort = 3, 4

// plainFlows are the fewest flows that forward between the two ends.
const plainFlows = `table=0,priority=10,in_port=3,actions=output:4
table=0,priority=10,in_port=4,actions=output:3
`

// trackedFlows pass packets through conntrack once, which adds the connection at its first packet.
const trackedFlows = `table=0,priority=10,ip,actions=ct(table=1,zone=7)
table=1,priority=20,ip,ct_state=+trk+new,in_port=3,actions=ct(commit,zone=7),output:4
table=1,priority=10,in_port=3,actions=output:4
table=1,priority=10,in_port=4,actions=output:3
`

// translatedFlows also pass packets through conntrack once, with translation: the minimum for a Service with one endpoint.
const translatedFlows = `table=0,priority=10,ip,actions=ct(table=1,zone=7,nat)
table=1,priority=20,ip,ct_state=+trk+new,in_port=3,actions=ct(commit,zone=7,nat(dst=10.128.0.6)),mod_dl_dst:0a:58:0a:80:00:06,output:4
table=1,priority=10,in_port=3,actions=mod_dl_dst:0a:58:0a:80:00:06,output:4
table=1,priority=10,in_port=4,actions=mod_dl_dst:0a:58:0a:80:00:05,output:3
`

// forwarding compares the switch's cost of a packet with Weft's pipeline and with a few hand-written flows.
//
// Two flows without connection tracking cannot translate: in the row of a Service, the peer's packets are sent to the endpoint itself.
func forwarding(name, title, peer string, to netip.Addr, target measure.Target) Group {
	return Group{
		Title: "processor time of the switch a packet, " + title,
		Rows:  []measure.Row{{Name: "forwarding/" + name, Metric: sending.PacketCPU, Unit: "us of CPU a packet", Target: target}},
		Run: func(ctx context.Context, st *stage.Stage, rows []measure.Row, compare Compare) (results []measure.Result, err error) {
			ours, err := openPath(ctx, st, "ours", pipelineFlows(), to)
			if err != nil {
				return nil, err
			}
			defer func() { err = errors.Join(err, ours.close()) }()
			peerTo := to
			if peer == plainFlows {
				peerTo = server()
			}
			plain, err := openPath(ctx, st, "peer", peer, peerTo)
			if err != nil {
				return nil, err
			}
			defer func() { err = errors.Join(err, plain.close()) }()
			return compareSending(ctx, compare, rows, &ours.Path, &plain.Path)
		},
	}
}

// compareSending compares two paths at the highest rate at which the peer's path, the control, loses nothing, and neither path loses more
// than permitted.
func compareSending(ctx context.Context, compare Compare, rows []measure.Row, ours, peer *sending.Path) (results []measure.Result, err error) {
	err = sending.Compare(ctx, ours, peer, func(ours, peer measure.Side) (err error) {
		results, err = compare(ctx, rows, ours, peer)
		return err
	})
	return results, err
}

// pipelineFlows returns all flows and groups of a node with the two pods and the Service.
func pipelineFlows() string {
	return text(pipelineOf(nodeConfig(), nil))
}

// text returns flows and groups in the syntax of `ovs-ofctl bundle`.
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

// pipelineOf returns the flows and groups of a node with this configuration. rules, if not nil, are policies' rules and isolate the pods.
func pipelineOf(config *pipeline.Config, rules *policyNode) map[openflow.Key]openflow.Entry {
	all := config.Static()
	add := func(fragment map[openflow.Key]openflow.Entry) { maps.Copy(all, fragment) }
	add(config.Pod(pipeline.Pod{Owner: "attachment/client/eth0", OFPort: clientPort, Addrs: []netip.Addr{client()}, Isolation: rules.isolation(clientName)}))
	add(config.Pod(pipeline.Pod{Owner: "attachment/server/eth0", OFPort: serverPort, Addrs: []netip.Addr{server()}, Isolation: rules.isolation(serverName)}))
	add(rules.flows())
	svc := service.Service{
		Namespace: "bench", Name: "server", ClusterIP: virtualAddress(), Ports: []service.Port{{Protocol: transport.UDP, Number: forwardPort}},
	}
	slice := service.Slice{
		Namespace: svc.Namespace, Service: svc.Name, Name: "a", Ports: []service.SlicePort{{Protocol: transport.UDP, Number: forwardPort}},
		Endpoints: []service.SliceEndpoint{{IP: server(), Node: "n1", Ready: true, Serving: true}},
	}
	add(pipeline.Services{Config: config}.Flows(service.Compile(svc, []service.Slice{slice}, service.Place{Node: "n1"}), &groupid.IDs{}))
	return all
}

// path is a switch with two ends and flows.
type path struct {
	sending.Path

	sw   *stage.Switch
	echo *traffic.Echo
}

func openPath(ctx context.Context, s *stage.Stage, name, flows string, to netip.Addr) (p *path, err error) {
	sw, err := s.Switch(ctx, name)
	if err != nil {
		return nil, err
	}
	p = &path{sw: sw, Path: sending.Path{Meter: sw.Meter()}}
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
	p.From, p.To = from.Netns, netip.AddrPortFrom(to, forwardPort)
	_, err = traffic.Ping(limited, p.From, p.To)
	return p, err
}

func (p *path) close() error {
	var errs []error
	if p.echo != nil {
		errs = append(errs, p.echo.Close())
	}
	return errors.Join(append(errs, p.sw.Strike())...)
}
