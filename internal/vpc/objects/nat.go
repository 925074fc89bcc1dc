package objects

import (
	"cmp"
	"encoding/json"
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation"

	kubeovn "weft.dev/weft/api/kubeovn/v1"
)

// Gateway is a VpcNatGateway.
type Gateway struct {
	Meta
	// VPC, Subnet and External are names.
	VPC, Subnet, External string
	LanIP                 netip.Addr
	// NoOwn reports that the gateway has no own address in the external subnet.
	NoOwn       bool
	Selector    map[string]string
	Tolerations []corev1.Toleration
	Affinity    corev1.Affinity
	Unsupported []string
}

// maxGatewayName is the length of a gateway's name with which the pods of its StatefulSet vpc-nat-gw-NAME can be created: the value of their
// label controller-revision-hash, at most 63 characters, is the StatefulSet's name, a hyphen and up to ten digits. Kube-OVN has the same limit.
const maxGatewayName = 63 - len("vpc-nat-gw-") - len("-0123456789")

// ParseGateway reads a VpcNatGateway. ok is false if nothing of it can be used.
func ParseGateway(gateway *kubeovn.VpcNatGateway) (g Gateway, problems Problems, ok bool) {
	spec := &gateway.Spec
	g = Gateway{
		Meta: Meta{Kind: "VpcNatGateway", Name: gateway.Name, UID: string(gateway.UID)}, VPC: spec.Vpc, Subnet: spec.Subnet,
		External: kubeovn.DefaultExternalSubnet, NoOwn: spec.NoDefaultEIP, Selector: map[string]string{},
		Tolerations: spec.Tolerations, Affinity: spec.Affinity, Unsupported: unsupportedGateway(spec),
	}
	if len(spec.ExternalSubnets) > 0 {
		g.External = spec.ExternalSubnets[0]
	}
	ok = true
	if len(gateway.Name) > maxGatewayName || strings.Contains(gateway.Name, ".") {
		problems.add("metadata.name", "%s is part of the name of a pod, which has no dots and a limited length; use a name without dots of at most %d characters",
			quote(gateway.Name), maxGatewayName)
		ok = false
	}
	if spec.Vpc == "" || spec.Vpc == kubeovn.DefaultVpc {
		problems.add("spec.vpc", "is Kube-OVN's default VPC, whose place the overlay takes; name a Vpc")
		ok = false
	}
	if spec.Subnet == "" {
		problems.add("spec.subnet", "is empty; name a Subnet of the VPC")
		ok = false
	}
	if g.LanIP, _ = problems.addr4("spec.lanIp", spec.LanIP, "10.0.1.254"); !g.LanIP.IsValid() {
		ok = false
	}
	for i, text := range spec.Selector {
		key, value, found := strings.Cut(text, ":")
		key, value = strings.TrimSpace(key), strings.TrimSpace(value)
		if !found || len(validation.IsQualifiedName(key)) > 0 || len(validation.IsValidLabelValue(value)) > 0 {
			problems.add(fmt.Sprintf("spec.selector[%d]", i), "%s is not a label; write one such as \"kubernetes.io/hostname: node1\"", quote(text))
			ok = false
			continue
		}
		g.Selector[key] = value
	}
	return g, problems, ok
}

func unsupportedGateway(spec *kubeovn.VpcNatGatewaySpec) []string {
	var fields []string
	for field, set := range map[string]bool{
		"namespace": spec.Namespace != "" && spec.Namespace != kubeovn.ConfigNamespace, "qosPolicy": spec.QoSPolicy != "",
		"replicas": spec.Replicas > 1, "bgpSpeaker": spec.BgpSpeaker != nil && spec.BgpSpeaker.Enabled, "bfd": spec.BFD != nil && spec.BFD.Enabled,
		"internalSubnets": len(spec.InternalSubnets) > 0, "internalCIDRs": len(spec.InternalCIDRs) > 0, "routes": len(spec.Routes) > 0,
		"annotations": len(spec.Annotations) > 0, "externalSubnets (all but the first)": len(spec.ExternalSubnets) > 1,
	} {
		if set {
			fields = append(fields, "spec."+field)
		}
	}
	slices.Sort(fields)
	return fields
}

// Age orders objects that exclude each other: the older one wins.
type Age struct {
	Meta
	Created time.Time
}

