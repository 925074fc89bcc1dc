// Package openstack runs a real OpenStack for labs and tests: Keystone, Neutron with ML2/OVN, Octavia with the OVN provider, MariaDB and
// OVN's central programs, all from Debian's packages (build/prepare --openstack), without systemd and without a message broker. With the
// driver openvswitch, Neutron has ML2/OVS, with RabbitMQ and Neutron's agents on the nodes, and there is no Octavia.
//
// Everything runs in one namespace of the lab. Databases listen on unix sockets; the three APIs listen on all addresses of the namespace.
// Schemas are made once per machine and cached, because they take half of the first start.
package openstack

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/netip"
	"path/filepath"
	"strings"
	"time"

	"golang.org/x/sync/errgroup"

	"weft.dev/weft/lab/ground"
	"weft.dev/weft/lab/plan"
	"weft.dev/weft/lab/process"
	"weft.dev/weft/lab/stack/ovn"
)

// Ports of the three APIs, the same as in every OpenStack.
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
	// PhysicalNetwork is Neutron's name of the network outside; each node maps it to a bridge.
	PhysicalNetwork = "physnet1"
)

// Stack is an OpenStack of a lab. The zero values of optional fields are usable.
type Stack struct {
	Space ground.Space   // where the programs run; it needs a /run of its own (Octavia's sockets have fixed paths there)
	Group *process.Group // runs them
	// Driver is Neutron's: plan.OpenStackOVN or plan.OpenStackOpenVSwitch. Default: plan.OpenStackOVN.
	Driver string
	Dir    string // state, configuration, sockets and logs; at most 60 bytes, because of the sockets' paths
	Cache  string // directory of the prepared databases; "": every start prepares them
	// Addr is the address of the APIs for nodes of the lab: the public and internal endpoints of the catalogue. Default 127.0.0.1.
	Addr netip.Addr
	// HostAddr is the address of the APIs for the machine: the admin endpoints of the catalogue. Default: Addr.
	HostAddr netip.Addr
	// Without leaves a service out: "octavia" saves 320 MB.
	Without string
	// TokenSeconds is the lifetime of tokens in seconds; default 86400.
	TokenSeconds int
	// Prefix of the programs' names in the group; default "openstack".
	Prefix string
}

// octavia is a service that a Stack can be without.
const octavia = "octavia"

// maxDir leaves room for the socket's name within the 107 bytes of a unix socket's path.
const maxDir = 60

// Start starts everything and returns once all APIs answer and the catalogue is complete.
func (s *Stack) Start(ctx context.Context) error {
	if err := s.defaults(); err != nil {
		return err
	}
	if err := (view{s}).write(); err != nil {
		return err
	}
	// Octavia's sockets are in a directory with a fixed name; the namespace's own /run separates them from other labs'.
	if _, err := s.Group.Run(ctx, "", s.Space.Enter("mkdir", "-p", "/run/octavia")...); err != nil {
		return err
	}
	db := database{place: s.place(), cache: s.Cache}
	if err := db.prepare(ctx); err != nil {
		return fmt.Errorf("prepare OpenStack's databases: %w", err)
	}
	if err := s.Group.Start(ctx, db.program()); err != nil {
		return err
	}
	if s.Driver == plan.OpenStackOVN {
		if err := s.central().Start(ctx); err != nil {
			return err
		}
	}
	all, below := errgroup.WithContext(ctx)
	for _, start := range s.services() {
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

// step is a program to start, and a function to call once it serves.
type step struct {
	program process.Program
	then    func(context.Context) error
}

// services returns lists of steps: the lists run concurrently, each list in its order.
func (s *Stack) services() [][]step {
	a := apis{s.place()}
	neutron := []step{{program: a.neutron()}}
	if s.Driver == plan.OpenStackOpenVSwitch {
		neutron = []step{{program: broker{s.place()}.program()}, {program: a.neutron()}}
	}
	with := s.Without != octavia
	keystone := catalogue{client: s.HTTP(), addr: s.Addr, hostAddr: s.HostAddr, octavia: with}
	lists := [][]step{{{program: a.keystone(), then: keystone.fill}}, neutron}
	if with {
		lists = append(lists, []step{{program: a.octaviaAgent()}, {program: a.octavia()}})
	}
	return lists
}

// central returns OVN's databases and northd.
func (s *Stack) central() *ovn.Central {
	return &ovn.Central{Space: s.Space, Group: s.Group, Dir: s.Dir, Run: filepath.Join(s.Dir, "run"), Prefix: s.Prefix}
}

// place returns where the programs run; its names are complete after defaults.
func (s *Stack) place() place {
	return place{space: s.Space, group: s.Group, dir: s.Dir, prefix: s.Prefix}
}

// Stop ends everything that Start started. MariaDB gets time to write; the other programs keep no state.
func (s *Stack) Stop() {
	s.Group.Stop(0, func(name string) bool { return s.own(name) && !strings.HasSuffix(name, "/mariadb") })
	s.Group.Stop(15*time.Second, s.own)
}

func (s *Stack) own(name string) bool { return strings.HasPrefix(name, s.Prefix+"/") }

// AuthURL is Keystone's address for the lab's nodes.
func (s *Stack) AuthURL() string { return url(s.Addr, KeystonePort) + "/v3" }

// HTTP returns a client that works from any namespace.
func (s *Stack) HTTP() *http.Client { return &http.Client{Transport: s.Transport()} }

// Transport connects from inside the stack's namespace.
func (s *Stack) Transport() *http.Transport {
	return &http.Transport{DialContext: s.place().dial, IdleConnTimeout: 10 * time.Second, MaxIdleConnsPerHost: 8}
}

// Environment returns the environment of the openstack command on the machine, as NAME=VALUE.
func (s *Stack) Environment() []string {
	return []string{
		"OS_AUTH_URL=" + url(s.HostAddr, KeystonePort) + "/v3", "OS_USERNAME=" + Admin, "OS_PASSWORD=" + AdminPassword,
		"OS_PROJECT_NAME=" + Admin, "OS_USER_DOMAIN_NAME=Default", "OS_PROJECT_DOMAIN_NAME=Default",
		"OS_IDENTITY_API_VERSION=3", "OS_REGION_NAME=" + Region, "OS_INTERFACE=admin",
	}
}

// NB returns OVN's northbound database as OVN's programs name it, and SB the southbound one.
func (s *Stack) NB() string { return "unix:" + s.place().sock("nb") }

// SB returns the southbound database; ovn-controllers of all nodes connect to it by its socket's path.
func (s *Stack) SB() string { return "unix:" + s.place().sock("sb") }

func url(ip netip.Addr, port uint16) string { return "http://" + netip.AddrPortFrom(ip, port).String() }

var errLongDir = errors.New("the folder's path is too long for unix sockets in it")

func (s *Stack) defaults() error {
	if len(s.Dir) > maxDir {
		return fmt.Errorf("%s: %w: at most %d bytes", s.Dir, errLongDir, maxDir)
	}
	switch s.Driver {
	case "":
		s.Driver = plan.OpenStackOVN
	case plan.OpenStackOpenVSwitch:
		s.Without = octavia
		if err := brokerInstalled(); err != nil {
			return err
		}
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
