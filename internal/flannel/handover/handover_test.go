package handover

import (
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
)

// result is a file as containerd 1.6 writes it for flannel with bridge, host-local and portmap.
const result = `{"kind":"cniCacheV1","containerId":"c1","config":"e30=","ifName":"eth0","networkName":"cbr0",
"cniArgs":[["IgnoreUnknown","1"],["K8S_POD_NAMESPACE","shop"],["K8S_POD_NAME","api"],["K8S_POD_INFRA_CONTAINER_ID","c1"],["K8S_POD_UID","u1"]],
"result":{"cniVersion":"0.3.1","dns":{},"interfaces":[{"mac":"02:00:00:00:00:01","name":"cni0"},{"mac":"02:00:00:00:00:02","name":"veth1"},
{"mac":"02:00:00:00:00:03","name":"eth0","sandbox":"/var/run/netns/cni-1"}],
"ips":[{"address":"fd00:244::2/64","interface":2,"version":"6"},{"address":"10.244.0.2/24","gateway":"10.244.0.1","interface":2,"version":"4"}],
"routes":[{"dst":"10.244.0.0/16"},{"dst":"0.0.0.0/0","gw":"10.244.0.1"}]}}`

// TestRead: each file of the network is a pod, whatever other files the directory has; a broken file is in the error and does not affect
// the others.
func TestRead(t *testing.T) {
	dir := t.TempDir()
	for name, text := range map[string]string{
		"cbr0-c1-eth0":     result,
		"cbr0-c2-eth0":     `{"kind":"cniCacheV1"`,
		"cbr0-x-c3-eth0":   strings.ReplaceAll(result, `"cbr0"`, `"cbr0-x"`),
		"mynet-c4-eth0":    result,
		"cbr0-c5-eth0":     strings.ReplaceAll(result, "/var/run/netns/cni-1", "cni-1"),
		"cbr0-c6-eth0":     strings.ReplaceAll(result, `"kind":"cniCacheV1"`, `"kind":"cniCacheV9"`),
		"cbr0-c7-eth0":     strings.ReplaceAll(result, `10.244.0.2/24`, `10.244.0.2`),
		"cbr0-c8-eth0":     strings.ReplaceAll(result, `"interface":2`, `"interface":1`),
		"cbr0-c9-eth0.tmp": `[]`,
	} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	pods, err := Read(dir, "cbr0")
	want := []Pod{{
		ContainerID: "c1", IfName: "eth0", Netns: "/var/run/netns/cni-1", Namespace: "shop", Name: "api", UID: "u1", Bridge: "cni0",
		Addresses: []netip.Prefix{netip.MustParsePrefix("10.244.0.2/24"), netip.MustParsePrefix("fd00:244::2/64")},
	}}
	if diff := cmp.Diff(want, pods, cmpopts.EquateComparable(netip.Prefix{})); diff != "" {
		t.Error(diff)
	}
	if err == nil {
		t.Fatal("no error for the broken files")
	}
	for _, words := range []string{"c2-eth0: not a result", "c5-eth0: the pod's network namespace", `c6-eth0: kind "cniCacheV9"`, "c7-eth0: result.ips", "c8-eth0: result.ips"} {
		if !strings.Contains(err.Error(), words) {
			t.Errorf("the error does not have %q: %v", words, err)
		}
	}
	if pods, err := Read(filepath.Join(dir, "none"), "cbr0"); pods != nil || err != nil {
		t.Errorf("without a folder: %v %v", pods, err)
	}
}

func FuzzParse(f *testing.F) {
	f.Add([]byte(result))
	f.Add([]byte(`{"kind":"cniCacheV1","containerId":"c","ifName":"e","networkName":"cbr0","netns":"/n","result":{"ips":[{"address":"10.0.0.1/8"}]}}`))
	f.Fuzz(func(t *testing.T, text []byte) {
		pod, err := parse(text, "cbr0")
		if err == nil && pod != nil && (pod.ContainerID == "" || pod.IfName == "" || !filepath.IsAbs(pod.Netns) || len(pod.Addresses) == 0) {
			t.Errorf("an incomplete pod: %+v", pod)
		}
	})
}
