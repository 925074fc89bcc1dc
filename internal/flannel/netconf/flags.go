package netconf

import (
	"cmp"
	"errors"
	"flag"
	"fmt"
	"io"
	"net/netip"
	"regexp"
	"strings"
)

// Flags are flanneld's flags.
type Flags struct {
	Etcd  EtcdFlags
	Kube  KubeFlags
	Iface IfaceFlags
	// SubnetFile is the file to which the daemon writes the node's subnet.
	SubnetFile string
	// WireGuardKeyFile has the private key of the WireGuard backend ($WIREGUARD_KEY_FILE).
	WireGuardKeyFile string
	// Masq, SequentialPorts and Forward select the node's rules (--ip-masq, --ip-masq-fully-random-disable, --iptables-forward-rules).
	Masq, SequentialPorts, Forward bool
	// HealthIP and HealthPort are the address of /healthz and /readyz; with port 0 they are not served.
	HealthIP   string
	HealthPort int
	// Verbosity is -v: 2 and more logs details.
	Verbosity int
	// Version requests only the version.
	Version bool
	// Unused are given flags that have no effect here.
	Unused []string
}

// EtcdFlags select and authenticate to etcd.
type EtcdFlags struct {
	Endpoints                  []string
	Prefix                     string
	KeyFile, CertFile, CAFile  string
	Username, Password         string
	endpoints                  string
	renewMargin, resync        int
	blackhole                  bool
	publicIP, publicIP6, reach string
}

// KubeFlags configure leases in Kubernetes.
type KubeFlags struct {
	// Enabled stores leases in Kubernetes (--kube-subnet-mgr).
	Enabled                       bool
	APIURL, Kubeconfig            string
	AnnotationPrefix, NetConfPath string
	// Condition lets the daemon set the Node's condition NetworkUnavailable (--set-node-network-unavailable).
	Condition bool
}

// IfaceFlags choose the interface and addresses for the traffic between nodes.
type IfaceFlags struct {
	Names, Patterns           []string
	CanReach, Public, Public6 netip.Addr
}

// defaultKeyFile is flanneld's file of its private key, and keyFileVariable the variable that names another one.
const (
	defaultKeyFile  = "/run/flannel/wgkey"
	keyFileVariable = "WIREGUARD_KEY_FILE"
)

// EnvironmentPrefix starts the environment variables that replace flags: FLANNELD_IP_MASQ for --ip-masq.
const EnvironmentPrefix = "FLANNELD_"

// list is a flag that can be repeated.
type list struct{ to *[]string }

func (l list) String() string {
	if l.to == nil {
		return ""
	}
	return strings.Join(*l.to, ",")
}

// Set implements flag.Value.
func (l list) Set(value string) error {
	*l.to = append(*l.to, value)
	return nil
}

const (
	defaultRenewMargin = 60
	maxRenewMargin     = 1439
	defaultResync      = 5
)

// ParseFlags parses a command line. Missing flags are taken from the environment. The help text is written to usage.
func ParseFlags(args []string, getenv func(string) string, usage io.Writer) (*Flags, error) {
	f := &Flags{WireGuardKeyFile: cmp.Or(getenv(keyFileVariable), defaultKeyFile)}
	set := flag.NewFlagSet("flanneld", flag.ContinueOnError)
	set.SetOutput(usage)
	f.define(set)
	if err := set.Parse(args); err != nil {
		return nil, err
	}
	if set.NArg() > 0 {
		return nil, fmt.Errorf("argument %q is not a flag: flanneld takes flags only", set.Arg(0))
	}
	given := map[string]bool{}
	set.Visit(func(one *flag.Flag) { given[one.Name] = true })
	var errs []error
	set.VisitAll(func(one *flag.Flag) {
		name := EnvironmentPrefix + strings.ToUpper(strings.ReplaceAll(one.Name, "-", "_"))
		value := getenv(name)
		if given[one.Name] || value == "" {
			return
		}
		if err := set.Set(one.Name, value); err != nil {
			errs = append(errs, fmt.Errorf("environment variable %s=%q: %w", name, value, err))
		}
		given[one.Name] = true
	})
	for _, unused := range []string{"iptables-resync", "subnet-lease-renew-margin", "ip-blackhole-route", "vmodule", "log_backtrace_at"} {
		if given[unused] {
			f.Unused = append(f.Unused, "--"+unused)
		}
	}
	if err := errors.Join(append(errs, f.check())...); err != nil {
		return nil, err
	}
	return f, nil
}

