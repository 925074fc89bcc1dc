// Package attach holds a node's data about its pods' interfaces: one record on disk for each (container, interface), written before the
// first side effect of an ADD and removed after the last of its DEL.
//
// A restart starts from the records, not from the switch or the API server. Addresses, OpenFlow ports and host interface names in use are
// derived from them (Store.InUse): there is no second store that could leak.
package attach

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"path"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode"

	"weft.dev/weft/internal/cni"
)

const (
	// Version is the version of the records that this program reads and writes.
	Version = 1
	// MaxRecord is the maximum size of a record file, in bytes. A record is below 1 KiB.
	MaxRecord = 64 << 10

	// maxContainerID is the maximum length of a container id, in bytes. The specification has no limit; runtimes' ids have 64. With this
	// limit, Owner fits into a link's alias.
	maxContainerID = 128
	// maxInterfaceName is the length of the longest interface name (IFNAMSIZ of linux/if.h is 16, with its NUL).
	maxInterfaceName = 15
	// maxAddresses is the maximum number of addresses of one interface; dual stack needs two.
	maxAddresses = 16
	// maxClaims is the maximum number of claims of one attachment, maxClaim the maximum size of each in bytes.
	maxClaims, maxClaim = 64, 512
	// maxDetails is the maximum size of a network's details about an attachment, in bytes.
	maxDetails = 16 << 10
	// portPrefix is the prefix of host veths' names.
	portPrefix = "weft-p"
)

// State is the progress of an attachment.
type State string

// The states of an attachment, in their order.
const (
	// Planned: the record is on disk; side effects may have begun.
	Planned State = "planned"
	// Attached: the interface is complete, and the runtime has the result or is about to get it.
	Attached State = "attached"
	// Closing: the interface is being removed.
	Closing State = "closing"
)

// Key names an attachment: an interface of a container.
type Key struct {
	ContainerID string
	IfName      string
}

// String returns the key as in logs and owners of fragments.
func (k Key) String() string { return k.ContainerID + "/" + k.IfName }

// Owner returns the attachment's name as the owner of links, flows and rows.
func (k Key) Owner() string { return "attachment/" + k.String() }

// Record is an attachment on disk.
type Record struct {
	// Version is the format's; Put sets it.
	Version int `json:"version"`
	// Network is the network that the interface is on. Addresses are unique within one.
	Network string `json:"network"`
	// ContainerID is the sandbox's id.
	ContainerID string `json:"containerID"`
	// IfName is the interface's name in the sandbox.
	IfName string `json:"ifName"`
	// Netns is the path of the sandbox's network namespace.
	Netns string `json:"netns"`
	// PodNamespace, PodName and PodUID identify the pod; empty if the runtime did not pass them.
	PodNamespace string `json:"podNamespace,omitempty"`
	PodName      string `json:"podName,omitempty"`
	PodUID       string `json:"podUID,omitempty"`
	// Addresses are the interface's own, with the length of their subnet.
	Addresses []netip.Prefix `json:"addresses,omitempty"`
	// Gateway has the gateways, at most one of each family.
	Gateway []netip.Addr `json:"gateway,omitempty"`
	// MAC is the interface's hardware address, empty while it has none.
	MAC string `json:"mac,omitempty"`
	// OFPort is the port's number on the integration bridge; 0 if it has none.
	OFPort uint32 `json:"ofport,omitempty"`
	// HostInterface is the host veth; empty if there is none.
	HostInterface string `json:"hostInterface,omitempty"`
	// MTU is the interface's MTU in bytes; 0: the kernel's default.
	MTU int `json:"mtu,omitempty"`
	// BootID is the boot of the node in which the interface was made. No interface survives a reboot.
	BootID string `json:"bootID"`
	// State is the attachment's progress.
	State State `json:"state"`
	// Created is when the record was first written.
	Created time.Time `json:"created"`

	// HostPorts are the ports of the node that are forwarded to the pod. Macvlan is its second interface, nil if it has none. Bandwidth
	// limits what it receives and sends. Secondary says that another interface of the sandbox has the network's routes. They are in a file of
	// their own beside the records: after a rollback, an older agent treats a record with an unknown field as broken.
	HostPorts []cni.HostPort `json:"-"`
	Macvlan   *Macvlan       `json:"-"`
	Bandwidth cni.Bandwidth  `json:"-"`
	Secondary bool           `json:"-"`
	// Claims are further resources that the attachment has for itself on this node, in a syntax of its network: "ofport br0 17". Of two
	// attachments with one claim, the second is refused with a *ConflictError. They are in the file beside the record.
	Claims []string `json:"-"`
	// Details is a network's data about the attachment: a JSON object, or nothing. It is in the file beside the record.
	Details json.RawMessage `json:"-"`
}

