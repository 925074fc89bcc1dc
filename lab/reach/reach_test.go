package reach

import (
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"testing"
)

// Where nothing may arrive, a refusal, a reset, and a connection without an answer are wrong: packets have reached something.
func TestAnsweredIsReached(t *testing.T) {
	closed, err := net.Listen("tcp4", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	refuses := closed.Addr().String()
	if err := closed.Close(); err != nil {
		t.Fatal(err)
	}
	drops, err := net.Listen("tcp4", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = drops.Close() }()
	go func() {
		for {
			conn, err := drops.Accept()
			if err != nil {
				return
			}
			_ = conn.Close()
		}
	}()
	server := httptest.NewServer(http.HandlerFunc(func(out http.ResponseWriter, in *http.Request) { _, _ = fmt.Fprint(out, in.RemoteAddr) }))
	defer server.Close()
	here := netip.MustParseAddr("127.0.0.1")
	for at, honest := range map[string]bool{refuses: false, drops.Addr().String(): false, server.Listener.Addr().String(): true} {
		for _, want := range []netip.Addr{{}, here} {
			way := Way{Row: Row{Want: want}, At: netip.MustParseAddrPort(at), Path: "/"}
			if err := way.once(); (err == nil) != honest {
				t.Errorf("%s: %v", at, err)
			}
			if ok := way.OK(); ok != (honest && want.IsValid()) {
				t.Errorf("%s, which must see %s, has seen %s", at, source(want), source(way.Seen))
			}
		}
	}
}
