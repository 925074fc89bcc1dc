package neutron

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"time"

	"github.com/gophercloud/gophercloud/v2"
	"github.com/gophercloud/gophercloud/v2/openstack/networking/v2/extensions/layer3/routers"
	"github.com/gophercloud/gophercloud/v2/openstack/networking/v2/networks"
	"github.com/gophercloud/gophercloud/v2/openstack/networking/v2/subnets"
	"github.com/gophercloud/gophercloud/v2/pagination"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	"weft.dev/weft/api/kubestack"
	"weft.dev/weft/lab/process"
	stack "weft.dev/weft/lab/stack/openstack"
	"weft.dev/weft/test/bench/measure"
	"weft.dev/weft/test/bench/stage"
)

// Metrics of the provider.
const (
	// RPC is the time to create a network with a subnet and a router, in ms.
	RPC = "rpc-wall"
	// ProviderSize is the program's resident size, in MB.
	ProviderSize = "provider-size"
)

// providerAddress is KubeStack's port.
const providerAddress = "127.0.0.1:4237"

// Provider is `weft provider` on the first node.
type Provider struct {
	*Scene

	group *process.Group
	conn  *grpc.ClientConn
	rpc   kubestack.NetworksClient
}

const providerName = "provider"

// Provider starts the program. Call Close, also after an error.
func (s *Scene) Provider(ctx context.Context) (*Provider, error) {
	node := s.Node(1)
	const dir = "/run/bench-provider" // on the node
	outside := filepath.Join(node.RunDir, "bench-provider")
	if err := os.MkdirAll(outside, 0o755); err != nil {
		return nil, fmt.Errorf("make a folder for the provider: %w", err)
	}
	config := filepath.Join(outside, "kubestack.conf")
	text := fmt.Sprintf("[Global]\nauth-url = %s\nusername = %s\npassword = %s\ntenant-name = %s\nregion = %s\n\n[Plugin]\nplugin-name = ovs\n",
		s.OpenStack.AuthURL(), stack.Admin, stack.AdminPassword, stack.Admin, stack.Region)
	if err := os.WriteFile(config, []byte(text), 0o600); err != nil {
		return nil, fmt.Errorf("write the provider's configuration: %w", err)
	}
	p := &Provider{Scene: s, group: process.NewGroup(outside, outside)}
	err := p.group.Start(ctx, process.Program{
		Name: providerName,
		Argv: node.Space.Enter(filepath.Join(s.stage.Bin(), "weft"), "provider", "--config", filepath.Join(dir, "kubestack.conf"), "--host", node.Name, "--records", filepath.Join(dir, "records"),
			"--ovsdb", "unix:/run/openvswitch/db.sock", "--listen", providerAddress),
		Ready: func(ctx context.Context) error {
			c, err := node.Space.Dial(ctx, "tcp", providerAddress)
			if err != nil {
				return err
			}
			return c.Close()
		},
	})
	if err != nil {
		return p, err
	}
	p.conn, err = grpc.NewClient("passthrough:///"+providerAddress, grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithContextDialer(func(ctx context.Context, addr string) (net.Conn, error) { return node.Space.Dial(ctx, "tcp", addr) }))
	if err != nil {
		return p, fmt.Errorf("connect to the provider: %w", err)
	}
	p.rpc = kubestack.NewNetworksClient(p.conn)
	return p, nil
}

// Close ends the program.
func (p *Provider) Close() error {
	if p == nil {
		return nil
	}
	var err error
	if p.conn != nil {
		err = p.conn.Close()
	}
	const grace = 5 * time.Second
	p.group.Stop(grace, func(string) bool { return true })
	return err
}

const (
	rpcRange, rpcGateway = "10.250.0.0/24", "10.250.0.1"
)

var errRPC = errors.New("the provider answers with an error")

// Create creates a network by an RPC, and then deletes it.
func (p *Provider) Create(ctx context.Context) (measure.Figures, error) {
	name := "rpc-" + strconv.Itoa(p.round("rpc"))
	began := time.Now()
	answer, err := p.rpc.CreateNetwork(ctx, &kubestack.CreateNetworkRequest{Network: &kubestack.Network{
		Name: name, TenantID: stack.Admin, Subnets: []*kubestack.Subnet{{Name: name, Cidr: rpcRange, Gateway: rpcGateway}},
	}})
	if err == nil && answer.GetError() != "" {
		err = fmt.Errorf("%w: %s", errRPC, answer.GetError())
	}
	if err != nil {
		return nil, fmt.Errorf("create network %s: %w", name, err)
	}
	figures := measure.Figures{RPC: milliseconds(time.Since(began))}
	gone, err := p.rpc.DeleteNetwork(ctx, &kubestack.DeleteNetworkRequest{NetworkName: name})
	if err == nil && gone.GetError() != "" {
		err = fmt.Errorf("%w: %s", errRPC, gone.GetError())
	}
	if err != nil {
		return nil, fmt.Errorf("delete network %s: %w", name, err)
	}
	size, err := stage.ResidentSize(p.group.Pid(providerName))
	figures[ProviderSize] = size / megabyte
	return figures, err
}

// CreateByHand creates the same by bare calls.
func (p *Provider) CreateByHand(ctx context.Context) (measure.Figures, error) {
	name, c := "bare-"+strconv.Itoa(p.round("bare-rpc")), p.admin.Network
	began := time.Now()
	network, err := networks.Create(ctx, c, networks.CreateOpts{Name: name}).Extract()
	if err != nil {
		return nil, fmt.Errorf("create network %s: %w", name, err)
	}
	router, err := routers.Create(ctx, c, routers.CreateOpts{Name: name}).Extract()
	if err != nil {
		return nil, fmt.Errorf("create router %s: %w", name, err)
	}
	gateway := rpcGateway
	subnet, err := subnets.Create(ctx, c, subnets.CreateOpts{
		NetworkID: network.ID, Name: name, CIDR: rpcRange, IPVersion: gophercloud.IPv4, GatewayIP: &gateway,
	}).Extract()
	if err != nil {
		return nil, fmt.Errorf("create subnet %s: %w", name, err)
	}
	if _, err := routers.AddInterface(ctx, c, router.ID, routers.AddInterfaceOpts{SubnetID: subnet.ID}).Extract(); err != nil {
		return nil, fmt.Errorf("connect subnet %s: %w", name, err)
	}
	figures := measure.Figures{RPC: milliseconds(time.Since(began))}
	_, err = routers.RemoveInterface(ctx, c, router.ID, routers.RemoveInterfaceOpts{SubnetID: subnet.ID}).Extract()
	err = errors.Join(err, routers.Delete(ctx, c, router.ID).ExtractErr(), networks.Delete(ctx, c, network.ID).ExtractErr())
	if err != nil && !gophercloud.ResponseCodeIs(err, http.StatusNotFound) {
		return nil, fmt.Errorf("delete network %s: %w", name, err)
	}
	return figures, nil
}

// all reads all pages of a list.
func all[T any](ctx context.Context, list pagination.Pager, extract func(pagination.Page) ([]T, error)) ([]T, error) {
	pages, err := list.AllPages(ctx)
	if err != nil {
		return nil, fmt.Errorf("list: %w", err)
	}
	return extract(pages)
}
