package cni

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

const sampleConf = `{"cniVersion":"1.1.0","name":"weft","type":"weft"}`

func sampleRequest() *Request {
	return &Request{
		Command:     CommandAdd,
		ContainerID: "3f9c",
		Netns:       "/var/run/netns/cni-1",
		IfName:      "eth0",
		Args:        Args{PodNamespace: "shop", PodName: "web-1", PodUID: "5f0c", InfraContainerID: "3f9c"},
		Path:        "/opt/cni/bin:/usr/lib/cni",
		Config:      json.RawMessage(sampleConf),
	}
}

// wantError fails unless err is an *Error with the code, whose text contains part.
func wantError(t *testing.T, err error, code Code, part string) {
	t.Helper()
	var own *Error
	if !errors.As(err, &own) {
		t.Fatalf("%v is not an *Error", err)
	}
	if own.Code != code || !strings.Contains(own.Msg, part) {
		t.Errorf("error %d %q, want %d with %q", own.Code, own.Msg, code, part)
	}
}

func TestParseArgs(t *testing.T) {
	for text, want := range map[string]Args{
		"": {},
		"IgnoreUnknown=1;K8S_POD_NAMESPACE=shop;K8S_POD_NAME=web-1.x;K8S_POD_INFRA_CONTAINER_ID=3f9C;K8S_POD_UID=5f0c-1": {
			PodNamespace: "shop", PodName: "web-1.x", InfraContainerID: "3f9C", PodUID: "5f0c-1",
		},
		"FOO=bar":                {},
		"K8S_POD_NAME=":          {},
		"A=;B=":                  {},
		"K8S_POD_NAME=a;X= b c ": {PodName: "a"},
	} {
		got, err := ParseArgs(text)
		if err != nil || got != want {
			t.Errorf("%q: %+v, %v; want %+v", text, got, err, want)
		}
	}
	for text, part := range map[string]string{
		"a":                               `"a" is not`,
		"a=b;":                            `"" is not`,
		";":                               `"" is not`,
		"a=b=c":                           `"a=b=c" is not`,
		"=b":                              `"=b" is not`,
		"a=1;a=2":                         "a is given twice",
		"K8S_POD_NAME=../x":               "K8S_POD_NAME",
		"K8S_POD_NAME=a\nb":               "K8S_POD_NAME",
		"K8S_POD_NAMESPACE=Shop":          "K8S_POD_NAMESPACE",
		"K8S_POD_NAMESPACE=-a":            "K8S_POD_NAMESPACE",
		"K8S_POD_UID=a/b":                 "K8S_POD_UID",
		"K8S_POD_INFRA_CONTAINER_ID=\x00": "K8S_POD_INFRA_CONTAINER_ID",
		"K8S_POD_NAME=" + strings.Repeat("a", 254): "K8S_POD_NAME",
	} {
		_, err := ParseArgs(text)
		wantError(t, err, CodeInvalidEnvironment, part)
	}
}

func TestParseNetConf(t *testing.T) {
	conf, err := ParseNetConf([]byte(`{
		"cniVersion": "1.0.0", "name": "weft", "type": "weft", "capabilities": {"ips": true}, "colour": "red",
		"socket": "/run/x.sock", "records": "/var/x", "prevResult": null,
		"runtimeConfig": {"ips": ["10.0.0.1", "fd00::1/64"], "mac": "0a:58:0a:00:00:01", "aliases": []}
	}`))
	if err != nil {
		t.Fatal(err)
	}
	want := &NetConf{
		CNIVersion: "1.0.0", Name: "weft", Type: "weft", Socket: "/run/x.sock", Records: "/var/x",
		RuntimeConfig: RuntimeConfig{IPs: []string{"10.0.0.1", "fd00::1/64"}, MAC: "0a:58:0a:00:00:01"},
	}
	if diff := cmp.Diff(want, conf); diff != "" {
		t.Errorf("-want +got:\n%s", diff)
	}
	if prev, err := conf.PrevResult(); prev != nil || err != nil {
		t.Errorf("prevResult: %v, %v", prev, err)
	}
	conf, err = ParseNetConf([]byte(sampleConf))
	if err != nil || conf.Socket != DefaultSocket || conf.Records != DefaultRecords {
		t.Errorf("defaults: %+v, %v", conf, err)
	}
}

