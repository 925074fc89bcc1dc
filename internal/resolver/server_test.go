package resolver_test

import (
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/miekg/dns"
	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// nameServer is a name server on the loopback, over UDP and TCP, that gives the answers set by the test.
type nameServer struct {
	addr string

	mu sync.Mutex
	// answer fills in the reply to a query; false: no reply is sent.
	answer func(network string, q dns.Question, reply *dns.Msg) bool
	asked  map[string]int // by network, name and type
}

// sockets are the sockets of a name server.
type sockets struct {
	packets net.PacketConn
	streams net.Listener
}

// listen opens the sockets of a server at 127.0.0.N; port "0" takes any port that is free for UDP.
func listen(t *testing.T, n int, port string) (sockets, error) {
	t.Helper()
	packets, err := net.ListenPacket("udp", fmt.Sprintf("127.0.0.%d:%s", n, port))
	if err != nil {
		return sockets{}, err
	}
	streams, err := net.Listen("tcp", packets.LocalAddr().String())
	if err != nil {
		_ = packets.Close()
		return sockets{}, err
	}
	return sockets{packets, streams}, nil
}

// listenAll opens the sockets of servers at 127.0.0.N each, all on one port. The port has to be free at all these addresses, for UDP and
// TCP.
func listenAll(t *testing.T, ns ...int) (all []sockets) {
	t.Helper()
	var err error
	for range 100 {
		port := "0"
		for _, n := range ns {
			var s sockets
			if s, err = listen(t, n, port); err != nil {
				break
			}
			all = append(all, s)
			_, port, _ = net.SplitHostPort(s.packets.LocalAddr().String())
		}
		if err == nil {
			return all
		}
		for _, s := range all {
			_ = errors.Join(s.packets.Close(), s.streams.Close())
		}
		all = nil
	}
	t.Fatalf("no port is free: %v", err)
	return nil
}

// serve starts a name server at 127.0.0.1.
func serve(t *testing.T) *nameServer {
	t.Helper()
	return serveAt(t, listenAll(t, 1)[0])
}

func serveAt(t *testing.T, at sockets) *nameServer {
	t.Helper()
	s := &nameServer{asked: map[string]int{}}
	s.addr = at.packets.LocalAddr().String()
	for network, server := range map[string]*dns.Server{"udp": {PacketConn: at.packets}, "tcp": {Listener: at.streams}} {
		started := make(chan struct{})
		server.NotifyStartedFunc = func() { close(started) }
		server.Handler = dns.HandlerFunc(func(w dns.ResponseWriter, r *dns.Msg) { s.handle(network, w, r) })
		ended := make(chan error, 1)
		go func() { ended <- server.ActivateAndServe() }()
		<-started
		t.Cleanup(func() {
			if err := server.Shutdown(); err != nil {
				t.Error(err)
			}
			if err := <-ended; err != nil {
				t.Error(err)
			}
		})
	}
	return s
}

func (s *nameServer) handle(network string, w dns.ResponseWriter, r *dns.Msg) {
	s.mu.Lock()
	q := r.Question[0]
	s.asked[network+" "+q.Name+" "+dns.TypeToString[q.Qtype]]++
	answer := s.answer
	s.mu.Unlock()
	reply := new(dns.Msg).SetReply(r)
	reply.RecursionAvailable = true
	if answer(network, q, reply) {
		_ = w.WriteMsg(reply)
	}
}

// says sets the server's answers.
func (s *nameServer) says(answer func(network string, q dns.Question, reply *dns.Msg) bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.answer = answer
}

// has replaces the server's records.
func (s *nameServer) has(t *testing.T, records ...string) {
	t.Helper()
	var list []dns.RR
	for _, text := range records {
		list = append(list, record(t, text))
	}
	s.says(func(_ string, q dns.Question, reply *dns.Msg) bool {
		zone(list, q, reply)
		return true
	})
}

// zone answers as a recursive server does: with all records on the way, or with the SOA.
func zone(list []dns.RR, q dns.Question, reply *dns.Msg) {
	name, exists, found := q.Name, false, false
	for range 20 {
		next := ""
		for _, r := range list {
			if !strings.EqualFold(r.Header().Name, name) {
				continue
			}
			exists = true
			if alias, is := r.(*dns.CNAME); is {
				reply.Answer, next = append(reply.Answer, r), alias.Target
			} else if r.Header().Rrtype == q.Qtype {
				reply.Answer, found = append(reply.Answer, r), true
			}
		}
		if next == "" {
			break
		}
		name, exists = next, false
	}
	if found {
		return
	}
	for _, r := range list {
		if r.Header().Rrtype == dns.TypeSOA {
			reply.Ns = append(reply.Ns, r)
		}
	}
	if !exists {
		reply.Rcode = dns.RcodeNameError
	}
}

func record(t *testing.T, text string) dns.RR {
	t.Helper()
	r, err := dns.NewRR(text)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

const soa = "example. 60 IN SOA ns.example. root.example. 1 60 60 60 20"

// times returns how often a question was asked.
func (s *nameServer) times(question string) int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.asked[question]
}

func (s *nameServer) port(t *testing.T) string {
	t.Helper()
	_, port, err := net.SplitHostPort(s.addr)
	if err != nil {
		t.Fatal(err)
	}
	return port
}

// resolvConf writes a resolv.conf.
func resolvConf(t *testing.T, lines ...string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "resolv.conf")
	rewrite(t, path, lines...)
	return path
}

func rewrite(t *testing.T, path string, lines ...string) {
	t.Helper()
	if err := os.WriteFile(path, []byte(strings.Join(lines, "\n")+"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
}

// serverFails is the reply of a server that cannot reach the authoritative servers.
func serverFails(_ string, _ dns.Question, reply *dns.Msg) bool {
	reply.Rcode = dns.RcodeServerFailure
	return true
}
