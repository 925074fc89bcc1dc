package resolver

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math"
	"net"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/miekg/dns"
)

// Bounds of one query.
const (
	// maxAliases is the maximum number of aliases (CNAME) from a name to its addresses.
	maxAliases = 16
	// payload is the largest answer accepted over UDP, in bytes: it fits into a packet on any link (dnsflagday.net/2020).
	payload = 1232
	// maxTimeout bounds resolv.conf's option timeout, as glibc does.
	maxTimeout = 30 * time.Second
	// DefaultPatience bounds a whole Lookup: all servers, all attempts, all aliases.
	DefaultPatience = 10 * time.Second
	// DefaultIPv6Patience is how long the IPv4 answer waits for the IPv6 answer. Both are requested at once, so they normally arrive together.
	DefaultIPv6Patience = 100 * time.Millisecond
)

// Answer is the name servers' answer for a name.
type Answer struct {
	// Addrs are the name's addresses of both families, sorted, without duplicates. Empty: the name does not exist, or has no address. IPv6
	// addresses are missing if the servers do not answer at once.
	Addrs []netip.Addr
	// TTL is how long the IPv4 answer is valid.
	TTL time.Duration
}

// Client queries the name servers of a resolv.conf.
type Client struct {
	// ResolvConf is the file's path. The file is read for each query: it is small, and may change at any time. Required.
	ResolvConf string
	// Port is the port of the name servers. Empty: 53.
	Port string
	// Patience bounds a Lookup. IPv6Patience bounds how long it waits for IPv6 addresses once the IPv4 answer is there. Zero: DefaultPatience
	// and DefaultIPv6Patience.
	Patience, IPv6Patience time.Duration
}

// Lookup returns the current addresses of a name. The name is absolute: no search list is applied. That a name does not exist is an answer,
// not an error; an error means that no server answered.
//
// The IPv4 answer decides: it waits only shortly for IPv6, and its TTL counts. If the IPv6 query fails, or is not answered soon, the answer
// has no IPv6 addresses.
func (c *Client) Lookup(ctx context.Context, name string) (Answer, error) {
	conf, err := c.servers()
	if err != nil {
		return Answer{}, err
	}
	ctx, cancel := context.WithTimeout(ctx, cmp.Or(c.Patience, DefaultPatience))
	defer cancel()
	other := make(chan Answer, 1)
	go func() {
		v6, _ := conf.ask(ctx, name, dns.TypeAAAA) // empty without an answer
		other <- v6
	}()
	v4, err := conf.ask(ctx, name, dns.TypeA)
	if err != nil {
		cancel()
		<-other
		return Answer{}, fmt.Errorf("resolving %s: %w", name, err)
	}
	stop := time.AfterFunc(cmp.Or(c.IPv6Patience, DefaultIPv6Patience), cancel)
	defer stop.Stop()
	v6 := <-other
	v4.Addrs = append(v4.Addrs, v6.Addrs...)
	slices.SortFunc(v4.Addrs, netip.Addr.Compare)
	v4.Addrs = slices.Compact(v4.Addrs)
	return v4, nil
}

// servers are the name servers, and the options for querying them.
type servers struct {
	addresses []string
	attempts  int
	timeout   time.Duration
}

// servers reads resolv.conf.
func (c *Client) servers() (servers, error) {
	conf, err := dns.ClientConfigFromFile(c.ResolvConf)
	if err != nil {
		return servers{}, fmt.Errorf("name servers: %w", err)
	}
	s := servers{attempts: max(1, conf.Attempts), timeout: time.Duration(conf.Timeout) * time.Second}
	if s.timeout <= 0 || s.timeout > maxTimeout {
		s.timeout = maxTimeout
	}
	port := c.Port
	if port == "" {
		port = conf.Port
	}
	list := conf.Servers
	if len(list) == 0 {
		list = []string{"127.0.0.1"} // resolv.conf(5)
	}
	for _, server := range list {
		if _, err := netip.ParseAddr(server); err == nil {
			s.addresses = append(s.addresses, net.JoinHostPort(server, port))
		}
	}
	if len(s.addresses) == 0 {
		return s, fmt.Errorf("name servers: %s: no nameserver line has an address", c.ResolvConf)
	}
	return s, nil
}

// ask queries a name's addresses of one family, and follows its aliases.
func (s servers) ask(ctx context.Context, name string, kind uint16) (Answer, error) {
	answer := Answer{TTL: math.MaxInt64}
	for asked, aliases := name, 0; ; {
		reply, err := s.exchange(ctx, asked, kind)
		if err != nil {
			return Answer{}, err
		}
		chain := follow(reply, asked)
		aliases += chain.aliases
		if aliases > maxAliases {
			return Answer{}, fmt.Errorf("more than %d aliases lead from it", maxAliases)
		}
		answer.TTL = min(answer.TTL, chain.ttl)
		if len(chain.addrs) > 0 {
			answer.Addrs = chain.addrs
			return answer, nil
		}
		negative, says := negativeTTL(reply)
		if says || reply.Rcode == dns.RcodeNameError || chain.aliases == 0 {
			answer.TTL = min(answer.TTL, negative)
			return answer, nil
		}
		asked = chain.end // the server returned only the alias
	}
}

