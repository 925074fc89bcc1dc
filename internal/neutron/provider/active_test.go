package provider

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"sync/atomic"
	"testing"

	"github.com/gophercloud/gophercloud/v2"
	neutronnetworks "github.com/gophercloud/gophercloud/v2/openstack/networking/v2/networks"
	"github.com/gophercloud/gophercloud/v2/openstack/networking/v2/ports"
	"github.com/gophercloud/gophercloud/v2/openstack/networking/v2/subnets"

	"weft.dev/weft/api/kubestack"
	"weft.dev/weft/internal/neutron/cloud"
	"weft.dev/weft/internal/neutron/openstack"
	"weft.dev/weft/internal/neutron/plug"
)

// plugged counts the pods that it connects.
type plugged struct{ pods atomic.Int64 }

func (p *plugged) Setup(context.Context, plug.Pod) (bool, error) { return p.pods.Add(1) == 1, nil }
func (p *plugged) Teardown(context.Context, string) error        { return nil }
func (p *plugged) Close()                                        {}

// A pod is set up only when Neutron reports its port as ACTIVE, after it was plugged.
func TestSetupWaitsForActive(t *testing.T) {
	plugin := &plugged{}
	var asked atomic.Int64
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		status := "DOWN"
		if asked.Add(1) > 2 && plugin.pods.Load() == 1 {
			status = "ACTIVE"
		}
		w.Header().Set("Content-Type", "application/json")
		_, _ = io.WriteString(w, fmt.Sprintf(`{"port":{"id":"p","status":%q}}`, status))
	}))
	defer server.Close()
	recs, err := openRecords(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	p := &podCall{&pods{records: recs, Options: Options{Plugin: plugin}}, cloud.New(&openstack.Client{Network: &gophercloud.ServiceClient{
		ProviderClient: &gophercloud.ProviderClient{TokenID: "t"}, Endpoint: server.URL + "/", ResourceBase: server.URL + "/v2.0/",
	}}, cloud.Config{})}
	network := &cloud.HeldNetwork{Network: neutronnetworks.Network{ID: "net"}, Held: []subnets.Subnet{{ID: "s", CIDR: "10.0.0.0/24", GatewayIP: "10.0.0.1"}}}
	held := &cloud.HeldPort{Port: ports.Port{ID: "p", MACAddress: "fa:16:3e:00:00:05", FixedIPs: []ports.IP{{SubnetID: "s", IPAddress: "10.0.0.5"}}}}
	if _, err := p.connect(t.Context(), &kubestack.SetupPodRequest{PodName: "web", Namespace: "red"}, network, held, ""); err != nil {
		t.Fatal(err)
	}
	if asked.Load() != 3 || plugin.pods.Load() != 1 {
		t.Errorf("answered after %d looks at the port, and %d times plugged: want it ACTIVE, with the third look", asked.Load(), plugin.pods.Load())
	}
}
