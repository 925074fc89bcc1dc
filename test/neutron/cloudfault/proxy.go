// Package cloudfault puts faults between Weft and an OpenStack: a forward proxy that lets requests through, answers them in OpenStack's place,
// or loses what OpenStack answers. It also lists what an OpenStack has, so that tests find what is left over.
package cloudfault

import (
	"context"
	"fmt"
	"io"
	"log"
	"maps"
	"net"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"time"
)

// Fault is what becomes of a request.
type Fault string

// Faults. Those of the first two groups keep the request from OpenStack; with those of the third, OpenStack serves the request.
const (
	None Fault = ""

	Unauthorized Fault = "401"  // as after the end of a token
	Conflict     Fault = "409"  // as of Octavia while a load balancer changes
	TooMany      Fault = "429"  // with Retry-After: 1
	Unavailable  Fault = "503"  // as of a load balancer without servers behind it
	Away         Fault = "away" // the connection is closed

	Hang Fault = "hang" // no answer until Release

	Lost  Fault = "lost"  // the connection is closed in place of the answer
	Half  Fault = "half"  // the connection is closed amid the answer's body
	Empty Fault = "empty" // the body is {}
	Slow  Fault = "slow"  // the answer comes after Proxy.Delay
	Held  Fault = "held"  // no answer: Proxy.Held gets the request's path, and the connection stays until the client ends
)

// Faults returns all of them but Slow, whose length depends on the test, and those that tests end themselves.
func Faults() []Fault {
	return []Fault{Lost, Unavailable, Half, Conflict, TooMany, Unauthorized, Away, Empty}
}

// Proxy is a forward proxy of HTTP. Its methods may be called concurrently.
type Proxy struct {
	// Delay is that of Slow.
	Delay time.Duration
	// Held receives the paths of requests that OpenStack has served, and whose answers do not come.
	Held chan string

	server  *http.Server
	url     string
	forward *httputil.ReverseProxy

	mu     sync.Mutex
	choose func(*http.Request) Fault
	writes []string
	reads  map[string]bool
	done   map[Fault]int
	hung   chan struct{} // closed by Release
}

// New serves a proxy on loopback that reaches OpenStack by a transport.
func New(transport http.RoundTripper) (*Proxy, error) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, fmt.Errorf("listen for requests to OpenStack: %w", err)
	}
	p := &Proxy{
		url: "http://" + listener.Addr().String(), reads: map[string]bool{}, done: map[Fault]int{}, hung: make(chan struct{}), Held: make(chan string),
	}
	p.forward = &httputil.ReverseProxy{
		Rewrite: func(*httputil.ProxyRequest) {}, Transport: transport, ErrorLog: log.New(io.Discard, "", 0),
	}
	p.server = &http.Server{ReadHeaderTimeout: time.Minute, Handler: p, ErrorLog: log.New(io.Discard, "", 0)}
	go func() { _ = p.server.Serve(listener) }()
	return p, nil
}

// Close ends the proxy.
func (p *Proxy) Close() error { return p.server.Close() }

// URL is for the environment variable HTTP_PROXY.
func (p *Proxy) URL() string { return p.url }

// Transport sends requests by the proxy.
func (p *Proxy) Transport() *http.Transport {
	return &http.Transport{
		Proxy: func(*http.Request) (*url.URL, error) { return url.Parse(p.url) }, MaxIdleConnsPerHost: 8, IdleConnTimeout: 10 * time.Second,
	}
}

// Choose sets what decides on each request; nil lets all requests through.
func (p *Proxy) Choose(choose func(*http.Request) Fault) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.choose = choose
}

// Release closes the connections of requests that hang.
func (p *Proxy) Release() {
	p.mu.Lock()
	defer p.mu.Unlock()
	close(p.hung)
	p.hung = make(chan struct{})
}

func (p *Proxy) hanging() <-chan struct{} {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.hung
}

// Taken returns the writing requests that reached OpenStack since the last call.
func (p *Proxy) Taken() []string {
	p.mu.Lock()
	defer p.mu.Unlock()
	taken := p.writes
	p.writes, p.reads = nil, map[string]bool{}
	return taken
}

// Read reports whether a path with its query has been read since the last call of Taken.
func (p *Proxy) Read(path string) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.reads[path]
}

// Done counts the faults so far.
func (p *Proxy) Done() map[Fault]int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return maps.Clone(p.done)
}

// token is the path of requests for tokens, which change nothing in OpenStack.
const token = "/auth/tokens"

// Writes reports whether a request changes what OpenStack has.
func Writes(in *http.Request) bool {
	return in.Method != http.MethodGet && in.Method != http.MethodHead && !strings.HasSuffix(in.URL.Path, token)
}

