// Package controlplane defines a lab's Kubernetes control plane: credentials, the programs with their flags, and their readiness.
package controlplane

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/netip"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"time"

	"weft.dev/weft/lab/ground"
	"weft.dev/weft/lab/pki"
	"weft.dev/weft/lab/plan"
	"weft.dev/weft/lab/process"
)

// Plane is the control plane of a lab.
type Plane struct {
	Lab      plan.Lab
	Space    ground.Space
	Bin      string     // directory of Kubernetes' programs
	HostAddr netip.Addr // the API server's address for the machine
	CA       *pki.Authority
}

// Identities of the lab's programs, also used for file names.
const (
	Admin      = "admin"
	Controller = "kube-controller-manager"
	Scheduler  = "kube-scheduler"
	Proxy      = "kube-proxy"
	FrontProxy = "front-proxy-client" // the API server, towards aggregated APIs
	Weft       = "weft"               // agent and controller, if they run as plain processes
)

// Kubelet returns the identity of a node's kubelet.
func Kubelet(n plan.Node) string { return "kubelet-" + n.Name }

// Credentials makes all certificates and kubeconfigs.
func (p *Plane) Credentials() error {
	if err := p.CA.SigningKey("sa"); err != nil {
		return err
	}
	ids := []pki.Identity{
		{
			File: "apiserver", User: "kube-apiserver",
			DNS: []string{"kubernetes", "kubernetes.default", "kubernetes.default.svc", "kubernetes.default.svc.cluster.local", "localhost"},
			IPs: []netip.Addr{p.Lab.ControlIP, p.HostAddr, p.Lab.APIServiceIP, netip.MustParseAddr("127.0.0.1")},
		},
		{File: "apiserver-kubelet", User: "kube-apiserver-kubelet-client", Groups: []string{"system:masters"}},
		{File: "apiserver-front-proxy", User: FrontProxy},
		{File: Admin, User: "admin", Groups: []string{"system:masters"}},
		{File: Weft, User: "weft", Groups: []string{"system:masters"}},
		{File: Controller, User: "system:kube-controller-manager"},
		{File: Scheduler, User: "system:kube-scheduler"},
		{File: Proxy, User: "system:kube-proxy"},
	}
	for _, n := range p.Lab.AllNodes() {
		ids = append(ids, pki.Identity{
			File: Kubelet(n), User: "system:node:" + n.Name, Groups: []string{"system:nodes"},
			DNS: []string{n.Name}, IPs: []netip.Addr{n.IP},
		})
	}
	for _, id := range ids {
		if err := p.CA.Issue(id); err != nil {
			return err
		}
		if strings.HasPrefix(id.File, "apiserver") {
			continue
		}
		if err := p.CA.Kubeconfig(p.KubeconfigOf(id.File), p.server(p.Lab.ControlIP), id.File); err != nil {
			return err
		}
	}
	return p.CA.Kubeconfig(p.Lab.Kubeconfig(), p.server(p.HostAddr), Admin)
}

// KubeconfigOf returns an identity's kubeconfig, for use on the underlay.
func (p *Plane) KubeconfigOf(id string) string { return p.Lab.Path("kubeconfig", id) }

func (p *Plane) server(ip netip.Addr) string {
	return "https://" + netip.AddrPortFrom(ip, uint16(p.Lab.APIPort)).String()
}

// Etcd is the API server's etcd, on the control plane's loopback.
func (p *Plane) Etcd() process.Program {
	const client = "http://127.0.0.1:2379"
	return process.Program{
		Name: "etcd",
		Argv: p.Space.Enter("etcd", "--data-dir", p.Lab.Path("etcd"),
			"--listen-client-urls", client, "--advertise-client-urls", client,
			"--listen-peer-urls", "http://127.0.0.1:2380",
			"--unsafe-no-fsync=true"), // a lab's data does not need to survive a power loss
		Ready: func(ctx context.Context) error {
			return probe(ctx, &http.Client{Timeout: time.Second, Transport: &http.Transport{
				DisableKeepAlives: true, DialContext: p.Space.Dial,
			}}, client+"/health")
		},
	}
}

// LeasesPort is the port of the etcd with flannel's leases, on the control plane's address.
const LeasesPort = 2379

// Leases is the etcd for the leases of a flannel network's nodes. It is not the API server's etcd, which nodes do not reach.
func (p *Plane) Leases() process.Program {
	client := p.LeasesURL()
	const peers = "http://127.0.0.1:2382"
	return process.Program{
		Name: "flannel-etcd",
		Argv: p.Space.Enter("etcd", "--data-dir", p.Lab.Path("flannel-etcd"),
			"--listen-client-urls", client, "--advertise-client-urls", client,
			"--listen-peer-urls", peers, "--initial-advertise-peer-urls", peers, "--initial-cluster", "default="+peers,
			"--unsafe-no-fsync=true"), // as for the API server's
		Ready: func(ctx context.Context) error {
			return probe(ctx, &http.Client{Timeout: time.Second, Transport: &http.Transport{
				DisableKeepAlives: true, DialContext: p.Space.Dial,
			}}, client+"/health")
		},
	}
}

// LeasesURL is the URL of that etcd for nodes.
func (p *Plane) LeasesURL() string {
	return "http://" + netip.AddrPortFrom(p.Lab.ControlIP, LeasesPort).String()
}

