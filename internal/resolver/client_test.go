package resolver_test

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/miekg/dns"

	"weft.dev/weft/internal/resolver"
)

func lookup(t *testing.T, c *resolver.Client, name string) string {
	t.Helper()
	answer, err := c.Lookup(t.Context(), name)
	if err != nil {
		return "error: " + err.Error()
	}
	return fmt.Sprint(answer.Addrs, " ", answer.TTL)
}

// The addresses and TTLs that Lookup derives from name servers' replies.
func TestLookup(t *testing.T) {
	many := make([]string, 0, 301)
	for i := range 300 {
		many = append(many, fmt.Sprintf("many.example. 60 IN A 10.0.%d.%d", i/250, i%250+1))
	}
	for name, c := range map[string]struct {
		records []string
		want    string
	}{
		"both families":          {[]string{"www.example. 60 IN A 192.0.2.8", "www.example. 90 IN A 192.0.2.7", "www.example. 30 IN AAAA 2001:db8::1"}, "[192.0.2.7 192.0.2.8 2001:db8::1] 1m0s"},
		"in capitals":            {[]string{"WWW.Example. 60 IN A 192.0.2.7"}, "[192.0.2.7] 1m0s"},
		"each once":              {[]string{"www.example. 60 IN A 192.0.2.7", "www.example. 60 IN A 192.0.2.7"}, "[192.0.2.7] 1m0s"},
		"aliases":                {[]string{"www.example. 60 IN CNAME a.example.", "a.example. 20 IN CNAME b.example.", "b.example. 40 IN A 192.0.2.7"}, "[192.0.2.7] 20s"},
		"an alias to nothing":    {[]string{"www.example. 60 IN CNAME gone.example.", soa}, "[] 20s"},
		"no address":             {[]string{"www.example. 60 IN TXT x", soa}, "[] 20s"},
		"no such name":           {[]string{soa}, "[] 20s"},
		"IPv6 only":              {[]string{"www.example. 60 IN AAAA 2001:db8::1", soa}, "[2001:db8::1] 20s"},
		"others' records":        {[]string{"www.example. 60 IN A 192.0.2.7", "other.example. 60 IN A 192.0.2.9"}, "[192.0.2.7] 1m0s"},
		"a TTL that is negative": {[]string{"www.example. 4294967295 IN A 192.0.2.7"}, "[192.0.2.7] 0s"},
		"aliases in a circle":    {[]string{"www.example. 60 IN CNAME a.example.", "a.example. 20 IN CNAME www.example."}, "error: resolving www.example.: more than 16 aliases lead from it"},
	} {
		t.Run(name, func(t *testing.T) {
			s := serve(t)
			s.has(t, append(c.records, "stray.example. 60 IN A 192.0.2.99")...)
			client := &resolver.Client{ResolvConf: resolvConf(t, "nameserver 127.0.0.1"), Port: s.port(t), IPv6Patience: 20 * time.Second}
			if got := lookup(t, client, "www.example."); got != c.want {
				t.Errorf("got %s, want %s", got, c.want)
			}
		})
	}
	t.Run("an answer that does not fit a packet", func(t *testing.T) {
		s := serve(t)
		var list []dns.RR
		for _, text := range many {
			list = append(list, record(t, text))
		}
		s.says(func(network string, q dns.Question, reply *dns.Msg) bool {
			zone(list, q, reply)
			if network == "udp" {
				reply.Truncate(512)
			}
			return true
		})
		client := &resolver.Client{ResolvConf: resolvConf(t, "nameserver 127.0.0.1"), Port: s.port(t)}
		answer, err := client.Lookup(t.Context(), "many.example.")
		if err != nil || len(answer.Addrs) != 300 || s.times("tcp many.example. A") != 1 {
			t.Errorf("%d addresses, %d times by TCP, %v", len(answer.Addrs), s.times("tcp many.example. A"), err)
		}
	})
	t.Run("records that were not queried", func(t *testing.T) {
		s := serve(t)
		s.says(func(_ string, q dns.Question, reply *dns.Msg) bool {
			if q.Qtype == dns.TypeA {
				reply.Answer = []dns.RR{record(t, "www.example. 60 IN A 192.0.2.7"), record(t, "bank.example. 60 IN A 192.0.2.66")}
			}
			return true
		})
		client := &resolver.Client{ResolvConf: resolvConf(t, "nameserver 127.0.0.1"), Port: s.port(t)}
		if got := lookup(t, client, "www.example."); !strings.HasPrefix(got, "[192.0.2.7] ") {
			t.Errorf("got %s", got)
		}
	})
	t.Run("an alias and no more", func(t *testing.T) {
		s := serve(t)
		s.says(func(_ string, q dns.Question, reply *dns.Msg) bool {
			switch {
			case q.Name == "www.example.":
				reply.Answer = []dns.RR{record(t, "www.example. 15 IN CNAME far.example.")}
			case q.Qtype == dns.TypeA:
				reply.Answer = []dns.RR{record(t, "far.example. 60 IN A 192.0.2.7")}
			default:
				reply.Ns = []dns.RR{record(t, soa)}
			}
			return true
		})
		client := &resolver.Client{ResolvConf: resolvConf(t, "nameserver 127.0.0.1"), Port: s.port(t)}
		if got := lookup(t, client, "www.example."); got != "[192.0.2.7] 15s" {
			t.Errorf("got %s", got)
		}
	})
}