func (f *Flags) define(set *flag.FlagSet) {
	e, k := &f.Etcd, &f.Kube
	set.StringVar(&e.endpoints, "etcd-endpoints", "http://127.0.0.1:4001,http://127.0.0.1:2379", "etcd's endpoints, separated by commas")
	set.StringVar(&e.Prefix, "etcd-prefix", "/coreos.com/network", "prefix of the keys in etcd")
	set.StringVar(&e.KeyFile, "etcd-keyfile", "", "private key of this client in etcd")
	set.StringVar(&e.CertFile, "etcd-certfile", "", "certificate of this client in etcd")
	set.StringVar(&e.CAFile, "etcd-cafile", "", "certificates of the authorities that sign etcd's")
	set.StringVar(&e.Username, "etcd-username", "", "user in etcd")
	set.StringVar(&e.Password, "etcd-password", "", "the user's password")
	set.IntVar(&e.renewMargin, "subnet-lease-renew-margin", defaultRenewMargin, "accepted, 1 to 1439; leases are kept alive continuously")
	set.Var(list{&f.Iface.Names}, "iface", "name or address of the interface between nodes; repeat it to name others to try")
	set.Var(list{&f.Iface.Patterns}, "iface-regex", "regular expression on addresses, then names, tried after --iface; can be repeated")
	set.StringVar(&e.reach, "iface-can-reach", "", "take the interface by which the kernel routes to this address")
	set.StringVar(&e.publicIP, "public-ip", "", "address that other nodes use for this one, instead of the interface's")
	set.StringVar(&e.publicIP6, "public-ipv6", "", "the same for IPv6")
	set.StringVar(&f.SubnetFile, "subnet-file", "/run/flannel/subnet.env", "file with the node's subnet for the plugin")
	set.BoolVar(&f.Masq, "ip-masq", false, "masquerade what leaves the network")
	set.BoolVar(&f.SequentialPorts, "ip-masq-fully-random-disable", false, "do not choose the ports of masqueraded connections at random")
	set.BoolVar(&k.Enabled, "kube-subnet-mgr", false, "take subnets from the Nodes' podCIDRs and keep leases in their annotations; otherwise in etcd")
	set.StringVar(&k.APIURL, "kube-api-url", "", "URL of the API server; empty: the kubeconfig's, or the pod's")
	set.StringVar(&k.Kubeconfig, "kubeconfig-file", "", "path of a kubeconfig; empty: the pod's service account")
	set.StringVar(&k.AnnotationPrefix, "kube-annotation-prefix", "flannel.alpha.coreos.com", "prefix of the annotations")
	set.StringVar(&k.NetConfPath, "net-config-path", "/etc/kube-flannel/net-conf.json", "the network configuration, with --kube-subnet-mgr")
	set.BoolVar(&k.Condition, "set-node-network-unavailable", true, "set the Node's condition NetworkUnavailable to False once pods can be reached")
	set.StringVar(&f.HealthIP, "healthz-ip", "0.0.0.0", "address of /healthz and /readyz")
	set.IntVar(&f.HealthPort, "healthz-port", 0, "port of /healthz and /readyz; 0: none")
	set.IntVar(&e.resync, "iptables-resync", defaultResync, "accepted; rules are repaired when they change")
	set.BoolVar(&f.Forward, "iptables-forward-rules", true, "accept what is forwarded from or to the network")
	set.BoolVar(&e.blackhole, "ip-blackhole-route", false, "accepted without effect")
	set.BoolVar(&f.Version, "version", false, "print the version and exit")
	set.IntVar(&f.Verbosity, "v", 0, "verbosity of the log; 2 and more logs details")
	set.String("vmodule", "", "accepted without effect")
	set.String("log_backtrace_at", "", "accepted without effect")
}

// addresses parses the flags that are addresses.
func (f *Flags) addresses() []error {
	var errs []error
	for _, a := range []struct {
		flag, text string
		to         *netip.Addr
		v4, v6     bool
	}{
		{"iface-can-reach", f.Etcd.reach, &f.Iface.CanReach, true, true},
		{"public-ip", f.Etcd.publicIP, &f.Iface.Public, true, false},
		{"public-ipv6", f.Etcd.publicIP6, &f.Iface.Public6, false, true},
	} {
		if a.text == "" {
			continue
		}
		addr, err := netip.ParseAddr(a.text)
		if err != nil || (addr.Is4() && !a.v4) || (addr.Is6() && !a.v6) || addr.Zone() != "" {
			errs = append(errs, fmt.Errorf("--%s=%s: it is an address of the right family", a.flag, a.text))
			continue
		}
		*a.to = addr
	}
	return errs
}

func (f *Flags) check() error {
	var errs []error
	fail := func(format string, args ...any) { errs = append(errs, fmt.Errorf(format, args...)) }
	if m := f.Etcd.renewMargin; m < 1 || m > maxRenewMargin {
		fail("--subnet-lease-renew-margin=%d: it is from 1 to %d minutes", m, maxRenewMargin)
	}
	if f.HealthPort < 0 || f.HealthPort > 65535 {
		fail("--healthz-port=%d: it is from 0 to 65535", f.HealthPort)
	}
	for _, pattern := range f.Iface.Patterns {
		if _, err := regexp.Compile(pattern); err != nil {
			fail("--iface-regex=%s: %w", pattern, err)
		}
	}
	errs = append(errs, f.addresses()...)
	if (f.Etcd.KeyFile == "") != (f.Etcd.CertFile == "") {
		fail("--etcd-keyfile and --etcd-certfile belong together: give both or neither")
	}
	for endpoint := range strings.SplitSeq(f.Etcd.endpoints, ",") {
		if endpoint = strings.TrimSpace(endpoint); endpoint != "" {
			f.Etcd.Endpoints = append(f.Etcd.Endpoints, endpoint)
		}
	}
	if !f.Kube.Enabled && len(f.Etcd.Endpoints) == 0 {
		fail("--etcd-endpoints is empty: name one such as http://127.0.0.1:2379, or use --kube-subnet-mgr")
	}
	return errors.Join(errs...)
}