// Key returns the attachment's key.
func (r *Record) Key() Key { return Key{ContainerID: r.ContainerID, IfName: r.IfName} }

// Addrs returns the addresses without the lengths of their prefixes.
func (r *Record) Addrs() []netip.Addr {
	addrs := make([]netip.Addr, 0, len(r.Addresses))
	for _, address := range r.Addresses {
		addrs = append(addrs, address.Addr())
	}
	return addrs
}

// clone returns a copy that shares nothing with r. Empty lists become nil, as after reading from disk.
func (r *Record) clone() Record {
	c := *r
	c.Addresses, c.Gateway = nil, nil
	c.Addresses = append(c.Addresses, r.Addresses...)
	c.Gateway = append(c.Gateway, r.Gateway...)
	c.HostPorts, c.Macvlan = append([]cni.HostPort(nil), r.HostPorts...), r.Macvlan.clone()
	c.Claims, c.Details = append([]string(nil), r.Claims...), append(json.RawMessage(nil), r.Details...)
	return c
}

// ParseRecord decodes and validates a record. It refuses unknown fields and anything after the object, so that a truncated record, or one
// of a newer program, is never accepted.
func ParseRecord(data []byte) (Record, error) {
	decoder := json.NewDecoder(bytes.NewReader(data))
	decoder.DisallowUnknownFields()
	var rec Record
	if err := decoder.Decode(&rec); err != nil {
		return Record{}, fmt.Errorf("attachment record: %w", err)
	}
	if _, err := decoder.Token(); !errors.Is(err, io.EOF) {
		return Record{}, errors.New("attachment record: data after the JSON object")
	}
	if err := rec.Validate(); err != nil {
		return Record{}, err
	}
	return rec.clone(), nil
}

// encode returns the record's encoding on disk.
func (r *Record) encode() ([]byte, error) {
	data, err := json.MarshalIndent(r, "", "  ")
	if err != nil {
		return nil, fmt.Errorf("attachment record %s: %w", r.Key(), err)
	}
	return append(data, '\n'), nil
}

// Validate reports the first invalid field.
func (r *Record) Validate() error {
	if r.Version != Version {
		return fmt.Errorf("attachment record: version %d, this program knows %d", r.Version, Version)
	}
	for _, field := range []struct {
		name  string
		valid bool
		value any
	}{
		{"containerID", cni.IsIdentifier(r.ContainerID) && len(r.ContainerID) <= maxContainerID, r.ContainerID},
		{"ifName", isInterfaceName(r.IfName), r.IfName},
		{"network", cni.IsIdentifier(r.Network), r.Network},
		{"netns", isCleanPath(r.Netns), r.Netns},
		{"podNamespace", r.PodNamespace == "" || cni.IsIdentifier(r.PodNamespace), r.PodNamespace},
		{"podName", r.PodName == "" || cni.IsIdentifier(r.PodName), r.PodName},
		{"podUID", r.PodUID == "" || cni.IsIdentifier(r.PodUID), r.PodUID},
		{"addresses", validAddresses(r.Addresses), r.Addresses},
		{"gateway", validGateway(r.Gateway), r.Gateway},
		{"mac", r.MAC == "" || isMAC(r.MAC), r.MAC},
		{"hostInterface", r.HostInterface == "" || isInterfaceName(r.HostInterface), r.HostInterface},
		{"mtu", r.MTU == 0 || r.MTU >= 68 && r.MTU <= 65535, r.MTU}, // RFC 791's least, and the largest IPv4 packet.
		{"bootID", cni.IsIdentifier(r.BootID), r.BootID},
		{"state", r.State == Planned || r.State == Attached || r.State == Closing, r.State},
		{"created", !r.Created.IsZero() && r.Created.Year() < 10000, r.Created},
		{"macvlan", r.Macvlan.valid(), r.Macvlan},
		{"bandwidth", r.Bandwidth.Valid(), r.Bandwidth},
		{"hostPorts", cni.ValidHostPorts(r.HostPorts), r.HostPorts},
		{"claims", validClaims(r.Claims), r.Claims},
		{"details", validDetails(r.Details), string(r.Details)},
	} {
		if !field.valid {
			return fmt.Errorf("attachment record: %s %q is not valid", field.name, fmt.Sprint(field.value))
		}
	}
	return nil
}