// Compare orders by age. The names decide between objects created within one second.
func (a Age) Compare(other Age) int {
	return cmp.Or(a.Created.Compare(other.Created), cmp.Compare(a.Name, other.Name), cmp.Compare(a.Kind, other.Kind))
}

func age(kind string, object *metav1.ObjectMeta) Age {
	return Age{Meta: Meta{Kind: kind, Name: object.Name, UID: string(object.UID)}, Created: object.CreationTimestamp.Time}
}

// EIP is an IptablesEIP.
type EIP struct {
	Age
	// Gateway and External are names.
	Gateway, External string
	// Wanted is the requested address; the zero value: any.
	Wanted netip.Addr
	// Addr is the assigned address; the zero value: none yet. The controller assigns a requested address by the EIP's finalizer, and reports it
	// in the status later (Reported). Another address is assigned by the status.
	Addr        netip.Addr
	Reported    bool
	Unsupported []string
}

// ParseEIP reads an IptablesEIP.
func ParseEIP(eip *kubeovn.IptablesEIP) (EIP, Problems) {
	e := EIP{
		Age: age("IptablesEIP", &eip.ObjectMeta), Gateway: eip.Spec.NatGwDp,
		External: cmp.Or(eip.Spec.ExternalSubnet, kubeovn.DefaultExternalSubnet),
	}
	var problems Problems
	if eip.Spec.V4ip != "" {
		e.Wanted, _ = problems.addr4("spec.v4ip", eip.Spec.V4ip, "192.168.100.230")
	}
	if e.Gateway == "" {
		problems.add("spec.natGwDp", "is empty; name a VpcNatGateway")
	}
	e.Addr, _ = netip.ParseAddr(eip.Status.IP) // written by the controller; anything else is no address
	if e.Reported = e.Addr.IsValid(); !e.Reported && slices.Contains(eip.Finalizers, kubeovn.Finalizer) {
		e.Addr = e.Wanted
	}
	for field, set := range map[string]bool{
		"spec.v6ip": eip.Spec.V6ip != "", "spec.macAddress": eip.Spec.MacAddress != "", "spec.qosPolicy": eip.Spec.QoSPolicy != "",
		"spec.namespace": eip.Spec.Namespace != "" && eip.Spec.Namespace != kubeovn.ConfigNamespace,
	} {
		if set {
			e.Unsupported = append(e.Unsupported, field)
		}
	}
	slices.Sort(e.Unsupported)
	return e, problems
}

// SNAT is an IptablesSnatRule.
type SNAT struct {
	Age
	EIP    string
	Prefix netip.Prefix
}

// ParseSNAT reads an IptablesSnatRule.
func ParseSNAT(rule *kubeovn.IptablesSnatRule) (SNAT, Problems) {
	r := SNAT{Age: age("IptablesSnatRule", &rule.ObjectMeta), EIP: rule.Spec.EIP}
	var problems Problems
	problems.eip(r.EIP)
	r.Prefix, _ = problems.prefix4("spec.internalCIDR", rule.Spec.InternalCIDR, "10.0.1.0/24")
	return r, problems
}

// FIP is an IptablesFIPRule.
type FIP struct {
	Age
	EIP      string
	Internal netip.Addr
}

// ParseFIP reads an IptablesFIPRule.
func ParseFIP(rule *kubeovn.IptablesFIPRule) (FIP, Problems) {
	r := FIP{Age: age("IptablesFIPRule", &rule.ObjectMeta), EIP: rule.Spec.EIP}
	var problems Problems
	problems.eip(r.EIP)
	r.Internal, _ = problems.addr4("spec.internalIp", rule.Spec.InternalIP, "10.0.1.5")
	return r, problems
}

// DNAT is an IptablesDnatRule.
type DNAT struct {
	Age
	EIP string
	// Protocol is tcp or udp.
	Protocol string
	Port     uint16
	Internal netip.AddrPort
}

