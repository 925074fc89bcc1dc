package openstack

import (
	"bytes"
	"embed"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"text/template"

	"weft.dev/weft/lab/plan"
)

//go:embed conf host
var files embed.FS

// view has the values for the configuration's templates.
type view struct{ *Stack }

// write makes the stack's folders, and renders the configuration of its programs.
func (v view) write() error {
	for _, dir := range []string{"run", "log", "conf", "lock", "neutron", "seed", "rabbitmq"} {
		if err := os.MkdirAll(filepath.Join(v.Dir, dir), 0o755); err != nil {
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
		if err := page.Execute(&text, v); err != nil {
			return fmt.Errorf("render %s: %w", entry.Name(), err)
		}
		if err := os.WriteFile(filepath.Join(v.Dir, "conf", entry.Name()), text.Bytes(), 0o600); err != nil {
			return fmt.Errorf("write %s: %w", entry.Name(), err)
		}
	}
	return nil
}

// Log returns the directory of logs.
func (v view) Log() string { return filepath.Join(v.Dir, "log") }

// Conf returns the directory of rendered files.
func (v view) Conf() string { return filepath.Join(v.Dir, "conf") }

// NeutronPort is the port of Neutron's API.
func (v view) NeutronPort() int { return NeutronPort }

// OctaviaPort is the port of Octavia's API.
func (v view) OctaviaPort() int { return OctaviaPort }

// OVN reports whether OVN implements Neutron's networks.
func (v view) OVN() bool { return v.Driver == plan.OpenStackOVN }

// LocalBroker is RabbitMQ's address for Neutron itself.
func (v view) LocalBroker() string { return brokerURL(netip.MustParseAddr("127.0.0.1")) }

// Region is the catalogue's only region.
func (v view) Region() string { return Region }

// PhysicalNetwork returns Neutron's name of the network outside.
func (v view) PhysicalNetwork() string { return PhysicalNetwork }

// Database returns SQLAlchemy's URL of a database.
func (v view) Database(name string) string {
	return "mysql+pymysql://root@localhost/" + name + "?unix_socket=" + v.place().sock("mysql") + "&charset=utf8"
}

// Service returns a service's authentication settings.
func (v view) Service(name string) string {
	auth := fmt.Sprintf("http://127.0.0.1:%d/v3", KeystonePort)
	return strings.Join([]string{
		"www_authenticate_uri = " + auth, "auth_url = " + auth, "auth_type = password",
		"project_domain_name = Default", "user_domain_name = Default", "project_name = service",
		"username = " + name, "password = " + servicePassword, "region_name = " + Region,
	}, "\n")
}
