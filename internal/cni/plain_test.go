package cni_test

import (
	"encoding/json"
	"strings"
	"testing"

	"weft.dev/weft/internal/cni"
)

// plainConf is a configuration as libcni passes it.
const plainConf = `{"cniVersion":"1.0.0","name":"cbr0","type":"flannel", "delegate":{"a":["}\"]",{"b":[1,true]}]},"socket":"/run/s","mtu":1450}`

func TestParsePlain(t *testing.T) {
	for config, want := range map[string]bool{
		plainConf: true,
		" {\n\t\"cniVersion\" : \"1.0.0\" ,\r\n \"name\" : \"n\" } \n": true,
		`{"name":"n"}`: true,
		`{"name":"n","records":"/r","ports":"/p"}`: true,
		``:                             false,
		`{}`:                           false,
		`[]`:                           false,
		`{"name":"n"`:                  false,
		`{"name":"n",}`:                false,
		`{"name":"n"}}`:                false,
		`{"name":"n"},"command":"DEL"`: false,
		`{"name":"n"} x`:               false,
		`{"name":"n" "type":"x"}`:      false,
		`{"name":"../n"}`:              false,
		`{"name":"n","name":"m"}`:      false,
		`{"Name":"n"}`:                 false,
		`{"name":"n","unknown":1}`:     false,
		`{"name":"n","runtimeConfig":{"mac":"x"}}`:                              true,
		`{"name":"n","runtimeConfig":{"io.kubernetes.cri.pod-annotations":{}}}`: false,
		`{"name":"n","delegate":{]}`:                                            false,
		`{"name":"n","delegate":{"a":[}]}`:                                      false,
		`{"name":"n","socket":7}`:                                               false,
		`{"name":"n","socket":"a"}`:                                             false,
		`{"name":"n","socket":"/` + "\x01" + `"}`:                               false,
		`{"name":"n","records":"/a/../b"}`:                                      false,
		`{"name":"n","ports":"p"}`:                                              false,
		`{"name":"n","type":"` + "\n" + `"}`:                                    false,
		`{"name":"n","type":"` + strings.Repeat("x", 20<<10) + `"}`:             false,
	} {
		if _, ok := cni.ParsePlain([]byte(config)); ok != want {
			t.Errorf("%.80s: plain is %t, want %t", config, ok, want)
		}
	}
	conf, _ := cni.ParsePlain([]byte(plainConf))
	if conf.Version != "1.0.0" || conf.Socket != "/run/s" || conf.Records != cni.DefaultRecords {
		t.Errorf("parsed %+v", conf)
	}
}

// TestPlainRequest: the request is the one that package json writes; one that is not plain has no form.
func TestPlainRequest(t *testing.T) {
	conf, _ := cni.ParsePlain([]byte(plainConf))
	req := cni.Request{
		Command: cni.CommandAdd, ContainerID: "c1", Netns: "/run/netns/a b", IfName: "eth0", Path: "/opt/cni/bin:/usr/lib/cni",
		Args: cni.Args{PodNamespace: "shop", PodName: "web-1", PodUID: "5f0c", InfraContainerID: "c1"}, Config: json.RawMessage(plainConf),
	}
	body, ok := conf.Encode(&req)
	got, err := cni.ParseRequest(body)
	if !ok || err != nil {
		t.Fatalf("%t, %v: %s", ok, err, body)
	}
	gotText, _ := json.Marshal(got)
	if want, _ := json.Marshal(req); string(gotText) != string(want) {
		t.Errorf("got %s, want %s", gotText, want)
	}
	for name, change := range map[string]func(*cni.Request){
		"a quote in the path":  func(r *cni.Request) { r.Path = `/a"b` },
		"container":            func(r *cni.Request) { r.ContainerID = "../c" },
		"namespace":            func(r *cni.Request) { r.Netns = "a/../b" },
		"namespace in Unicode": func(r *cni.Request) { r.Netns = "/run/ä" },
		"interface":            func(r *cni.Request) { r.IfName = "a/b" },
		"interface with quote": func(r *cni.Request) { r.IfName = `a"b` },
		"pod":                  func(r *cni.Request) { r.Args.PodName = "../a" },
	} {
		other := req
		change(&other)
		if body, ok := conf.Encode(&other); ok {
			t.Errorf("%s: encoded as %s", name, body)
		}
	}
}

// FuzzParsePlain: a configuration that is plain and valid JSON means the same to ParseNetConf; none that is plain can add fields to the request.
func FuzzParsePlain(f *testing.F) {
	f.Add(plainConf)
	f.Add(`{"name":"n","mtu":1 }`)
	f.Add(`{"name":"n","mtu":-1.5e3,"type":"a","ipam":[[],{}]}`)
	f.Fuzz(func(t *testing.T, config string) {
		plain, ok := cni.ParsePlain([]byte(config))
		if !ok {
			return
		}
		req := cni.Request{Command: cni.CommandAdd, ContainerID: "c", Netns: "/n", IfName: "eth0"}
		body, ok := plain.Encode(&req)
		if !ok {
			t.Fatal("not encoded")
		}
		parsed, err := cni.ParseRequest(body)
		if err != nil {
			if json.Valid([]byte(config)) {
				if _, wrong := cni.ParseNetConf([]byte(config)); wrong == nil {
					t.Fatalf("%q: the request is refused: %v", config, err)
				}
			}
			return
		}
		if !json.Valid([]byte(config)) || parsed.ContainerID != "c" || parsed.Command != cni.CommandAdd || string(parsed.Config) != strings.TrimSpace(config) {
			t.Fatalf("%q is parsed as %+v", config, parsed)
		}
		conf := parsed.NetConf
		if conf.CNIVersion != plain.Version || conf.Socket != plain.Socket || conf.Records != plain.Records || conf.Ports != plain.Ports {
			t.Fatalf("%q: %+v and %+v", config, conf, plain)
		}
	})
}
