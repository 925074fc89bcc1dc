// Package conf parses kubestack.conf, the configuration with which KubeStack and stackube access OpenStack, in their users' existing form.
// It is pure.
package conf

import (
	"errors"
	"fmt"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"gopkg.in/gcfg.v1"
)

// Config is a kubestack.conf. Fields are named after its keys.
type Config struct {
	Global       Global
	LoadBalancer LoadBalancer
	Plugin       Plugin
}

// Global configures access and authentication to OpenStack.
type Global struct {
	AuthURL                     string // auth-url: Keystone v3, ending in /v3
	Username                    string // username, or user-id
	UserID                      string
	Password                    Secret
	TokenID                     Secret // token-id
	TenantID                    string // tenant-id or tenant-name: the project of the credentials
	TenantName                  string
	DomainID                    string // domain-id or domain-name of the user; default: the domain named Default
	DomainName                  string
	Region                      string
	ExtNetID                    string // ext-net-id: the external network of routers and floating IPs; "" for none
	CAFile                      string // ca-file: PEM certificates that sign OpenStack's; default: the system's
	ApplicationCredentialID     string
	ApplicationCredentialSecret Secret
}

// LoadBalancer configures load balancers.
type LoadBalancer struct {
	Method            string // lb-method; default ROUND_ROBIN, or SOURCE_IP_PORT if the provider has no other
	Provider          string // lb-provider; default: Octavia's
	CreateMonitor     bool
	MonitorDelay      time.Duration // whole seconds; default 10 s
	MonitorTimeout    time.Duration // whole seconds; default 3 s
	MonitorMaxRetries int           // 1 to 10; default 3
}

// Plugin configures how the provider connects pods.
type Plugin struct {
	Name              string // plugin-name
	IntegrationBridge string // integration-bridge; default br-int
}

// file is the form in which gcfg parses it.
type file struct {
	Global struct {
		AuthURL                     string `gcfg:"auth-url"`
		Username                    string `gcfg:"username"`
		UserID                      string `gcfg:"user-id"`
		Password                    string `gcfg:"password"`
		TokenID                     string `gcfg:"token-id"`
		TenantID                    string `gcfg:"tenant-id"`
		TenantName                  string `gcfg:"tenant-name"`
		DomainID                    string `gcfg:"domain-id"`
		DomainName                  string `gcfg:"domain-name"`
		Region                      string `gcfg:"region"`
		ExtNetID                    string `gcfg:"ext-net-id"`
		KeystoneVersion             string `gcfg:"keystone-version"`
		CAFile                      string `gcfg:"ca-file"`
		ApplicationCredentialID     string `gcfg:"application-credential-id"`
		ApplicationCredentialSecret string `gcfg:"application-credential-secret"`
	}
	LoadBalancer struct {
		Method            string `gcfg:"lb-method"`
		Provider          string `gcfg:"lb-provider"`
		CreateMonitor     string `gcfg:"create-monitor"`
		MonitorDelay      string `gcfg:"monitor-delay"`
		MonitorTimeout    string `gcfg:"monitor-timeout"`
		MonitorMaxRetries string `gcfg:"monitor-max-retries"`
	}
	Plugin struct {
		Name              string `gcfg:"plugin-name"`
		IntegrationBridge string `gcfg:"integration-bridge"`
	}
}

// maxSize limits a configuration in bytes.
const maxSize = 1 << 20

// Parse parses a configuration. The notes are for the operator's log: values that were interpreted differently from how they are written.
// The error names each invalid key, and never contains a value that may be secret.
func Parse(text string) (config Config, notes []string, err error) {
	if len(text) > maxSize {
		return Config{}, nil, fmt.Errorf("kubestack.conf has %d bytes: at most %d are read", len(text), maxSize)
	}
	var f file
	if err := gcfg.ReadStringInto(&f, text); err != nil {
		return Config{}, nil, fmt.Errorf("read kubestack.conf: %w", err)
	}
	p := parser{}
	config = Config{Global: p.global(f), LoadBalancer: p.balancer(f), Plugin: p.plugin(f)}
	if len(p.errs) > 0 {
		return Config{}, nil, fmt.Errorf("kubestack.conf: %w", errors.Join(p.errs...))
	}
	return config, p.notes, nil
}

type parser struct {
	errs  []error
	notes []string
}

func (p *parser) fail(section, key, format string, args ...any) {
	p.errs = append(p.errs, fmt.Errorf("[%s] %s: %s", section, key, fmt.Sprintf(format, args...)))
}

func (p *parser) global(f file) Global {
	g := Global{
		AuthURL: p.authURL(f.Global.AuthURL), Username: f.Global.Username, UserID: f.Global.UserID,
		Password: Secret(f.Global.Password), TokenID: Secret(f.Global.TokenID),
		TenantID: f.Global.TenantID, TenantName: f.Global.TenantName,
		DomainID: f.Global.DomainID, DomainName: f.Global.DomainName,
		Region: f.Global.Region, ExtNetID: f.Global.ExtNetID, CAFile: f.Global.CAFile,
		ApplicationCredentialID:     f.Global.ApplicationCredentialID,
		ApplicationCredentialSecret: Secret(f.Global.ApplicationCredentialSecret),
	}
	if v := f.Global.KeystoneVersion; v != "" && v != "3" && v != "v3" && v != "v3.0" {
		p.notes = append(p.notes, fmt.Sprintf("[Global] keystone-version: %q is read as 3: Keystone v2 no longer exists", v))
	}
	p.credentials(g)
	return g
}

