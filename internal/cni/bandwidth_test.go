package cni

import (
	"encoding/json"
	"errors"
	"strings"
	"testing"
)

func TestParseBandwidth(t *testing.T) {
	for _, test := range []struct {
		raw   string
		want  Bandwidth
		wrong []string
	}{
		{``, Bandwidth{}, nil},
		{`null`, Bandwidth{}, nil},
		{`{}`, Bandwidth{}, nil},
		{`{"ingressRate":10000000,"ingressBurst":4294967295,"egressRate":1000,"egressBurst":34359738359}`, Bandwidth{Ingress: 10_000_000, Egress: 1000}, nil},
		{`{"IngressRate":0,"IngressBurst":0,"EgressRate":1000000000000000,"EgressBurst":4294967295}`, Bandwidth{Egress: MaxBandwidth}, nil}, // containerd
		{`{"ingressRate":null,"egressRate":5000000}`, Bandwidth{Egress: 5_000_000}, nil},
		{`{"ingressRate":999}`, Bandwidth{}, []string{"runtimeConfig.bandwidth: ingressRate", "kubernetes.io/ingress-bandwidth", "999", "from 1k"}},
		{`{"egressRate":1000000000000001}`, Bandwidth{}, []string{"egressRate", "kubernetes.io/egress-bandwidth", "to 1P"}},
		{`{"ingressRate":-5,"egressRate":"10M"}`, Bandwidth{}, []string{"ingressRate", "-5", "egressRate", `"10M"`}},
		{`{"ingressRate":1e400}`, Bandwidth{}, []string{"1e400"}},
		{`{"ingressRate":5000,"egressRate":1}`, Bandwidth{}, []string{"egressRate"}},
		{`[]`, Bandwidth{}, []string{"runtimeConfig.bandwidth"}},
		{`"10M"`, Bandwidth{}, []string{"runtimeConfig.bandwidth"}},
	} {
		got, err := ParseBandwidth(json.RawMessage(test.raw))
		if got != test.want || (err != nil) != (test.wrong != nil) {
			t.Errorf("%s: %+v, %v", test.raw, got, err)
			continue
		}
		if failure := new(Error); err != nil && (!errors.As(err, &failure) || failure.Code != CodeInvalidConfig) {
			t.Errorf("%s: %v", test.raw, err)
		}
		for _, word := range test.wrong {
			if !strings.Contains(err.Error(), word) {
				t.Errorf("%s: %v does not say %q", test.raw, err, word)
			}
		}
	}
}

// An invalid value makes a pod's ADD fail, but not its DEL.
func TestWrongBandwidthIsOfAddOnly(t *testing.T) {
	conf, err := ParseNetConf([]byte(`{"cniVersion":"1.0.0","name":"weft","type":"weft","runtimeConfig":{"bandwidth":[7]}}`))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := ParseBandwidth(conf.RuntimeConfig.Bandwidth); err == nil {
		t.Error("a list was taken for limits")
	}
}

// Whatever a runtime passes, the result is within the range or an error.
func FuzzParseBandwidth(f *testing.F) {
	for _, text := range []string{`{"ingressRate":1000000}`, `{"EgressRate":1e6}`, `{"ingressRate":-1}`, `null`, `{"egressRate":{}}`, `{"ingressRate":18446744073709551616}`} {
		f.Add([]byte(text))
	}
	f.Fuzz(func(t *testing.T, raw []byte) {
		got, err := ParseBandwidth(raw)
		if !got.Valid() || err != nil && got.Limited() {
			t.Errorf("%s: %+v, %v", raw, got, err)
		}
	})
}
