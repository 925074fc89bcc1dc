package plan

import (
	"encoding/json"
	"errors"
	"math"
	"net"
	"net/netip"
	"path/filepath"
	"testing"
	"time"

	types100 "github.com/containernetworking/cni/pkg/types/100"

	"weft.dev/weft/internal/attach"
	"weft.dev/weft/internal/cni"
	"weft.dev/weft/internal/goldentest"
	"weft.dev/weft/internal/link/podlink"
)

func settings() *Settings {
	return &Settings{
		ClusterNetworks: []netip.Prefix{netip.MustParsePrefix("10.128.0.0/14"), netip.MustParsePrefix("fd01::/48")},
		ServiceNetworks: []netip.Prefix{netip.MustParsePrefix("172.30.0.0/16"), netip.MustParsePrefix("fd02::/112")},
		HostGroup:       77,
		TxOffloadOff:    true,
	}
}

func record(addresses ...string) *attach.Record {
	rec := &attach.Record{
		Version:       attach.Version,
		Network:       "overlay",
		ContainerID:   "3f9c",
		IfName:        "eth0",
		Netns:         "/var/run/netns/cni-1",
		HostInterface: "weft2345abcdefg",
		MTU:           1450,
		BootID:        "boot",
		State:         attach.Planned,
		Created:       time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC),
	}
	for _, s := range addresses {
		p := netip.MustParsePrefix(s)
		rec.Addresses = append(rec.Addresses, p)
		rec.Gateway = append(rec.Gateway, p.Masked().Addr().Next())
	}
	rec.MAC = MAC(rec.Addresses).String()
	return rec
}

func cases() map[string]struct {
	rec      *attach.Record
	settings *Settings
} {
	noGateway := record("10.128.2.5/23")
	noGateway.Gateway = nil
	farGateway := record("10.128.2.5/32")
	farGateway.Gateway = []netip.Addr{netip.MustParseAddr("169.254.1.1")}
	router := record("10.128.2.5/23")
	router.Macvlan = &attach.Macvlan{Parent: "eth0", MTU: 1500, Addresses: []netip.Addr{netip.MustParseAddr("192.0.2.1")}}
	routeMTU := settings()
	routeMTU.RouteMTU = 1300
	return map[string]struct {
		rec      *attach.Record
		settings *Settings
	}{
		"ipv4":          {record("10.128.2.5/23"), settings()},
		"egress-router": {router, settings()},
		"ipv6":          {record("fd01:0:0:2::5/64"), settings()},
		"dual-stack":    {record("10.128.2.5/23", "fd01:0:0:2::5/64"), settings()},
		"no-gateway":    {noGateway, settings()},
		"far-gateway":   {farGateway, settings()},
		"mtu-migration": {record("10.128.2.5/23"), routeMTU},
		"nothing-set":   {record("10.128.2.5/23"), &Settings{}},
	}
}

func TestGolden(t *testing.T) {
	for name, c := range cases() {
		t.Run(name, func(t *testing.T) {
			pair, err := Pair(c.rec, c.settings)
			if err != nil {
				t.Fatal(err)
			}
			got, err := json.MarshalIndent(struct {
				Pair   pairText         `json:"pair"`
				Result *types100.Result `json:"result"`
			}{textOf(pair), Result(c.rec, c.settings, net.HardwareAddr{2, 0, 0, 0, 0, 1})}, "", "  ")
			if err != nil {
				t.Fatal(err)
			}
			golden := filepath.Join("testdata", name+".json")
			goldentest.Compare(t, golden, string(got)+"\n")
		})
	}
}

// pairText is a pair in a golden file.
type pairText struct {
	HostName, PodName, Netns, Owner, MAC string
	MTU                                  int
	HostGroup                            uint32
	TxOffloadOff                         bool
	Addresses                            []netip.Prefix
	Routes                               []string
}

func textOf(pair podlink.Pair) pairText {
	text := pairText{
		HostName: pair.HostName, PodName: pair.PodName, Netns: pair.Netns, Owner: pair.Owner,
		MAC: pair.PodMAC.String(), MTU: pair.MTU, HostGroup: pair.HostGroup, TxOffloadOff: pair.TxOffloadOff,
		Addresses: pair.PodAddresses,
	}
	for _, r := range pair.PodRoutes {
		line := r.Dst.String()
		if r.Gateway.IsValid() {
			line += " via " + r.Gateway.String()
		}
		if r.OnLink {
			line += " onlink"
		}
		if r.MTU != 0 {
			line += " mtu " + itoa(r.MTU)
		}
		text.Routes = append(text.Routes, line)
	}
	return text
}

func itoa(n int) string {
	data, _ := json.Marshal(n) //nolint:errchkjson // A number.
	return string(data)
}

