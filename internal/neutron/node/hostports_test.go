package node

import (
	"context"
	"errors"
	"strings"
	"sync/atomic"
	"testing"

	"weft.dev/weft/internal/attach"
	"weft.dev/weft/internal/cni"
	"weft.dev/weft/internal/neutron/host"
	"weft.dev/weft/internal/neutron/pipeline"
	"weft.dev/weft/internal/nft"
	"weft.dev/weft/internal/node"
	"weft.dev/weft/internal/reconcile"
)

// A host port that is reserved, or invalid, is refused with the pod's name.
func TestHostPortsRefused(t *testing.T) {
	p := &publisher{node: &node.Node{Reserved: func(port cni.HostPort) string {
		if port.Port == 9 {
			return "the probes of other nodes"
		}
		return ""
	}}}
	request := func(mapping cni.PortMapping) *cni.Request {
		r := &cni.Request{Args: cni.Args{PodNamespace: "shop", PodName: "web"}, NetConf: &cni.NetConf{}}
		r.NetConf.RuntimeConfig.PortMappings = []cni.PortMapping{mapping}
		return r
	}
	for words, mapping := range map[string]cni.PortMapping{
		"reserved for the probes of other nodes": {HostPort: 9, ContainerPort: 80},
		"portMappings[0].containerPort":          {HostPort: 8080},
		"portMappings[0].hostIP":                 {HostPort: 8080, ContainerPort: 80, HostIP: "fd00::1"},
	} {
		_, err := p.requested(request(mapping))
		if err == nil || !strings.Contains(err.Error(), words) || !strings.Contains(err.Error(), "pod shop/web") {
			t.Errorf("%+v: %v, want %q", mapping, err, words)
		}
	}
	ports, err := p.requested(request(cni.PortMapping{HostPort: 8080, ContainerPort: 80, HostIP: "0.0.0.0"}))
	if err != nil || len(ports) != 1 || ports[0] != (cni.HostPort{Port: 8080, Protocol: "tcp", ContainerPort: 80}) {
		t.Errorf("host ports %v, %v", ports, err)
	}
}

// refusing is the node's rules; the kernel refuses changes while refuse is set.
type refusing struct {
	*nft.Fake
	refuse atomic.Bool
}

func (e *refusing) Commit(ctx context.Context, change reconcile.Change[nft.Key, nft.Item]) error {
	if e.refuse.Load() {
		return errors.New("device or resource busy")
	}
	return e.Fake.Commit(ctx, change)
}

// The removal of host ports fails while their rules remain, so that the attachment's record stays, and succeeds afterwards.
func TestUnpublishFails(t *testing.T) {
	engine := &refusing{Fake: nft.NewFake()}
	loop := reconcile.NewLoop[nft.Key, nft.Item](engine, reconcile.Options[nft.Key, nft.Item]{Name: "nft"})
	ended := make(chan struct{})
	ctx, stop := context.WithCancel(t.Context())
	go func() { defer close(ended); _ = loop.Run(ctx) }()
	defer func() { stop(); <-ended }()
	p := &publisher{node: &node.Node{Rules: loop, BootID: "this"}}
	rec := podNumber(t, "blue", 1, 1)
	rec.BootID, rec.HostPorts = "former", []cni.HostPort{{Port: 8080, Protocol: "tcp", ContainerPort: 80}} // no connections to flush
	start := rules{pipeline.Owner: host.Rules(nil), ownerOf(rec): hostPortRules(rec)}
	if err := loop.Start(t.Context(), start); err != nil {
		t.Fatal(err)
	}
	engine.refuse.Store(true)
	if err := p.unpublish(t.Context(), []attach.Record{*rec}); err == nil || !strings.Contains(err.Error(), "busy") {
		t.Errorf("removal that the kernel refuses: %v", err)
	}
	engine.refuse.Store(false)
	if err := p.unpublish(t.Context(), []attach.Record{*rec}); err != nil {
		t.Error(err)
	}
	held, err := engine.Read(t.Context())
	for key := range hostPortRules(rec) {
		if held[key] != nil || err != nil {
			t.Errorf("%s is left, %v", key, err)
		}
	}
}