// ParseDNAT reads an IptablesDnatRule.
func ParseDNAT(rule *kubeovn.IptablesDnatRule) (DNAT, Problems) {
	r := DNAT{
		Age: age("IptablesDnatRule", &rule.ObjectMeta), EIP: rule.Spec.EIP,
		Protocol: cmp.Or(strings.ToLower(strings.TrimSpace(rule.Spec.Protocol)), "tcp"),
	}
	var problems Problems
	problems.eip(r.EIP)
	if r.Protocol != "tcp" && r.Protocol != "udp" {
		problems.add("spec.protocol", "%s is neither tcp nor udp", quote(rule.Spec.Protocol))
	}
	if rule.Spec.Type == "share" {
		problems.add("spec.type", "share is not served; leave it out, or write exclusive")
	}
	r.Port = problems.port("spec.externalPort", rule.Spec.ExternalPort)
	addr, _ := problems.addr4("spec.internalIp", rule.Spec.InternalIP, "10.0.1.5")
	r.Internal = netip.AddrPortFrom(addr, problems.port("spec.internalPort", rule.Spec.InternalPort))
	return r, problems
}

func (p *Problems) eip(name string) {
	if name == "" {
		p.add("spec.eip", "is empty; name an IptablesEIP")
	}
}

func (p *Problems) port(field, text string) uint16 {
	port, err := strconv.ParseUint(strings.TrimSpace(text), 10, 16)
	if err != nil || port == 0 {
		p.add(field, "%s is not a port; write a number between 1 and 65535", quote(text))
		return 0
	}
	return uint16(port)
}

// Definition is the NetworkAttachmentDefinition of a gateway's external interface.
type Definition struct {
	// Master is the node's device, Mode the macvlan's.
	Master, Mode string
	// MTU is the interface's; 0: the master's.
	MTU int
}

// validDevice reports whether the kernel accepts the text as a device's name (dev_valid_name), and nft without quotes.
func validDevice(name string) bool {
	return name != "" && len(name) <= 15 && name != "." && name != ".." && strings.Trim(name, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._-") == ""
}

// MaxDefinition is the maximum length of a NetworkAttachmentDefinition's configuration, in bytes.
const MaxDefinition = 8192

// ParseDefinition reads the configuration of a NetworkAttachmentDefinition. Only the type macvlan is supported.
func ParseDefinition(config string) (Definition, Problems) {
	var problems Problems
	var conf struct {
		Type    string            `json:"type"`
		Master  string            `json:"master"`
		Mode    string            `json:"mode"`
		MTU     int               `json:"mtu"`
		Plugins []json.RawMessage `json:"plugins"`
	}
	const field = "spec.config"
	if len(config) > MaxDefinition {
		problems.add(field, "has more than %d bytes; write the configuration of one macvlan", MaxDefinition)
		return Definition{}, problems
	}
	if err := json.Unmarshal([]byte(config), &conf); err != nil {
		problems.add(field, "is not JSON: %v", err)
		return Definition{}, problems
	}
	if len(conf.Plugins) > 0 {
		problems.add(field+".plugins", "a list of plugins is not served; write the configuration of one macvlan")
		return Definition{}, problems
	}
	if conf.Type != "macvlan" {
		problems.add(field+".type", "%s is not served; write macvlan", quote(conf.Type))
	}
	if !validDevice(conf.Master) {
		problems.add(field+".master", "%s is not the name of a device; write one such as ens37", quote(conf.Master))
	}
	conf.Mode = cmp.Or(conf.Mode, "bridge")
	if !slices.Contains([]string{"bridge", "private", "vepa", "passthru"}, conf.Mode) {
		problems.add(field+".mode", "%s is not bridge, private, vepa or passthru", quote(conf.Mode))
	}
	if conf.MTU != 0 && (conf.MTU < minMTU || conf.MTU > 65535) {
		problems.add(field+".mtu", "%d is not between %d and 65535", conf.MTU, minMTU)
	}
	return Definition{Master: conf.Master, Mode: conf.Mode, MTU: conf.MTU}, problems
}

// NATConfig is the content of the two ConfigMaps.
type NATConfig struct {
	// Enabled is false unless enable-vpc-nat-gw is "true".
	Enabled bool
	// Image is the image of the gateways' pods; empty if ovn-vpc-nat-config does not name one.
	Image string
}

// ParseNATConfig reads the data of the ConfigMaps ovn-vpc-nat-gw-config and ovn-vpc-nat-config; nil: the ConfigMap does not exist.
func ParseNATConfig(gateways, images map[string]string) NATConfig {
	return NATConfig{
		Enabled: strings.EqualFold(strings.TrimSpace(gateways["enable-vpc-nat-gw"]), "true"),
		Image:   strings.TrimSpace(images["image"]),
	}
}
