package plugin_test

import (
	"bytes"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"weft.dev/weft/internal/cni"
)

// scripted is an agent that answers every request with a text, and returns what it has received.
func scripted(t *testing.T, n *node, answer string) (received func() string) {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(n.socket()), 0o700); err != nil {
		t.Fatal(err)
	}
	listener, err := net.Listen("unix", n.socket())
	if err != nil {
		t.Fatal(err)
	}
	var all bytes.Buffer
	done := make(chan struct{})
	go func() {
		defer close(done)
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			request := make([]byte, 64<<10)
			length, _ := conn.Read(request)
			all.Write(request[:length])
			_, _ = conn.Write([]byte(answer))
			_ = conn.Close()
		}
	}()
	return func() string {
		_ = listener.Close()
		<-done
		return all.String()
	}
}

// TestDirect: an ADD as runtimes send it asks the agent to print the result, and prints that; an agent that does not know this is served
// all the same.
func TestDirect(t *testing.T) {
	const response = `{"result":{"cniVersion":"1.1.0","ips":[{"address":"10.1.0.2/16"}]}}`
	const refused = `{"error":{"code":11,"msg":"not yet"}}`
	const asks = "\r\n" + cni.HeaderPrint + ": 1.0.0\r\n"
	plain := func(n *node) string { return n.conf("1.0.0") }
	head := func(status, headers string) string { return "HTTP/1.0 " + status + "\r\n" + headers + "\r\n" }
	for name, test := range map[string]struct {
		answer string
		conf   func(n *node) string
		direct bool
		want   string // of stdout, in part
		code   cni.Code
	}{
		"printed":                  {head("200 OK", cni.HeaderPrint+": 1.0.0\r\nContent-Length: 9\r\n") + "the text\n", plain, true, "the text\n", 0},
		"an agent without it":      {head("200 OK", "") + response, plain, true, "10.1.0.2/16", 0},
		"refused":                  {head("500 Internal Server Error", "") + refused, plain, true, "not yet", cni.CodeTryAgainLater},
		"printed in part":          {head("200 OK", cni.HeaderPrint+": 1.0.0\r\nContent-Length: 10\r\n") + "the text\n", plain, true, "before it answered", cni.CodeTryAgainLater},
		"printed without a length": {head("200 OK", cni.HeaderPrint+": 1.0.0\r\n") + "the text\n", plain, true, "not from a weft agent", cni.CodeProtocol},
		"nothing":                  {"", plain, true, "before it answered", cni.CodeTryAgainLater},
		"with capabilities": {head("200 OK", "") + response, func(n *node) string {
			return strings.Replace(plain(n), "{", `{"runtimeConfig":{"mac":"0a:00:00:00:00:01"},`, 1)
		}, true, "10.1.0.2/16", 0},
		"with annotations": {head("200 OK", "") + response, func(n *node) string {
			return strings.Replace(plain(n), "{", `{"runtimeConfig":{"io.kubernetes.cri.pod-annotations":{"a":"b"}},`, 1)
		}, false, "10.1.0.2/16", 0},
		"escapes": {head("200 OK", "") + response, func(n *node) string { return strings.Replace(plain(n), "name", `n\u0061me`, 1) }, false, "10.1.0.2/16", 0},
	} {
		t.Run(name, func(t *testing.T) {
			n := &node{dir: t.TempDir()}
			n.makeNetns(t)
			received := scripted(t, n, test.answer)
			stdout, err := n.run(t, "ADD", test.conf(n), "CNI_ARGS=IgnoreUnknown=1;K8S_POD_NAMESPACE=shop;K8S_POD_NAME=web-1")
			request := received()
			if test.code != 0 {
				wantPrinted(t, stdout, test.code, test.want)
			} else if err != nil || !strings.Contains(stdout, test.want) {
				t.Errorf("%v: printed %q, want %q", err, stdout, test.want)
			}
			if strings.Contains(request, asks) != test.direct || strings.Count(request, "POST ") != 1 {
				t.Errorf("the agent got %q; asked to print: want %t", request, test.direct)
			}
			_, body, _ := strings.Cut(request, "\r\n\r\n")
			req, err := cni.ParseRequest([]byte(body))
			if err != nil || req.Args != (cni.Args{PodNamespace: "shop", PodName: "web-1"}) || req.Netns != n.dir+"/netns/3f9c" || req.NetConf.Socket != n.socket() {
				t.Errorf("the agent got %+v, %v", req, err)
			}
		})
	}
}