// chain is the result of following a reply's aliases from a name.
type chain struct {
	end     string
	aliases int
	addrs   []netip.Addr
	ttl     time.Duration
}

// follow follows the aliases in a reply. It ignores all other records: they were not requested.
func follow(reply *dns.Msg, name string) chain {
	c := chain{end: dns.CanonicalName(name), ttl: math.MaxInt64}
	for c.aliases <= maxAliases {
		next := ""
		for _, record := range reply.Answer {
			if dns.CanonicalName(record.Header().Name) != c.end || record.Header().Class != dns.ClassINET {
				continue
			}
			switch r := record.(type) {
			case *dns.CNAME:
				next = dns.CanonicalName(r.Target)
			case *dns.A:
				c.address(r.A, r.Hdr.Ttl)
			case *dns.AAAA:
				c.address(r.AAAA, r.Hdr.Ttl)
			default:
				continue
			}
			c.ttl = min(c.ttl, seconds(record.Header().Ttl))
		}
		if next == "" || len(c.addrs) > 0 {
			break
		}
		c.end = next
		c.aliases++
	}
	return c
}

func (c *chain) address(ip net.IP, ttl uint32) {
	if addr, ok := netip.AddrFromSlice(ip); ok {
		c.addrs = append(c.addrs, addr.Unmap())
		c.ttl = min(c.ttl, seconds(ttl))
	}
}

func seconds(ttl uint32) time.Duration {
	if ttl > math.MaxInt32 { // RFC 2181, section 8
		return 0
	}
	return time.Duration(ttl) * time.Second
}

// negativeTTL returns how long it is valid that a name has no addresses, and whether the reply says so (RFC 2308, section 5).
func negativeTTL(reply *dns.Msg) (ttl time.Duration, says bool) {
	for _, record := range reply.Ns {
		if soa, ok := record.(*dns.SOA); ok {
			return min(seconds(soa.Hdr.Ttl), seconds(soa.Minttl)), true
		}
	}
	return 0, false
}

// exchange queries each server in turn, in several attempts, until one answers.
func (s servers) exchange(ctx context.Context, name string, kind uint16) (*dns.Msg, error) {
	var errs []error
	for range s.attempts {
		errs = errs[:0] // keep only the errors of the last attempt
		for _, server := range s.addresses {
			reply, err := s.exchangeWith(ctx, server, name, kind)
			if err == nil {
				return reply, nil
			}
			errs = append(errs, fmt.Errorf("name server %s: %w", server, err))
			if ctx.Err() != nil { // no time is left for the other servers
				return nil, errors.Join(errs...)
			}
		}
	}
	return nil, errors.Join(errs...)
}

var errNoAnswer = errors.New("it answers another question")

// exchangeWith queries one server, over TCP if the answer does not fit into a UDP packet.
func (s servers) exchangeWith(ctx context.Context, server, name string, kind uint16) (*dns.Msg, error) {
	question := new(dns.Msg).SetQuestion(name, kind)
	question.SetEdns0(payload, false)
	reply, err := s.send(ctx, "udp", server, question)
	if err == nil && reply.Rcode == dns.RcodeFormatError { // a server without EDNS (RFC 6891, section 7)
		question.Extra = nil
		reply, err = s.send(ctx, "udp", server, question)
	}
	if err == nil && reply.Truncated {
		reply, err = s.send(ctx, "tcp", server, question)
	}
	switch {
	case err != nil:
		return nil, err
	case reply.Truncated:
		return nil, errors.New("its answer is truncated over TCP as well")
	case len(reply.Question) != 1 || reply.Question[0].Qtype != kind || !strings.EqualFold(reply.Question[0].Name, name):
		return nil, errNoAnswer
	case reply.Rcode != dns.RcodeSuccess && reply.Rcode != dns.RcodeNameError:
		return nil, fmt.Errorf("it answers %s", dns.RcodeToString[reply.Rcode])
	case lame(reply):
		return nil, errors.New("it only refers to other name servers")
	}
	return reply, nil
}

// lame reports whether a reply only refers to other servers, and has no data about the name itself.
func lame(reply *dns.Msg) bool {
	_, says := negativeTTL(reply)
	return reply.Rcode == dns.RcodeSuccess && len(reply.Answer) == 0 && !says && !reply.Authoritative && !reply.RecursionAvailable
}

func (s servers) send(ctx context.Context, network, server string, question *dns.Msg) (*dns.Msg, error) {
	ctx, cancel := context.WithTimeout(ctx, s.timeout)
	defer cancel()
	client := dns.Client{Net: network, Timeout: s.timeout}
	conn, err := client.DialContext(ctx, server)
	if err != nil {
		return nil, err
	}
	defer func() { _ = conn.Close() }()
	stop := context.AfterFunc(ctx, func() { _ = conn.Close() }) // the caller has stopped waiting
	defer stop()
	reply, _, err := client.ExchangeWithConnContext(ctx, question, conn)
	switch {
	case reply != nil && reply.Response && reply.Truncated: // the part that was cut off may not parse
		return reply, nil
	case err != nil:
		return nil, err
	case !reply.Response:
		return nil, errNoAnswer
	}
	return reply, nil
}
