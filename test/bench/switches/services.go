package switches

import (
	"context"
	"fmt"
	"net/netip"
	"os"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"weft.dev/weft/internal/openflow"
	"weft.dev/weft/internal/overlay/pipeline"
	"weft.dev/weft/internal/overlay/pipeline/groupid"
	"weft.dev/weft/internal/reconcile"
	"weft.dev/weft/internal/service"
	"weft.dev/weft/test/bench/measure"
	"weft.dev/weft/test/bench/stage"
)

const (
	servicesCount = 1000
	endpointCount = 10
	servicePort   = 80
)

const (
	serviceWall = "service-wall"
	serviceCPU  = "service-cpu"
)

// services measures the time from objects until flows and groups are in effect. The floor is the switch's own tool, which gets the same
// flows and groups as text, and has nothing to compile, compare or store.
func services() Group {
	return Group{
		Title: fmt.Sprintf("%d Services with %d endpoints each, against ovs-ofctl bundle with the same flows and groups", servicesCount, endpointCount),
		Rows: []measure.Row{
			{Name: "services/1000x10/program", Metric: serviceWall, Unit: "ms"},
			{Name: "services/1000x10/program-cpu", Metric: serviceCPU, Unit: "ms of CPU"},
		},
		Run: func(ctx context.Context, st *stage.Stage, rows []measure.Row, compare Compare) ([]measure.Result, error) {
			return onSwitches(ctx, st, func(ctx context.Context, ours *program, peer *stage.Switch) ([]measure.Result, error) {
				config := nodeConfig()
				objects := manyServices()
				static := map[reconcile.Owner]map[openflow.Key]openflow.Entry{pipeline.OwnerCluster: config.Static()}
				if err := ours.loop.Apply(ctx, static); err != nil {
					return nil, err
				}
				file, err := writeBundle(peer, compileServices(config, objects))
				if err != nil {
					return nil, err
				}
				return compare(ctx, rows, ours.serve(config, objects), bundleServices(peer, file))
			})
		},
	}
}

type serviceObjects struct {
	service *corev1.Service
	slice   *discoveryv1.EndpointSlice
}

// nodeConfig returns a node's configuration with the lab's networks.
func nodeConfig() *pipeline.Config {
	return &pipeline.Config{
		ClusterNetworks: []netip.Prefix{netip.MustParsePrefix("10.128.0.0/14")},
		ServiceNetwork:  netip.MustParsePrefix("172.30.0.0/16"),
		LocalSubnet:     netip.MustParsePrefix("10.128.0.0/23"),
		Gateway:         netip.MustParseAddr("10.128.0.1"),
		NodeIP:          netip.MustParseAddr("172.31.0.1"),
		Conntrack:       true,
	}
}

func manyServices() []serviceObjects {
	all := make([]serviceObjects, 0, servicesCount)
	port, name, tcp, yes := int32(8080), "", corev1.ProtocolTCP, true
	for i := range servicesCount {
		meta := metav1.ObjectMeta{Namespace: "bench", Name: fmt.Sprintf("service-%d", i)}
		ip := netip.AddrFrom4([4]byte{172, 30, byte(1 + i>>8), byte(i)}).String()
		svc := &corev1.Service{ObjectMeta: meta, Spec: corev1.ServiceSpec{
			Type: corev1.ServiceTypeClusterIP, ClusterIP: ip, ClusterIPs: []string{ip}, IPFamilies: []corev1.IPFamily{corev1.IPv4Protocol},
			Ports: []corev1.ServicePort{{Protocol: tcp, Port: servicePort}},
		}}
		slice := &discoveryv1.EndpointSlice{
			ObjectMeta:  metav1.ObjectMeta{Namespace: meta.Namespace, Name: meta.Name + "-a", Labels: map[string]string{discoveryv1.LabelServiceName: meta.Name}},
			AddressType: discoveryv1.AddressTypeIPv4,
			Ports:       []discoveryv1.EndpointPort{{Name: &name, Protocol: &tcp, Port: &port}},
		}
		for e := range endpointCount {
			n := i*endpointCount + e
			a := netip.AddrFrom4([4]byte{10, 129, byte(n >> 8), byte(n)})
			slice.Endpoints = append(slice.Endpoints, discoveryv1.Endpoint{
				Addresses: []string{a.String()}, Conditions: discoveryv1.EndpointConditions{Ready: &yes, Serving: &yes},
			})
		}
		all = append(all, serviceObjects{svc, slice})
	}
	return all
}

// compileServices compiles objects to flows and groups, as the agent does.
func compileServices(config *pipeline.Config, objects []serviceObjects) map[reconcile.Owner]map[openflow.Key]openflow.Entry {
	fragments := make(map[reconcile.Owner]map[openflow.Key]openflow.Entry, len(objects))
	ids := &groupid.IDs{}
	for _, o := range objects {
		svc, known := service.FromService(o.service)
		slice, parsed := service.FromSlice(o.slice)
		if known && parsed {
			fragments[svc.Owner()] = pipeline.Services{Config: config}.Flows(service.Compile(svc, []service.Slice{slice}, service.Place{Node: "n1"}), ids)
		}
	}
	return fragments
}

func (p *program) serve(config *pipeline.Config, objects []serviceObjects) measure.Side {
	return func(ctx context.Context) (measure.Figures, error) {
		before, err := p.spent()
		if err != nil {
			return nil, err
		}
		began := time.Now()
		fragments := compileServices(config, objects)
		if err := p.loop.Apply(ctx, fragments); err != nil {
			return nil, err
		}
		wall := time.Since(began)
		after, err := p.spent()
		if err != nil {
			return nil, err
		}
		return measure.Figures{serviceWall: milliseconds(wall), serviceCPU: milliseconds(after - before)}, p.empty(ctx, fragments)
	}
}

func bundleServices(sw *stage.Switch, file string) measure.Side {
	return func(ctx context.Context) (measure.Figures, error) {
		ran, cpu, err := withSwitch(ctx, sw, "bundle", stage.Bridge, file)
		if err != nil {
			return nil, err
		}
		for _, emptying := range []string{"del-flows", "del-groups"} {
			if _, _, err := withSwitch(ctx, sw, emptying, stage.Bridge); err != nil {
				return nil, err
			}
		}
		return measure.Figures{serviceWall: milliseconds(ran.Wall), serviceCPU: milliseconds(cpu)}, nil
	}
}

// writeBundle writes flows and groups in the syntax of `ovs-ofctl bundle`: the kind and "add" before each.
func writeBundle(sw *stage.Switch, fragments map[reconcile.Owner]map[openflow.Key]openflow.Entry) (string, error) {
	var groups, flows strings.Builder
	for _, fragment := range fragments {
		for key, entry := range fragment {
			if key.Group != 0 {
				_, _ = fmt.Fprintf(&groups, "group add %s\n", entry)
			} else {
				_, _ = fmt.Fprintf(&flows, "flow add %s\n", entry)
			}
		}
	}
	if strings.Count(groups.String(), "\n") != servicesCount {
		return "", fmt.Errorf("%d Services compile to %d groups", servicesCount, strings.Count(groups.String(), "\n"))
	}
	file := sw.File("services")
	if err := os.WriteFile(file, []byte(groups.String()+flows.String()), 0o600); err != nil {
		return "", fmt.Errorf("write the peer's Services: %w", err)
	}
	return file, nil
}