func TestResultInEveryVersion(t *testing.T) {
	for name, c := range cases() {
		for _, version := range []string{"0.3.1", "0.4.0", "1.0.0", "1.1.0"} {
			result, err := Result(c.rec, c.settings, nil).GetAsVersion(version)
			if err != nil {
				t.Fatalf("%s: version %s: %v", name, version, err)
			}
			back, err := types100.NewResultFromResult(result)
			if err != nil {
				t.Fatalf("%s: version %s: %v", name, version, err)
			}
			if err := Compare(c.rec, back); err != nil {
				t.Errorf("%s: version %s: the result does not fit its own record: %v", name, version, err)
			}
		}
	}
}

func TestCompare(t *testing.T) {
	rec := record("10.128.2.5/23")
	for name, test := range map[string]struct {
		change func(*types100.Result)
		same   bool
	}{
		"same":              {func(*types100.Result) {}, true},
		"more addresses":    {func(r *types100.Result) { r.IPs = append(r.IPs, &types100.IPConfig{}) }, true},
		"more interfaces":   {func(r *types100.Result) { r.Interfaces = append(r.Interfaces, &types100.Interface{Name: "x"}) }, true},
		"nil entries":       {func(r *types100.Result) { r.IPs, r.Interfaces = append(r.IPs, nil), append(r.Interfaces, nil) }, true},
		"no interface":      {func(r *types100.Result) { r.Interfaces = nil }, false},
		"only the host end": {func(r *types100.Result) { r.Interfaces = r.Interfaces[:1] }, false},
		"other MAC":         {func(r *types100.Result) { r.Interfaces[1].Mac = "0a:58:00:00:00:01" }, false},
		"no addresses":      {func(r *types100.Result) { r.IPs = nil }, false},
		"other address":     {func(r *types100.Result) { r.IPs[0].Address.IP = net.IPv4(10, 128, 2, 6) }, false},
		"other length":      {func(r *types100.Result) { r.IPs[0].Address.Mask = net.CIDRMask(24, 32) }, false},
	} {
		t.Run(name, func(t *testing.T) {
			prev := Result(rec, settings(), nil)
			test.change(prev)
			err := Compare(rec, prev)
			if (err == nil) != test.same || err != nil && !errors.Is(err, ErrDiffers) {
				t.Errorf("%v", err)
			}
		})
	}
	if err := Compare(rec, nil); err != nil {
		t.Errorf("no result: %v", err)
	}
}

func TestPairRefused(t *testing.T) {
	noHost, badMAC := record("10.128.2.5/23"), record("10.128.2.5/23")
	noHost.HostInterface = ""
	badMAC.MAC = "x"
	for _, rec := range []*attach.Record{noHost, badMAC} {
		if pair, err := Pair(rec, settings()); err == nil {
			t.Errorf("%+v", pair)
		}
	}
}

func TestMAC(t *testing.T) {
	for want, addresses := range map[string][]netip.Prefix{
		"0a:58:0a:80:02:05": {netip.MustParsePrefix("fd01::5/64"), netip.MustParsePrefix("10.128.2.5/23")},
		"":                  nil,
	} {
		if got := MAC(addresses).String(); got != want {
			t.Errorf("%v: %s, want %s", addresses, got, want)
		}
	}
}

func TestShape(t *testing.T) {
	rec := record("10.128.2.5/23")
	if got := Shape(rec); got != (podlink.Shape{}) {
		t.Errorf("without limits: %s", got)
	}
	for _, test := range []struct {
		bits uint64
		mtu  int
		want podlink.Shaper
	}{
		{1_000, 1450, podlink.Shaper{Rate: 125, Burst: 2900, Queue: 46_400}},
		{10_000_000, 1450, podlink.Shaper{Rate: 1_250_000, Burst: 31_250, Queue: 125_000}},
		{10_000_000, 8950, podlink.Shaper{Rate: 1_250_000, Burst: 31_250, Queue: 286_400}},
		{1_000_000, 0, podlink.Shaper{Rate: 125_000, Burst: 131_070, Queue: 2_097_120}},
		{10_000_000_000, 1450, podlink.Shaper{Rate: 1_250_000_000, Burst: 31_250_000, Queue: 125_000_000}},
		{cni.MaxBandwidth, 1450, podlink.Shaper{Rate: 125_000_000_000_000, Burst: math.MaxInt32, Queue: math.MaxInt32}},
	} {
		rec.Bandwidth, rec.MTU = cni.Bandwidth{Ingress: test.bits}, test.mtu
		if got := Shape(rec); got != (podlink.Shape{Receive: test.want}) {
			t.Errorf("%d bit/s: %s", test.bits, got)
		}
		rec.Bandwidth = cni.Bandwidth{Egress: test.bits}
		if pair, err := Pair(rec, settings()); err != nil || pair.Shape != (podlink.Shape{Send: test.want}) {
			t.Errorf("%d bit/s: %s, %v", test.bits, pair.Shape, err)
		}
	}
}
