package northbound

import (
	"fmt"
	"net"
	"net/netip"

	"weft.dev/weft/internal/ovn"
)

// RouterKey returns the key of a VPC's router.
func RouterKey(vpcUID string) ovn.Key { return ovn.UUID(ovn.Router, vpcUID) }

// SwitchKey returns the key of a subnet's switch.
func SwitchKey(subnetUID string) ovn.Key { return ovn.UUID(ovn.Switch, subnetUID) }

// PortName returns the name of the logical port of an address in a subnet. It is the iface-id of the interface with the address.
func PortName(subnet string, addr netip.Addr) string { return subnet + "/" + addr.String() }

// MAC returns the MAC address derived from an IPv4 address: locally administered, and always the same.
func MAC(addr netip.Addr) string {
	ip := addr.As4()
	return fmt.Sprintf("0a:58:%02x:%02x:%02x:%02x", ip[0], ip[1], ip[2], ip[3])
}

// Derived reports whether a MAC address has the form of those derived from addresses. A pod may have only the one of its own address: any
// other may be that of another pod, of a router or of a NAT gateway.
func Derived(mac net.HardwareAddr) bool { return len(mac) == 6 && mac[0] == 0x0a && mac[1] == 0x58 }

func routerPortName(vpc, subnet string) string { return vpc + "/" + subnet }

func switchRouterPortName(subnet, vpc string) string { return subnet + "/router/" + vpc }

func peerPortName(vpc, remote string) string { return vpc + "/peer/" + remote }