func TestParseNetConfRefused(t *testing.T) {
	for n := range len(sampleConf) {
		_, err := ParseNetConf([]byte(sampleConf[:n]))
		wantError(t, err, CodeDecode, "network configuration")
	}
	for text, want := range map[string]struct {
		code Code
		part string
	}{
		`[]`:                                   {CodeDecode, "network configuration"},
		`{"name":1}`:                           {CodeDecode, "name"},
		sampleConf + `x`:                       {CodeDecode, "network configuration"},
		`{}`:                                   {CodeInvalidConfig, "name is missing"},
		`{"name":"../x"}`:                      {CodeInvalidConfig, "name"},
		`{"name":"a","socket":"run/x"}`:        {CodeInvalidConfig, "socket"},
		`{"name":"a","socket":"/run/../x"}`:    {CodeInvalidConfig, "socket"},
		`{"name":"a","socket":"/run/a\nb"}`:    {CodeInvalidConfig, "socket"},
		`{"name":"a","socket":"/run/a\u0000"}`: {CodeInvalidConfig, "socket"},
		`{"name":"a","socket":"/` + strings.Repeat("a", 107) + `"}`: {CodeInvalidConfig, "socket"},
		`{"name":"a","records":"x"}`:                                {CodeInvalidConfig, "records"},
		`{"name":"a","runtimeConfig":{"ips":["10.0.0.999"]}}`:       {CodeInvalidConfig, "runtimeConfig.ips"},
		`{"name":"a","runtimeConfig":{"ips":["10.0.0.9/99"]}}`:      {CodeInvalidConfig, "runtimeConfig.ips"},
		`{"name":"a","runtimeConfig":{"mac":"x"}}`:                  {CodeInvalidConfig, "runtimeConfig.mac"},
		`{"name":"a","cni.dev/valid-attachments":[{}]}`:             {CodeInvalidConfig, "valid-attachments"},
	} {
		_, err := ParseNetConf([]byte(text))
		wantError(t, err, want.code, want.part)
	}
}

func TestPrevResult(t *testing.T) {
	for version, text := range map[string]string{
		"0.3.1": `{"ips":[{"version":"4","address":"10.0.0.2/24","interface":0}],"interfaces":[{"name":"eth0","sandbox":"/x"}]}`,
		"0.4.0": `{"cniVersion":"0.4.0","ips":[{"version":"4","address":"10.0.0.2/24"}]}`,
		"1.0.0": `{"cniVersion":"1.0.0","ips":[{"address":"10.0.0.2/24"}]}`,
		"1.1.0": `{"ips":[{"address":"10.0.0.2/24"}]}`,
	} {
		conf, err := ParseNetConf(fmt.Appendf(nil, `{"cniVersion":%q,"name":"a","prevResult":%s}`, version, text))
		if err != nil {
			t.Fatal(err)
		}
		prev, err := conf.PrevResult()
		if err != nil || len(prev.IPs) != 1 || prev.IPs[0].Address.String() != "10.0.0.2/24" {
			t.Errorf("version %s: %+v, %v", version, prev, err)
		}
	}
	conf, err := ParseNetConf([]byte(`{"cniVersion":"1.0.0","name":"a","prevResult":{"cniVersion":"9.9.9"}}`))
	if err != nil {
		t.Fatal(err)
	}
	_, err = conf.PrevResult()
	wantError(t, err, CodeInvalidConfig, "prevResult")
}

func TestRequestRoundTrip(t *testing.T) {
	req := sampleRequest()
	data, err := json.Marshal(req)
	if err != nil {
		t.Fatal(err)
	}
	back, err := ParseRequest(data)
	if err != nil {
		t.Fatal(err)
	}
	if back.NetConf == nil || back.NetConf.Name != "weft" {
		t.Errorf("configuration: %+v", back.NetConf)
	}
	back.NetConf = nil
	if diff := cmp.Diff(req, back); diff != "" {
		t.Errorf("-sent +read:\n%s", diff)
	}
}

