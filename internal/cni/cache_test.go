package cni

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

const cachedText = `{"kind":"cniCacheV1","containerId":"c1","ifName":"eth0","networkName":"weft","netns":"/run/netns/c1",
"cniArgs":[["IgnoreUnknown","1"],["K8S_POD_NAMESPACE","shop"],["K8S_POD_NAME","web"]],
"result":{"cniVersion":"1.0.0","interfaces":[{"name":"weft-p7"},{"name":"eth0","mac":"0a:58:0a:80:00:02","sandbox":"/run/netns/c1"}],
"ips":[{"interface":1,"address":"10.128.0.2/23","gateway":"10.128.0.1"}]}}`

// Entries of the runtime are read; other files in the directory are skipped.
func TestReadCache(t *testing.T) {
	dir := t.TempDir()
	if all, err := ReadCache(filepath.Join(dir, "none")); err != nil || len(all) != 0 {
		t.Errorf("none: %v, %v", all, err)
	}
	if err := os.MkdirAll(filepath.Join(dir, "results", "folder"), 0o700); err != nil {
		t.Fatal(err)
	}
	for name, text := range map[string]string{
		"weft-c1-eth0": cachedText, "cut": cachedText[:90], "old": `{"cniVersion":"0.3.1"}`, "empty": "",
		"other": strings.Replace(cachedText, "cniCacheV1", "cniCacheV9", 1), "large": cachedText + strings.Repeat(" ", maxCached),
		"without": `{"kind":"cniCacheV1","containerId":"c2","ifName":"eth0"}`,
	} {
		if err := os.WriteFile(filepath.Join(dir, "results", name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Symlink("weft-c1-eth0", filepath.Join(dir, "results", "linked")); err != nil {
		t.Fatal(err)
	}
	all, err := ReadCache(dir)
	if err != nil || len(all) != 1 {
		t.Fatalf("%v, %v", all, err)
	}
	c := all[0]
	if c.ContainerID != "c1" || c.IfName != "eth0" || c.Netns != "/run/netns/c1" || c.Args.PodNamespace != "shop" || c.Args.PodName != "web" ||
		len(c.Result.Interfaces) != 2 || len(c.Result.IPs) != 1 {
		t.Errorf("%+v", c)
	}
}

func FuzzParseCached(f *testing.F) {
	f.Add([]byte(cachedText))
	f.Add([]byte(`{"kind":"cniCacheV1","containerId":"c","ifName":"e","result":null}`))
	f.Fuzz(func(t *testing.T, data []byte) {
		cached, err := ParseCached(data)
		if err == nil && (cached.Result == nil || cached.ContainerID == "" || cached.IfName == "") {
			t.Errorf("%q: %+v", data, cached)
		}
	})
}