func validAddresses(addresses []netip.Prefix) bool {
	if len(addresses) > maxAddresses {
		return false
	}
	seen := map[netip.Addr]bool{}
	for _, p := range addresses {
		addr := p.Addr()
		if !p.IsValid() || addr.IsUnspecified() || addr.IsMulticast() || addr.IsLoopback() || addr.Is4In6() || seen[addr] {
			return false
		}
		seen[addr] = true
	}
	return true
}

func validClaims(claims []string) bool {
	return len(claims) <= maxClaims && !slices.ContainsFunc(claims, func(c string) bool { return c == "" || len(c) > maxClaim || !isPrintable(c) })
}

// validDetails reports whether details are a JSON object that leaves room in the file for the other fields.
func validDetails(details json.RawMessage) bool {
	if len(details) == 0 {
		return true
	}
	var object map[string]json.RawMessage
	return len(details) <= maxDetails && json.Unmarshal(details, &object) == nil && object != nil
}

func validGateway(gateway []netip.Addr) bool {
	var v4, v6 int
	for _, addr := range gateway {
		switch {
		case !addr.IsValid() || addr.Is4In6() || addr.IsUnspecified() || addr.IsMulticast() || addr.Zone() != "":
			return false
		case addr.Is4():
			v4++
		default:
			v6++
		}
	}
	return v4 <= 1 && v6 <= 1
}

func isMAC(s string) bool {
	mac, err := net.ParseMAC(s)
	return err == nil && len(mac) == 6 && mac.String() == s && mac[0]&1 == 0
}

func isInterfaceName(s string) bool {
	return s != "" && len(s) <= maxInterfaceName && s != "." && s != ".." && isPrintable(s) &&
		!strings.ContainsFunc(s, func(r rune) bool { return r == '/' || r == ':' || unicode.IsSpace(r) })
}

func isCleanPath(s string) bool {
	return len(s) < 4096 && path.IsAbs(s) && path.Clean(s) == s && isPrintable(s)
}

func isPrintable(s string) bool {
	return !strings.ContainsFunc(s, func(r rune) bool { return r < ' ' || r == 0x7f || r == '\uFFFD' })
}

// fileName is the name of a key's record. It is a hash, so that no container id can point out of the directory.
func fileName(key Key) string {
	sum := sha256.Sum256(fmt.Appendf(nil, "%d:%s/%s#0", len(key.ContainerID), key.ContainerID, key.IfName))
	return hex.EncodeToString(sum[:20]) + fileSuffix
}

// PortName returns the name of the host veth that is the port with that number: "weft-p7".
func PortName(ofport uint32) string { return portPrefix + strconv.FormatUint(uint64(ofport), 10) }

// PortNumber returns the number in a name made by PortName.
func PortNumber(name string) (ofport uint32, ok bool) {
	digits, ok := strings.CutPrefix(name, portPrefix)
	number, err := strconv.ParseUint(digits, 10, 32)
	return uint32(number), ok && err == nil && PortName(uint32(number)) == name //nolint:gosec // parsed as 32 bits
}

// ReadBootID returns the id of the node's current boot (proc(5), /proc/sys/kernel/random/boot_id).
func ReadBootID() (string, error) {
	data, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	if err != nil {
		return "", fmt.Errorf("boot id: %w", err)
	}
	return strings.TrimSpace(string(data)), nil
}