// If one server does not answer, the next one is queried.
func TestOtherServers(t *testing.T) {
	for name, bad := range map[string]func(network string, q dns.Question, reply *dns.Msg) bool{
		"fails":    func(_ string, _ dns.Question, reply *dns.Msg) bool { reply.Rcode = dns.RcodeServerFailure; return true },
		"refuses":  func(_ string, _ dns.Question, reply *dns.Msg) bool { reply.Rcode = dns.RcodeRefused; return true },
		"is still": func(string, dns.Question, *dns.Msg) bool { return false },
		"answers another question": func(_ string, _ dns.Question, reply *dns.Msg) bool {
			reply.Question[0].Name = "other.example."
			reply.Answer = []dns.RR{&dns.A{Hdr: dns.RR_Header{Name: "www.example.", Rrtype: dns.TypeA, Class: dns.ClassINET}, A: []byte{192, 0, 2, 66}}}
			return true
		},
		"asks": func(_ string, _ dns.Question, reply *dns.Msg) bool { reply.Response = false; return true },
		"knows others": func(_ string, _ dns.Question, reply *dns.Msg) bool {
			reply.RecursionAvailable = false
			reply.Ns = []dns.RR{&dns.NS{Hdr: dns.RR_Header{Name: "example.", Rrtype: dns.TypeNS, Class: dns.ClassINET}, Ns: "ns.example."}}
			return true
		},
		"is cut off always": func(_ string, _ dns.Question, reply *dns.Msg) bool { reply.Truncated = true; return true },
	} {
		t.Run(name, func(t *testing.T) {
			all := listenAll(t, 1, 2)
			good := serveAt(t, all[1])
			good.has(t, "www.example. 60 IN A 192.0.2.7", soa)
			first := serveAt(t, all[0])
			first.says(bad)
			client := &resolver.Client{
				ResolvConf: resolvConf(t, "# two of them", "search example", "options timeout:1 attempts:1", "nameserver 127.0.0.1", "nameserver 127.0.0.2"), Port: good.port(t),
			}
			if got := lookup(t, client, "www.example."); got != "[192.0.2.7] 20s" && got != "[192.0.2.7] 1m0s" {
				t.Errorf("got %s", got)
			}
			if first.times("udp www.example. A") == 0 {
				t.Error("the first server was not asked")
			}
			rewrite(t, client.ResolvConf, "options timeout:1 attempts:2", "nameserver 127.0.0.1")
			if got := lookup(t, client, "www.example."); !strings.HasPrefix(got, "error: resolving www.example.: name server 127.0.0.1:") {
				t.Errorf("got %s", got)
			}
			if n := first.times("udp www.example. A"); n < 3 {
				t.Errorf("the server was asked %d times, want a second attempt", n)
			}
		})
	}
}

