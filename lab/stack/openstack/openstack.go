// Package openstack runs a real OpenStack for labs and tests: Keystone, Neutron with ML2/OVN, Octavia with the OVN
// provider, MariaDB and OVN's central programs, all from Debian's packages (build/prepare --openstack), without systemd
// and without a message broker.
//
// Everything runs in one namespace of the lab. Databases listen on unix sockets; the three APIs listen on all addresses of
// the namespace. Schemas are made once per machine and kept in the cache, because they take half of the first start.
package openstack

import (
	"bytes"
	"context"
	"embed"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"text/template"
	"time"

	"golang.org/x/sync/errgroup"

	"weft.dev/weft/lab/ground"
	"weft.dev/weft/lab/process"
)

// Ports of the three APIs: those of every OpenStack.
const (
	KeystonePort = 5000
	NeutronPort  = 9696
	OctaviaPort  = 9876
)

// Names and passwords of the lab's OpenStack. It listens inside the lab only.
const (
	Region          = "RegionOne"
	Admin           = "admin"
	AdminPassword   = "weft-lab-admin-password"
	servicePassword = "weft-lab-service-password"
	// PhysicalNetwork is what Neutron calls the way to the outside; each node maps it to a bridge.
	PhysicalNetwork = "physnet1"
)

// Stack is an OpenStack of a lab. The zero values of optional fields are usable.
type Stack struct {
	Space ground.Space   // where the programs run; it needs a /run of its own (Octavia's sockets have fixed paths there)
	Group *process.Group // runs them
	Dir   string         // state, configuration, sockets and logs; at most 60 bytes, for the sockets' sake
	Cache string         // folder for the prepared databases; "": every start prepares them
	// Addr is where nodes of the lab reach the APIs: the public and internal endpoints of the catalogue. Default 127.0.0.1.
	Addr netip.Addr
	// HostAddr is where the machine reaches them: the admin endpoints of the catalogue. Default: Addr.
	HostAddr netip.Addr
	// Without leaves a service out: "octavia" saves 320 MB.
	Without string
	// TokenSeconds is the lifetime of tokens in seconds; default 86400.
	TokenSeconds int
	// Prefix of the programs' names in the group; default "openstack".
	Prefix string
}

//go:embed conf
var files embed.FS

// maxDir leaves room for the socket's name within the 107 bytes of a unix socket's path.
const maxDir = 60

// Start brings everything up and returns once all APIs answer and the catalogue is complete.
func (s *Stack) Start(ctx context.Context) error {
	if err := s.defaults(); err != nil {
		return err
	}
	if err := s.write(); err != nil {
		return err
	}
	// Octavia's sockets are in a folder with a fixed name, which a /run of the namespace's own keeps apart.
	if _, err := s.Group.Run(ctx, "", s.Space.Enter("mkdir", "-p", "/run/octavia")...); err != nil {
		return err
	}
	if err := s.seed(ctx); err != nil {
		return fmt.Errorf("prepare OpenStack's databases: %w", err)
	}
	if err := s.Group.Start(ctx, s.mariadb()); err != nil {
		return err
	}
	if err := s.central().Start(ctx); err != nil {
		return err
	}
	all, below := errgroup.WithContext(ctx)
	for _, start := range s.apis() {
		all.Go(func() error { return s.inOrder(below, start) })
	}
	return all.Wait()
}

func (s *Stack) inOrder(ctx context.Context, steps []step) error {
	for _, next := range steps {
		if next.program.Name != "" {
			if err := s.Group.Start(ctx, next.program); err != nil {
				return err
			}
		}
		if next.then == nil {
			continue
		}
		if err := next.then(ctx); err != nil {
			return err
		}
	}
	return nil
}

// step is a program to start, and what to do once it serves.
type step struct {
	program process.Program
	then    func(context.Context) error
}

// apis gives what is started side by side; each list in its order.
func (s *Stack) apis() [][]step {
	lists := [][]step{
		{{program: s.keystone(), then: s.catalogue}},
		{{program: s.neutron()}},
	}
	if s.Without != "octavia" {
		lists = append(lists, []step{{program: s.octaviaAgent()}, {program: s.octavia()}})
	}
	return lists
}

// Stop ends everything that Start started. MariaDB gets time to write; the rest keeps no state.
func (s *Stack) Stop() {
	s.Group.Stop(0, func(name string) bool { return s.own(name) && !strings.HasSuffix(name, "/mariadb") })
	s.Group.Stop(15*time.Second, s.own)
}

func (s *Stack) own(name string) bool { return strings.HasPrefix(name, s.Prefix+"/") }

// AuthURL is Keystone's address for the lab's nodes.
func (s *Stack) AuthURL() string { return url(s.Addr, KeystonePort) + "/v3" }

