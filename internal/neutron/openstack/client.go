// Package openstack is Weft's only client of OpenStack: it authenticates, renews tokens one at a time, limits the number of concurrent
// calls and the duration of each, and repeats calls that may be repeated.
//
// GET, HEAD and DELETE are repeated after failures of the connection and of the server, and every call after 429 Too Many Requests. A POST
// with an unknown outcome is not repeated: package cloud first looks for what it created.
package openstack

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"os"
	"slices"

	"github.com/gophercloud/gophercloud/v2"
	"github.com/gophercloud/gophercloud/v2/openstack"
	"github.com/gophercloud/gophercloud/v2/openstack/identity/v3/tokens"

	"weft.dev/weft/internal/neutron/conf"
)

// Client accesses the services of one OpenStack. Its methods and fields may be used concurrently.
type Client struct {
	Identity     *gophercloud.ServiceClient
	Network      *gophercloud.ServiceClient
	LoadBalancer *gophercloud.ServiceClient // nil if the catalogue has no load-balancer service
	// ProjectID is the project of the credentials.
	ProjectID string

	auth string // Keystone's address
}

// Hosts returns the host names and addresses of the services' interfaces, each once.
func (c *Client) Hosts() []string {
	texts := []string{c.auth, c.Identity.Endpoint, c.Network.Endpoint}
	if c.LoadBalancer != nil {
		texts = append(texts, c.LoadBalancer.Endpoint)
	}
	var hosts []string
	for _, text := range texts {
		if at, err := url.Parse(text); err == nil && at.Hostname() != "" && !slices.Contains(hosts, at.Hostname()) {
			hosts = append(hosts, at.Hostname())
		}
	}
	return hosts
}

// Options of a Client. The zero value is usable.
type Options struct {
	// Transport sends the requests. Default: a separate transport, with the environment's proxy and ca-file's certificates.
	Transport http.RoundTripper
	// Attempts is shared with other clients that may have the same credentials. Default: the client's own.
	Attempts *Attempts
}

// New authenticates and reads the catalogue. If the credentials have failed lately, it returns a *PausedError, without a request.
func New(ctx context.Context, g conf.Global, opts Options) (*Client, error) {
	transport := opts.Transport
	if transport == nil {
		var err error
		if transport, err = ownTransport(g.CAFile); err != nil {
			return nil, err
		}
	}
	provider, err := openstack.NewClient(g.AuthURL)
	if err != nil {
		return nil, fmt.Errorf("reach Keystone at %s: %w", g.AuthURL, err)
	}
	provider.HTTPClient = http.Client{Transport: newPatient(transport)}
	provider.UserAgent.Prepend("weft")
	attempts := opts.Attempts
	if attempts == nil {
		attempts = NewAttempts()
	}
	var c *Client
	err = attempts.do(ctx, g, func(ctx context.Context) (err error) {
		if err = openstack.Authenticate(ctx, provider, options(g)); err != nil {
			return fmt.Errorf("authenticate at Keystone, %s: %w", g.AuthURL, Explain(err))
		}
		c, err = services(provider, g)
		return err
	})
	if err != nil {
		return nil, err
	}
	if renew := provider.ReauthFunc; renew != nil {
		provider.ReauthFunc = func(ctx context.Context) error {
			return attempts.do(ctx, g, func(ctx context.Context) error { return Explain(renew(ctx)) })
		}
	}
	return c, nil
}

func services(provider *gophercloud.ProviderClient, g conf.Global) (*Client, error) {
	endpoint := gophercloud.EndpointOpts{Region: g.Region}
	c := &Client{auth: g.AuthURL}
	var err error
	if c.Identity, err = openstack.NewIdentityV3(provider, endpoint); err != nil {
		return nil, fmt.Errorf("find Keystone in its catalogue, region %q: %w", g.Region, err)
	}
	if c.Network, err = openstack.NewNetworkV2(provider, endpoint); err != nil {
		return nil, fmt.Errorf("find Neutron in Keystone's catalogue, region %q: %w", g.Region, err)
	}
	balancers, err := openstack.NewLoadBalancerV2(provider, endpoint)
	if _, none := errors.AsType[*gophercloud.ErrEndpointNotFound](err); err != nil && !none {
		return nil, fmt.Errorf("find Octavia in Keystone's catalogue, region %q: %w", g.Region, err)
	}
	if err == nil { // beside an error, gophercloud returns a client that cannot be used
		c.LoadBalancer = balancers
	}
	c.ProjectID = project(provider)
	return c, nil
}

// project is the token's project; "" if the token names none.
func project(provider *gophercloud.ProviderClient) string {
	result, ok := provider.GetAuthResult().(tokens.CreateResult)
	if !ok {
		return ""
	}
	p, err := result.ExtractProject()
	if err != nil || p == nil {
		return ""
	}
	return p.ID
}

// options translates kubestack.conf. A token cannot be renewed: with token-id, calls fail once it has expired.
func options(g conf.Global) gophercloud.AuthOptions {
	o := gophercloud.AuthOptions{
		IdentityEndpoint: g.AuthURL, Username: g.Username, UserID: g.UserID, Password: string(g.Password), TokenID: string(g.TokenID),
		TenantID: g.TenantID, TenantName: g.TenantName, DomainID: g.DomainID, DomainName: g.DomainName,
		ApplicationCredentialID: g.ApplicationCredentialID, ApplicationCredentialSecret: string(g.ApplicationCredentialSecret),
		AllowReauth: g.TokenID == "",
	}
	if g.ApplicationCredentialID != "" { // it determines user and project
		o.TenantID, o.TenantName, o.DomainID, o.DomainName = "", "", "", ""
		return o
	}
	if g.UserID != "" { // Keystone refuses a domain beside an id, and a project's name needs one
		if g.TenantName != "" && g.TenantID == "" {
			o.Scope = &gophercloud.AuthScope{ProjectName: g.TenantName, DomainID: g.DomainID, DomainName: g.DomainName}
			if g.DomainID == "" && g.DomainName == "" {
				o.Scope.DomainName = defaultDomain
			}
		}
		o.DomainID, o.DomainName = "", ""
		return o
	}
	if o.DomainID == "" && o.DomainName == "" && g.TokenID == "" {
		o.DomainName = defaultDomain
	}
	return o
}

// defaultDomain is the domain in which Keystone's bootstrap creates users and projects.
const defaultDomain = "Default"

func ownTransport(caFile string) (http.RoundTripper, error) {
	t, ok := http.DefaultTransport.(*http.Transport)
	if !ok {
		return nil, errors.New("the default HTTP transport has been replaced")
	}
	t = t.Clone()
	t.MaxIdleConnsPerHost = atOnce
	if caFile == "" {
		return t, nil
	}
	pem, err := os.ReadFile(caFile)
	if err != nil {
		return nil, fmt.Errorf("read the certificates of ca-file: %w", err)
	}
	pool := x509.NewCertPool()
	if !pool.AppendCertsFromPEM(pem) {
		return nil, fmt.Errorf("ca-file %s holds no PEM certificate", caFile)
	}
	t.TLSClientConfig = &tls.Config{RootCAs: pool, MinVersion: tls.VersionTLS12}
	return t, nil
}