// A server that does not support EDNS is queried without it.
func TestNoEDNS(t *testing.T) {
	s := serve(t)
	var list []dns.RR
	list = append(list, record(t, "www.example. 60 IN A 192.0.2.7"))
	s.says(func(_ string, q dns.Question, reply *dns.Msg) bool {
		if q.Qtype == dns.TypeA && s.times("udp www.example. A") == 1 {
			reply.Rcode = dns.RcodeFormatError
			return true
		}
		zone(list, q, reply)
		return true
	})
	client := &resolver.Client{ResolvConf: resolvConf(t, "nameserver 127.0.0.1", "options attempts:1"), Port: s.port(t)}
	if got := lookup(t, client, "www.example."); !strings.HasPrefix(got, "[192.0.2.7]") || s.times("udp www.example. A") != 2 {
		t.Errorf("got %s after %d questions", got, s.times("udp www.example. A"))
	}
}

// IPv6 queries that fail or get no answer neither suppress nor delay IPv4 addresses.
func TestBrokenIPv6(t *testing.T) {
	for what, broken := range map[string]func(reply *dns.Msg) bool{
		"fails":    func(reply *dns.Msg) bool { reply.Rcode = dns.RcodeServerFailure; return true },
		"is still": func(*dns.Msg) bool { return false },
	} {
		t.Run(what, func(t *testing.T) {
			s := serve(t)
			list := []dns.RR{record(t, "www.example. 60 IN A 192.0.2.7")}
			s.says(func(_ string, q dns.Question, reply *dns.Msg) bool {
				if q.Qtype == dns.TypeAAAA {
					return broken(reply)
				}
				zone(list, q, reply)
				return true
			})
			client := &resolver.Client{ResolvConf: resolvConf(t, "nameserver 127.0.0.1", "options timeout:20 attempts:1"), Port: s.port(t)}
			began := time.Now()
			if got := lookup(t, client, "www.example."); got != "[192.0.2.7] 1m0s" || time.Since(began) >= 20*time.Second {
				t.Errorf("got %s after %s", got, time.Since(began))
			}
		})
	}
}

// A Lookup ends, however slow the servers are, and its error names the server that it waited for.
func TestPatience(t *testing.T) {
	s := serve(t)
	s.says(func(string, dns.Question, *dns.Msg) bool { return false })
	client := &resolver.Client{
		ResolvConf: resolvConf(t, "nameserver 127.0.0.1", "options timeout:30 attempts:5"), Port: s.port(t), Patience: 100 * time.Millisecond,
	}
	if got := lookup(t, client, "www.example."); !strings.HasPrefix(got, "error: resolving www.example.: name server 127.0.0.1:") {
		t.Errorf("got %s", got)
	}
	if n := s.times("udp www.example. A"); n > 1 {
		t.Errorf("asked %d times", n)
	}
}

// resolv.conf is read for each query, and errors in it are reported.
func TestResolvConf(t *testing.T) {
	s := serve(t)
	s.has(t, "www.example. 60 IN A 192.0.2.7")
	client := &resolver.Client{ResolvConf: resolvConf(t, "nameserver not-an-address"), Port: s.port(t)}
	if got := lookup(t, client, "www.example."); !strings.Contains(got, "no nameserver line has an address") {
		t.Errorf("got %s", got)
	}
	rewrite(t, client.ResolvConf, "") // the default is the local machine
	if got := lookup(t, client, "www.example."); !strings.HasPrefix(got, "[192.0.2.7]") {
		t.Errorf("got %s", got)
	}
	client.ResolvConf += ".gone"
	if got := lookup(t, client, "www.example."); !strings.Contains(got, "no such file") {
		t.Errorf("got %s", got)
	}
}

// A cancelled Lookup returns without waiting for the servers.
func TestLookupEnds(t *testing.T) {
	s := serve(t)
	ctx, cancel := context.WithCancel(t.Context())
	s.says(func(string, dns.Question, *dns.Msg) bool {
		cancel()
		return false
	})
	client := &resolver.Client{ResolvConf: resolvConf(t, "nameserver 127.0.0.1", "options timeout:30 attempts:5"), Port: s.port(t)}
	began := time.Now()
	if _, err := client.Lookup(ctx, "www.example."); err == nil || time.Since(began) > 20*time.Second {
		t.Errorf("%v after %s", err, time.Since(began))
	}
}