// HTTP returns a client that reaches the APIs from any namespace.
func (s *Stack) HTTP() *http.Client { return &http.Client{Transport: s.Transport()} }

// Transport dials from inside the stack's namespace.
func (s *Stack) Transport() *http.Transport {
	return &http.Transport{DialContext: s.dial, IdleConnTimeout: 10 * time.Second, MaxIdleConnsPerHost: 8}
}

func (s *Stack) dial(ctx context.Context, network, address string) (net.Conn, error) {
	return s.Space.Dial(ctx, network, address)
}

// Environment is what the openstack command needs, as NAME=VALUE; from the machine.
func (s *Stack) Environment() []string {
	return []string{
		"OS_AUTH_URL=" + url(s.HostAddr, KeystonePort) + "/v3", "OS_USERNAME=" + Admin, "OS_PASSWORD=" + AdminPassword,
		"OS_PROJECT_NAME=" + Admin, "OS_USER_DOMAIN_NAME=Default", "OS_PROJECT_DOMAIN_NAME=Default",
		"OS_IDENTITY_API_VERSION=3", "OS_REGION_NAME=" + Region, "OS_INTERFACE=admin",
	}
}

// NB and SB are OVN's databases as its programs name them.
func (s *Stack) NB() string { return "unix:" + s.sock("nb") }

// SB is the southbound database; ovn-controllers of all nodes connect to it by its socket's path.
func (s *Stack) SB() string { return "unix:" + s.sock("sb") }

func (s *Stack) sock(name string) string { return filepath.Join(s.Dir, "run", name+".sock") }

func url(ip netip.Addr, port uint16) string { return "http://" + netip.AddrPortFrom(ip, port).String() }

var errLongDir = errors.New("the folder's path is too long for unix sockets in it")

func (s *Stack) defaults() error {
	if len(s.Dir) > maxDir {
		return fmt.Errorf("%s: %w: at most %d bytes", s.Dir, errLongDir, maxDir)
	}
	if !s.Addr.IsValid() {
		s.Addr = netip.MustParseAddr("127.0.0.1")
	}
	if !s.HostAddr.IsValid() {
		s.HostAddr = s.Addr
	}
	if s.TokenSeconds == 0 {
		s.TokenSeconds = 86400
	}
	if s.Prefix == "" {
		s.Prefix = "openstack"
	}
	return nil
}

// write renders the configuration.
func (s *Stack) write() error {
	for _, dir := range []string{"run", "log", "conf", "lock", "neutron", "seed"} {
		if err := os.MkdirAll(filepath.Join(s.Dir, dir), 0o755); err != nil {
			return fmt.Errorf("make OpenStack's folders: %w", err)
		}
	}
	entries, err := files.ReadDir("conf")
	if err != nil {
		return fmt.Errorf("read OpenStack's configuration: %w", err)
	}
	for _, entry := range entries {
		page, err := template.ParseFS(files, "conf/"+entry.Name())
		if err != nil {
			return fmt.Errorf("parse %s: %w", entry.Name(), err)
		}
		var text bytes.Buffer
		if err := page.Execute(&text, view{s}); err != nil {
			return fmt.Errorf("render %s: %w", entry.Name(), err)
		}
		if err := os.WriteFile(filepath.Join(s.Dir, "conf", entry.Name()), text.Bytes(), 0o600); err != nil {
			return fmt.Errorf("write %s: %w", entry.Name(), err)
		}
	}
	return nil
}

// view is what the configuration's templates see of a stack.
type view struct{ *Stack }

// Log is the folder of logs.
func (v view) Log() string { return filepath.Join(v.Dir, "log") }

// Conf is the folder of rendered files.
func (v view) Conf() string { return filepath.Join(v.Dir, "conf") }

// NeutronPort is the port of Neutron's API.
func (v view) NeutronPort() int { return NeutronPort }

// OctaviaPort is the port of Octavia's API.
func (v view) OctaviaPort() int { return OctaviaPort }

// Region is the catalogue's only region.
func (v view) Region() string { return Region }

// PhysicalNetwork is the name of the way to the outside.
func (v view) PhysicalNetwork() string { return PhysicalNetwork }

// Database is SQLAlchemy's address of a database.
func (v view) Database(name string) string {
	return "mysql+pymysql://root@localhost/" + name + "?unix_socket=" + v.sock("mysql") + "&charset=utf8"
}

// Service is how a service authenticates.
func (v view) Service(name string) string {
	auth := fmt.Sprintf("http://127.0.0.1:%d/v3", KeystonePort)
	return strings.Join([]string{
		"www_authenticate_uri = " + auth, "auth_url = " + auth, "auth_type = password",
		"project_domain_name = Default", "user_domain_name = Default", "project_name = service",
		"username = " + name, "password = " + servicePassword, "region_name = " + Region,
	}, "\n")
}