func TestRequestRefused(t *testing.T) {
	for name, test := range map[string]struct {
		change func(*Request)
		code   Code
		part   string
	}{
		"command":            {func(r *Request) { r.Command = "UPDATE" }, CodeInvalidEnvironment, "CNI_COMMAND"},
		"no command":         {func(r *Request) { r.Command = "" }, CodeInvalidEnvironment, "CNI_COMMAND"},
		"no container":       {func(r *Request) { r.ContainerID = "" }, CodeInvalidEnvironment, "CNI_CONTAINERID"},
		"container path":     {func(r *Request) { r.ContainerID = "../x" }, CodeInvalidEnvironment, "CNI_CONTAINERID"},
		"container dots":     {func(r *Request) { r.ContainerID = ".." }, CodeInvalidEnvironment, "CNI_CONTAINERID"},
		"container newline":  {func(r *Request) { r.ContainerID = "x\n" }, CodeInvalidEnvironment, "CNI_CONTAINERID"},
		"container NUL":      {func(r *Request) { r.ContainerID = "x\x00y" }, CodeInvalidEnvironment, "CNI_CONTAINERID"},
		"container long":     {func(r *Request) { r.ContainerID = strings.Repeat("x", 129) }, CodeInvalidEnvironment, "CNI_CONTAINERID"},
		"interface long":     {func(r *Request) { r.IfName = "abcdefghijklmnop" }, CodeInvalidEnvironment, "CNI_IFNAME"},
		"interface slash":    {func(r *Request) { r.IfName = "a/b" }, CodeInvalidEnvironment, "CNI_IFNAME"},
		"interface colon":    {func(r *Request) { r.IfName = "a:b" }, CodeInvalidEnvironment, "CNI_IFNAME"},
		"interface space":    {func(r *Request) { r.IfName = "a b" }, CodeInvalidEnvironment, "CNI_IFNAME"},
		"interface NUL":      {func(r *Request) { r.IfName = "a\x00" }, CodeInvalidEnvironment, "CNI_IFNAME"},
		"interface dots":     {func(r *Request) { r.IfName = ".." }, CodeInvalidEnvironment, "CNI_IFNAME"},
		"no interface":       {func(r *Request) { r.IfName = "" }, CodeInvalidEnvironment, "CNI_IFNAME"},
		"no netns":           {func(r *Request) { r.Netns = "" }, CodeInvalidEnvironment, "CNI_NETNS"},
		"netns relative":     {func(r *Request) { r.Netns = "x" }, CodeInvalidEnvironment, "CNI_NETNS"},
		"netns detour":       {func(r *Request) { r.Netns = "/a/../b" }, CodeInvalidEnvironment, "CNI_NETNS"},
		"netns newline":      {func(r *Request) { r.Netns = "/a\nb" }, CodeInvalidEnvironment, "CNI_NETNS"},
		"DEL, netns wrong":   {func(r *Request) { r.Command, r.Netns = CommandDel, "x" }, CodeInvalidEnvironment, "CNI_NETNS"},
		"path":               {func(r *Request) { r.Path = "/a\x00" }, CodeInvalidEnvironment, "CNI_PATH"},
		"pod":                {func(r *Request) { r.Args.PodName = "a b" }, CodeInvalidEnvironment, "K8S_POD_NAME"},
		"configuration":      {func(r *Request) { r.Config = json.RawMessage(`{}`) }, CodeInvalidConfig, "name"},
		"GC without its key": {func(r *Request) { r.Command = CommandGC }, CodeInvalidConfig, "valid-attachments"},
	} {
		t.Run(name, func(t *testing.T) {
			req := sampleRequest()
			test.change(req)
			wantError(t, req.Validate(), test.code, test.part)
		})
	}
}

func TestRequestAccepted(t *testing.T) {
	gc := `{"cniVersion":"1.1.0","name":"weft","type":"weft","cni.dev/valid-attachments":`
	for name, change := range map[string]func(*Request){
		"ADD":           func(*Request) {},
		"CHECK":         func(r *Request) { r.Command = CommandCheck },
		"DEL, no netns": func(r *Request) { r.Command, r.Netns = CommandDel, "" },
		"STATUS":        func(r *Request) { *r = Request{Command: CommandStatus, Config: r.Config} },
		"GC of some": func(r *Request) {
			*r = Request{Command: CommandGC, Config: json.RawMessage(gc + `[{"containerID":"a","ifname":"eth0"}]}`)}
		},
		"GC of all":  func(r *Request) { *r = Request{Command: CommandGC, Config: json.RawMessage(gc + `[]}`)} },
		"GC of null": func(r *Request) { *r = Request{Command: CommandGC, Config: json.RawMessage(gc + `null}`)} },
	} {
		req := sampleRequest()
		change(req)
		if err := req.Validate(); err != nil {
			t.Errorf("%s: %v", name, err)
		}
		if req.Command == CommandGC && req.NetConf.ValidAttachments == nil {
			t.Errorf("%s: what is valid is not known", name)
		}
	}
}