// authURL returns the address of Keystone's v3 interface on the same host.
func (p *parser) authURL(text string) string {
	const key = "auth-url"
	if text == "" {
		p.fail("Global", key, "missing: give Keystone's address, for instance https://keystone.example:5000/v3")
		return ""
	}
	u, err := url.Parse(text)
	if err != nil || u.Host == "" || u.Scheme != "http" && u.Scheme != "https" {
		p.fail("Global", key, "not an http or https address: write it like https://keystone.example:5000/v3")
		return ""
	}
	if u.User != nil || u.RawQuery != "" || u.Fragment != "" {
		p.fail("Global", key, "a user, a query or a fragment is not read: give the address alone")
		return ""
	}
	path := strings.TrimRight(u.Path, "/")
	if base, found := strings.CutSuffix(path, "/v2.0"); found {
		path = base
		p.notes = append(p.notes, "[Global] auth-url: /v2.0 is read as /v3: Keystone v2 no longer exists")
	}
	if !strings.HasSuffix(path, "/v3") {
		path += "/v3"
	}
	u.Path, u.RawPath = path, ""
	return u.String()
}

func (p *parser) credentials(g Global) {
	user := g.Username != "" || g.UserID != ""
	switch application := g.ApplicationCredentialID != "" || g.ApplicationCredentialSecret != ""; {
	case application && (g.ApplicationCredentialID == "" || g.ApplicationCredentialSecret == ""):
		p.fail("Global", "application-credential-id, application-credential-secret", "one is missing: give both")
	case application && (user || g.Password != "" || g.TokenID != ""):
		p.fail("Global", "application-credential-id", "given together with a user or token: give one way to authenticate")
	case application:
	case g.TokenID != "" && (user || g.Password != ""):
		p.fail("Global", "token-id", "given together with a user: give one way to authenticate")
	case g.TokenID != "":
	case !user:
		p.fail("Global", "username", "missing: give username or user-id with password, or an application credential")
	case g.Username != "" && g.UserID != "":
		p.fail("Global", "username, user-id", "both given: give one")
	case g.Password == "":
		p.fail("Global", "password", "missing")
	}
	if g.DomainID != "" && g.DomainName != "" {
		p.fail("Global", "domain-id, domain-name", "both given: give one")
	}
}

// methods are Octavia's methods to choose a member (lb_algorithm of a pool).
func methods() []string {
	return []string{"LEAST_CONNECTIONS", "ROUND_ROBIN", "SOURCE_IP", "SOURCE_IP_PORT"}
}

func (p *parser) balancer(f file) LoadBalancer {
	const section = "LoadBalancer"
	in := f.LoadBalancer
	lb := LoadBalancer{Method: in.Method, Provider: in.Provider}
	if lb.Method != "" && !slices.Contains(methods(), lb.Method) {
		p.fail(section, "lb-method", "%q is unknown: use one of %s", lb.Method, strings.Join(methods(), ", "))
	}
	lb.CreateMonitor = p.yes(section, "create-monitor", in.CreateMonitor)
	lb.MonitorDelay = p.seconds("monitor-delay", in.MonitorDelay, 10*time.Second)
	lb.MonitorTimeout = p.seconds("monitor-timeout", in.MonitorTimeout, 3*time.Second)
	if lb.CreateMonitor && lb.MonitorTimeout > lb.MonitorDelay && len(p.errs) == 0 {
		p.fail(section, "monitor-timeout", "%s is longer than monitor-delay, %s", lb.MonitorTimeout, lb.MonitorDelay)
	}
	lb.MonitorMaxRetries = 3
	if in.MonitorMaxRetries != "" {
		n, err := strconv.Atoi(in.MonitorMaxRetries)
		if err != nil || n < 1 || n > 10 {
			p.fail(section, "monitor-max-retries", "%q is not a number from 1 to 10", in.MonitorMaxRetries)
		}
		lb.MonitorMaxRetries = n
	}
	return lb
}

// yes parses a boolean as gcfg does.
func (p *parser) yes(section, key, text string) bool {
	switch strings.ToLower(text) {
	case "true", "yes", "on", "1":
		return true
	case "", "false", "no", "off", "0":
		return false
	}
	p.fail(section, key, "%q is neither yes nor no", text)
	return false
}

// seconds parses a Go duration; like KubeStack it truncates to seconds, and adds a note about it.
func (p *parser) seconds(key, text string, otherwise time.Duration) time.Duration {
	if text == "" {
		return otherwise
	}
	d, err := time.ParseDuration(text)
	if err != nil || d < time.Second || d > time.Hour {
		p.fail("LoadBalancer", key, "%q is not a duration from 1s to 1h, such as 10s", text)
		return otherwise
	}
	if whole := d.Truncate(time.Second); whole != d {
		p.notes = append(p.notes, fmt.Sprintf("[LoadBalancer] %s: %s is read as %s: Octavia counts whole seconds", key, d, whole))
		d = whole
	}
	return d
}

// maxName is the kernel's limit of a device name.
const maxName = 15

func (p *parser) plugin(f file) Plugin {
	out := Plugin{Name: f.Plugin.Name, IntegrationBridge: f.Plugin.IntegrationBridge}
	if out.IntegrationBridge == "" {
		out.IntegrationBridge = "br-int"
	}
	if b := out.IntegrationBridge; len(b) > maxName || strings.ContainsAny(b, "/ \t\n:") || b == "." || b == ".." {
		p.fail("Plugin", "integration-bridge", "%q cannot be the name of a bridge: at most %d bytes without blanks, '/' and ':'", b, maxName)
	}
	return out
}