// APIServer serves on the underlay and on the link to the machine.
func (p *Plane) APIServer() process.Program {
	l, file := p.Lab, p.CA.Path
	args := []string{
		filepath.Join(p.Bin, "kube-apiserver"),
		"--etcd-servers=http://127.0.0.1:2379",
		"--bind-address=0.0.0.0", "--secure-port=" + strconv.Itoa(l.APIPort), "--advertise-address=" + l.ControlIP.String(),
		"--tls-cert-file=" + file("apiserver.crt"), "--tls-private-key-file=" + file("apiserver.key"),
		"--client-ca-file=" + p.CA.CAFile(),
		"--kubelet-client-certificate=" + file("apiserver-kubelet.crt"), "--kubelet-client-key=" + file("apiserver-kubelet.key"),
		"--kubelet-preferred-address-types=InternalIP",
		"--service-account-key-file=" + file("sa.pub"), "--service-account-signing-key-file=" + file("sa.key"),
		"--service-account-issuer=https://kubernetes.default.svc",
		"--service-cluster-ip-range=" + l.ServiceCIDR.String(),
		"--authorization-mode=Node,RBAC", "--allow-privileged=true",
		"--enable-admission-plugins=NodeRestriction",
		// The control plane has routes to pods, and no kube-proxy: requests to webhooks and aggregated APIs are sent to an endpoint of their
		// Service.
		"--enable-aggregator-routing=true",
		// The API server's client certificate for aggregated APIs. The name excludes the authority's other certificates.
		"--proxy-client-cert-file=" + file("apiserver-front-proxy.crt"), "--proxy-client-key-file=" + file("apiserver-front-proxy.key"),
		"--requestheader-client-ca-file=" + p.CA.CAFile(), "--requestheader-allowed-names=" + FrontProxy,
		"--requestheader-username-headers=X-Remote-User", "--requestheader-group-headers=X-Remote-Group",
		"--requestheader-extra-headers-prefix=X-Remote-Extra-",
		// With the gate on, the API server lists every kind of object once per second until caches are filled, which delays that on a slow
		// machine.
		"--feature-gates=SizeBasedListCostEstimate=false",
	}
	if l.Runtime == plan.RuntimeCNI { // without kubelets, nothing makes service accounts for pods
		args = append(args, "--disable-admission-plugins=ServiceAccount")
	}
	return process.Program{Name: "kube-apiserver", Argv: p.Space.Enter(args...), Ready: p.ready()}
}

// ready checks the API server from the machine, on the path that the lab's user takes. It keeps its connection, because repeated
// handshakes would load a slow machine.
func (p *Plane) ready() func(context.Context) error {
	client := sync.OnceValues(p.Client)
	return func(ctx context.Context) error {
		c, err := client()
		if err != nil {
			return err
		}
		return probe(ctx, c, p.server(p.HostAddr)+"/readyz")
	}
}

// Client returns a client of the API server with the administrator's identity. It ignores proxies in the environment.
func (p *Plane) Client() (*http.Client, error) {
	pair, err := tls.LoadX509KeyPair(p.CA.Path(Admin+".crt"), p.CA.Path(Admin+".key"))
	if err != nil {
		return nil, fmt.Errorf("load the administrator's certificate: %w", err)
	}
	ca, err := os.ReadFile(p.CA.CAFile())
	if err != nil {
		return nil, fmt.Errorf("load the lab's authority: %w", err)
	}
	pool := x509.NewCertPool()
	pool.AppendCertsFromPEM(ca)
	tr := &http.Transport{IdleConnTimeout: 10 * time.Second, TLSClientConfig: &tls.Config{RootCAs: pool, Certificates: []tls.Certificate{pair}, MinVersion: tls.VersionTLS12}}
	return &http.Client{Transport: tr, Timeout: time.Minute}, nil
}

var errNotReady = errors.New("not ready")

func probe(ctx context.Context, client *http.Client, url string) error {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return fmt.Errorf("ask %s: %w", url, err)
	}
	res, err := client.Do(req)
	if err != nil {
		return fmt.Errorf("ask %s: %w", url, err)
	}
	defer func() { _ = res.Body.Close() }()
	body, _ := io.ReadAll(io.LimitReader(res.Body, 4096))
	if res.StatusCode != http.StatusOK {
		return fmt.Errorf("%s: %w: %s %s", url, errNotReady, res.Status, body)
	}
	return nil
}

// ControllerManager is needed only with kubelets, as is the Scheduler.
func (p *Plane) ControllerManager() process.Program {
	cidrs := []string{"--allocate-node-cidrs=false"} // Weft's controller allocates the nodes' subnets
	if p.Lab.Network.Flannel() {
		cidrs = []string{"--allocate-node-cidrs=true", "--cluster-cidr=" + p.Lab.FlannelCIDR.String(), "--configure-cloud-routes=false"}
	}
	return process.Program{Name: "kube-controller-manager", Argv: p.Space.Enter(append([]string{
		filepath.Join(p.Bin, "kube-controller-manager"), "--kubeconfig=" + p.KubeconfigOf(Controller),
		"--service-account-private-key-file=" + p.CA.Path("sa.key"), "--root-ca-file=" + p.CA.CAFile(),
		"--use-service-account-credentials=true", "--leader-elect=false", "--bind-address=127.0.0.1",
	}, cidrs...)...)}
}

// Scheduler places pods on nodes.
func (p *Plane) Scheduler() process.Program {
	return process.Program{Name: "kube-scheduler", Argv: p.Space.Enter(
		filepath.Join(p.Bin, "kube-scheduler"), "--kubeconfig="+p.KubeconfigOf(Scheduler),
		"--leader-elect=false", "--bind-address=127.0.0.1",
	)}
}