func TestPod(t *testing.T) {
	req := sampleRequest()
	if namespace, name, err := req.Pod(); namespace != "shop" || name != "web-1" || err != nil {
		t.Errorf("%s/%s, %v", namespace, name, err)
	}
	req.Args.PodName = ""
	_, _, err := req.Pod()
	wantError(t, err, CodeInvalidEnvironment, "K8S_POD_NAME ")
	req.Args.PodNamespace = ""
	_, _, err = req.Pod()
	wantError(t, err, CodeInvalidEnvironment, "K8S_POD_NAMESPACE")
}

func TestAsError(t *testing.T) {
	own := Errorf(CodeTryAgainLater, "reading %s: %w", "x", io.ErrUnexpectedEOF)
	for name, test := range map[string]struct {
		err  error
		code Code
		msg  string
	}{
		"own":     {own, CodeTryAgainLater, "reading x: unexpected EOF"},
		"wrapped": {fmt.Errorf("pod a: %w", own), CodeTryAgainLater, "pod a: reading x: unexpected EOF"},
		"other":   {io.ErrUnexpectedEOF, CodeInternal, "unexpected EOF"},
	} {
		got := AsError(test.err)
		if got.Code != test.code || got.Msg != test.msg || !errors.Is(got, io.ErrUnexpectedEOF) {
			t.Errorf("%s: %d %q", name, got.Code, got.Msg)
		}
	}
	if AsError(nil) != nil {
		t.Error("nil is an error")
	}
}

// FuzzParseRequest: an accepted request is the same after encoding and decoding.
func FuzzParseRequest(f *testing.F) {
	data, err := json.Marshal(sampleRequest())
	if err != nil {
		f.Fatal(err)
	}
	f.Add(data)
	f.Add(data[:len(data)/2])
	f.Add([]byte(`{"command":"GC","config":{"name":"a","cni.dev/valid-attachments":null}}`))
	f.Add([]byte(`{"command":"STATUS","config":{"name":"a"},"x":1}`))
	f.Fuzz(func(t *testing.T, data []byte) {
		req, err := ParseRequest(data)
		if err != nil {
			if code := AsError(err).Code; code != CodeInvalidEnvironment && code != CodeInvalidConfig && code != CodeDecode {
				t.Fatalf("code %d: %v", code, err)
			}
			return
		}
		again, err := json.Marshal(req)
		if err != nil {
			t.Fatal(err)
		}
		back, err := ParseRequest(again)
		if err != nil {
			t.Fatalf("its own encoding is refused: %v", err)
		}
		back.Config, req.Config = nil, nil // The encoder removes its white space.
		back.NetConf.RawPrevResult, req.NetConf.RawPrevResult = nil, nil
		if diff := cmp.Diff(req, back); diff != "" {
			t.Fatal(diff)
		}
	})
}

// FuzzParseArgs: no input gives an invalid pod name.
func FuzzParseArgs(f *testing.F) {
	f.Add("IgnoreUnknown=1;K8S_POD_NAMESPACE=shop;K8S_POD_NAME=web-1")
	f.Add("K8S_POD_NAME=../../x;=;")
	f.Fuzz(func(t *testing.T, text string) {
		args, err := ParseArgs(text)
		if err == nil {
			err = args.validate()
		} else if AsError(err).Code != CodeInvalidEnvironment {
			t.Fatal(err)
		} else {
			return
		}
		if err != nil || strings.ContainsAny(args.PodName+args.PodNamespace, "/\\\x00\n ;=") {
			t.Fatalf("%q: %+v, %v", text, args, err)
		}
	})
}