func (p *Proxy) decide(in *http.Request) Fault {
	p.mu.Lock()
	defer p.mu.Unlock()
	fault := None
	if p.choose != nil {
		fault = p.choose(in)
	}
	p.done[fault]++
	switch fault {
	case Unauthorized, Conflict, TooMany, Unavailable, Away, Hang:
		return fault
	}
	if Writes(in) {
		p.writes = append(p.writes, in.Method+" "+in.URL.Path)
	} else {
		p.reads[in.URL.RequestURI()] = true
	}
	return fault
}

// ServeHTTP serves a request. OpenStack serves to the end also what the client has given up.
func (p *Proxy) ServeHTTP(out http.ResponseWriter, in *http.Request) {
	fault := p.decide(in)
	switch fault {
	case Unauthorized, Conflict, TooMany, Unavailable:
		code, _ := strconv.Atoi(string(fault))
		out.Header().Set("Retry-After", "1")
		http.Error(out, "a fault of the test's", code)
		return
	case Away:
		panic(http.ErrAbortHandler)
	case Hang:
		_, _ = io.Copy(io.Discard, in.Body) // only then the end of the client is seen
		select {
		case <-p.hanging():
		case <-in.Context().Done():
		}
		panic(http.ErrAbortHandler)
	}
	answer := httptest.NewRecorder()
	p.forward.ServeHTTP(answer, in.WithContext(context.WithoutCancel(in.Context())))
	body := answer.Body.Bytes()
	switch {
	case fault == Lost:
		panic(http.ErrAbortHandler)
	case fault == Held:
		select {
		case p.Held <- in.URL.Path:
			<-in.Context().Done()
		case <-in.Context().Done():
		}
		panic(http.ErrAbortHandler)
	case fault == Empty && len(body) > 0 && answer.Code < http.StatusMultipleChoices:
		body = []byte("{}")
	case fault == Slow:
		select {
		case <-time.After(p.Delay):
		case <-in.Context().Done():
		}
	}
	maps.Copy(out.Header(), answer.Header())
	out.Header().Set("Content-Length", strconv.Itoa(len(body)))
	out.WriteHeader(answer.Code)
	if fault == Half {
		_, _ = out.Write(body[:len(body)/2])
		panic(http.ErrAbortHandler)
	}
	_, _ = out.Write(body)
}

// ids are what differs between requests of one kind.
//
//nolint:gochecknoglobals // a constant
var ids = regexp.MustCompile(`[0-9a-f]{32}|[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}`)

// Kind is a request's method and path without the objects' ids.
func Kind(in *http.Request) string { return in.Method + " " + ids.ReplaceAllString(in.URL.Path, "ID") }

// Sequence returns a chooser that puts three faults on the first writing requests of each kind, and none on any other: Unauthorized, one of the
// others that keep the request from OpenStack, and one of those that lose the answer. Which ones differs from kind to kind, and with turn: twelve
// turns put every pair of them on every kind.
func Sequence(turn int) func(*http.Request) Fault {
	refused, lost := []Fault{Unavailable, TooMany, Conflict, Away}, []Fault{Lost, Half, Empty}
	seen, begins := map[string]int{}, map[string]int{}
	return func(in *http.Request) Fault {
		if !Writes(in) {
			return None
		}
		kind := Kind(in)
		if seen[kind] == 0 {
			begins[kind] = turn + len(begins)
		}
		faults := []Fault{Unauthorized, refused[begins[kind]%len(refused)], lost[begins[kind]%len(lost)]}
		n := seen[kind]
		seen[kind]++
		if n < len(faults) {
			return faults[n]
		}
		return None
	}
}

// Scattered returns a chooser that puts one fault on the first request of every second kind of writing request, and of every fourth kind of
// reading request. Which ones differs with turn: four turns put a fault on every kind. A program that waits longer after each failure reaches its
// end within a minute.
func Scattered(turn int) func(*http.Request) Fault {
	reading, writing := []Fault{Half, Unavailable, Empty, Slow, Lost}, Faults()
	seen, kinds := map[string]bool{}, map[bool]int{}
	return func(in *http.Request) Fault {
		kind := Kind(in)
		if seen[kind] || strings.HasSuffix(in.URL.Path, token) {
			return None
		}
		seen[kind] = true
		writes := Writes(in)
		n := kinds[writes]
		kinds[writes]++
		switch {
		case writes && (n+turn)%2 == 0:
			return writing[(n/2+turn)%len(writing)]
		case !writes && (n+turn)%4 == 0:
			return reading[(n/4+turn)%len(reading)]
		}
		return None
	}
}
