//go:build lab

package e2e

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	networkv1 "weft.dev/weft/api/openshift/v1"
	"weft.dev/weft/lab"
	"weft.dev/weft/test/traffic"
)

// Offsets of fields in a tunnel packet: a VXLAN header (RFC 7348, section 5), and in it an Ethernet frame with IPv4 and UDP.
const (
	vniAt    = 4
	innerAt  = 8
	innerIP  = innerAt + 14
	innerUDP = innerIP + 20
)

// device is a host without a Node: it has a subnet, a VNID, and a tunnel endpoint.
type device struct {
	conn    *net.UDPConn
	address netip.Addr // of a host behind the device
	buffer  []byte
}

// deviceVNID is the VNID of all traffic to the device.
const deviceVNID = 4711

// newDevice makes a HostSubnet for a host outside that requests a subnet, and waits until it has one.
func newDevice(t *testing.T, c *lab.Cluster) *device {
	t.Helper()
	const name = "device.example"
	subnets := objects(t, c, network, "hostsubnets")
	object := hostSubnet(name, name, c.Outside.IP.String(), "", map[string]string{
		networkv1.AnnotationAssignSubnet: "true", networkv1.AnnotationFixedVNID: fmt.Sprint(deviceVNID),
	})
	if err := createHostSubnet(t, subnets, object); err != nil {
		t.Fatal(err)
	}
	d := &device{buffer: make([]byte, 2048)}
	await(t, "a subnet for "+name, func(ctx context.Context) error {
		have, err := subnets.Get(ctx, name, metav1.GetOptions{})
		if err != nil {
			return err
		}
		text, _, _ := unstructured.NestedString(have.Object, "subnet")
		subnet, err := netip.ParsePrefix(text)
		d.address = subnet.Addr().Next().Next()
		return err
	})
	var err error
	if d.conn, err = traffic.ListenUDP(c.Outside.Netns, netip.AddrPortFrom(c.Outside.IP, vxlanPort)); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = d.conn.Close() })
	return d
}

// receive waits for a pod's datagram with that content in the tunnel, and returns the whole packet.
func (d *device) receive(ctx context.Context, content []byte) (packet []byte, from netip.AddrPort, err error) {
	for {
		deadline, _ := ctx.Deadline()
		if err := d.conn.SetReadDeadline(deadline); err != nil {
			return nil, from, err
		}
		n, from, err := d.conn.ReadFromUDPAddrPort(d.buffer)
		if err != nil {
			return nil, from, err
		}
		if n > innerUDP+8 && bytes.HasSuffix(d.buffer[:n], content) {
			return bytes.Clone(d.buffer[:n]), from, nil
		}
	}
}

// answer turns a tunnel packet around and sends it back with another VNI. The checksums remain valid.
func (d *device) answer(packet []byte, vni uint32, to netip.AddrPort) error {
	packet = bytes.Clone(packet)
	swap := func(at, size int) {
		first, second := bytes.Clone(packet[at:at+size]), bytes.Clone(packet[at+size:at+2*size])
		copy(packet[at:], append(second, first...))
	}
	swap(innerAt, 6)
	swap(innerIP+12, 4)
	swap(innerUDP, 2)
	binary.BigEndian.PutUint32(packet[vniAt:], vni<<8)
	_, err := d.conn.WriteToUDPAddrPort(packet, netip.AddrPortFrom(to.Addr(), vxlanPort))
	return err
}

// exchange has a pod send to the device, which answers with a VNI, and returns whether the answer arrives.
func (d *device) exchange(ctx context.Context, pod *lab.Pod, vni uint32) (arrives bool, err error) {
	ctx, cancel := context.WithTimeout(ctx, 3*time.Second)
	defer cancel()
	conn, err := traffic.ListenUDP(pod.Netns, netip.AddrPortFrom(pod.IPs[0], 0))
	if err != nil {
		return false, err
	}
	defer func() { _ = conn.Close() }()
	content := fmt.Appendf(nil, "to the device, which answers with %d at %d", vni, time.Now().UnixNano())
	if _, err := conn.WriteToUDPAddrPort(content, netip.AddrPortFrom(d.address, echoPort)); err != nil {
		return false, err
	}
	packet, from, err := d.receive(ctx, content)
	if err != nil {
		return false, fmt.Errorf("the pod's packet does not arrive: %w", err)
	}
	if got := binary.BigEndian.Uint32(packet[vniAt:]) >> 8; got != deviceVNID || from.Addr() != pod.Node.IP {
		return false, fmt.Errorf("the pod's packet comes from %s with VNI %d", from, got)
	}
	if err := d.answer(packet, vni, from); err != nil {
		return false, err
	}
	if err := conn.SetReadDeadline(time.Now().Add(brief)); err != nil {
		return false, err
	}
	n, _, err := conn.ReadFromUDPAddrPort(d.buffer)
	if late, known := errors.AsType[net.Error](err); known && late.Timeout() {
		return false, nil
	}
	return err == nil && bytes.Equal(d.buffer[:n], content), err
}

// Traffic to a host without a Node has the fixed VNID, whatever pod sends it. Traffic from there counts by its VNI.
func TestFixedVNID(t *testing.T) {
	c := cluster(t)
	e := &estate{cluster: c}
	e.flatAgain(t)
	addProject(t, c, projectA)
	pods := map[string]*lab.Pod{"default": addPodIn(t, c, "n1", "default", "device-d"), projectA: addPodIn(t, c, "n2", projectA, "device-a")}
	var d *device
	begin := func(t *testing.T) {
		t.Helper()
		d = newDevice(t, c)
		for _, p := range pods { // no host there answers ARP
			mustRun(t, p.Enter("ip", "neigh", "replace", d.address.String(), "lladdr", "0a:58:00:00:00:99", "dev", "eth0"))
		}
	}
	reach := func(t *testing.T, namespace string, vni uint32, want bool) {
		t.Helper()
		await(t, fmt.Sprintf("traffic between %s and the device, which answers with VNI %d", namespace, vni), func(ctx context.Context) error {
			arrives, err := d.exchange(ctx, pods[namespace], vni)
			if err == nil && arrives != want {
				err = fmt.Errorf("the answer arrives: %t", arrives)
			}
			return err
		})
	}
	t.Run("flat", func(t *testing.T) {
		begin(t)
		reach(t, "default", deviceVNID, true)
		reach(t, projectA, 12, true)
	})
	e.setMode(t, networkv1.PluginMultitenant)
	t.Run("isolated", func(t *testing.T) {
		begin(t)
		var own int64
		await(t, "a NetNamespace", func(ctx context.Context) error {
			have, err := objects(t, c, network, "netnamespaces").Get(ctx, projectA, metav1.GetOptions{})
			if err == nil {
				own, _, err = unstructured.NestedInt64(have.Object, "netid")
			}
			return err
		})
		reach(t, "default", deviceVNID, true) // global
		reach(t, projectA, 0, true)
		reach(t, projectA, uint32(own), true) //nolint:gosec // 24 bits
		reach(t, projectA, deviceVNID, false)
	})
}
