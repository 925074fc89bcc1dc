package flanneltest

import (
	"encoding/base64"
	"encoding/json"
	"fmt"
	"syscall"
)

// Etcd is an etcd on the underlay.
type Etcd struct {
	u *Underlay
	// Endpoint is the endpoint that nodes use.
	Endpoint string
	present  string
	dir      string
	process  *Process
	secure   Certificates
}

// Certificates are files for TLS; empty: none.
type Certificates struct{ CA, Cert, Key string }

// Etcd starts etcd on the underlay.
func (u *Underlay) Etcd() *Etcd {
	u.t.Helper()
	const usual = 2379
	e := &Etcd{u: u, dir: u.t.TempDir(), Endpoint: "http://192.0.2.254:2379"}
	e.start(usual)
	return e
}

// EtcdTLS starts an etcd that accepts only connections with a client certificate and a user. The certificates are for 192.0.2.254, and for
// clients.
func (u *Underlay) EtcdTLS(files Certificates, user, password string) *Etcd {
	u.t.Helper()
	e := &Etcd{u: u, dir: u.t.TempDir(), Endpoint: "https://192.0.2.254:2379", present: "https://192.0.2.254:2379", secure: files}
	const peers = "http://192.0.2.254:2380"
	e.process = u.Space.Start(nil, "etcd", "--data-dir", e.dir, "--listen-client-urls", e.present, "--advertise-client-urls", e.present,
		"--listen-peer-urls", peers, "--initial-advertise-peer-urls", peers, "--initial-cluster", "default="+peers,
		"--trusted-ca-file", files.CA, "--cert-file", files.Cert, "--key-file", files.Key, "--client-cert-auth")
	Eventually(u.t, "etcd answers", func() error {
		_, err := u.Space.Run(e.curl("/health")...)
		return err
	})
	e.post("/v3/auth/user/add", map[string]string{"name": user, "password": password}, &struct{}{})
	e.post("/v3/auth/role/add", map[string]string{"name": "root"}, &struct{}{})
	e.post("/v3/auth/user/grant", map[string]string{"user": user, "role": "root"}, &struct{}{})
	return e
}

// EnableAuth makes etcd reject requests without a user from now on. Etcd's user root must exist.
func (e *Etcd) EnableAuth() {
	e.u.t.Helper()
	e.post("/v3/auth/enable", struct{}{}, &struct{}{})
}

// curl returns the command of a request.
func (e *Etcd) curl(path string, args ...string) []string {
	argv := []string{"curl", "-sS", "--fail-with-body"}
	if e.secure.CA != "" {
		argv = append(argv, "--cacert", e.secure.CA, "--cert", e.secure.Cert, "--key", e.secure.Key)
	}
	return append(append(argv, args...), e.present+path)
}

// start starts the server on a port; its data stays.
func (e *Etcd) start(port int) {
	e.u.t.Helper()
	const peers = "http://192.0.2.254:2380"
	e.present = fmt.Sprintf("http://192.0.2.254:%d", port)
	e.process = e.u.Space.Start(nil, "etcd", "--data-dir", e.dir, "--listen-client-urls", e.present, "--advertise-client-urls", e.present,
		"--listen-peer-urls", peers, "--initial-advertise-peer-urls", peers, "--initial-cluster", "default="+peers)
	Eventually(e.u.t, "etcd answers", func() error {
		_, err := e.u.Space.Run("curl", "-sf", e.present+"/health")
		return err
	})
}

// Hold runs do while etcd answers nothing. Then it answers all requests that have arrived.
func (e *Etcd) Hold(do func()) {
	e.u.t.Helper()
	e.process.Signal(syscall.SIGSTOP)
	defer e.process.Signal(syscall.SIGCONT)
	do()
}

// Away runs do, which changes the data, while nodes cannot reach etcd, and then compacts the history.
func (e *Etcd) Away(do func()) {
	e.u.t.Helper()
	const usual, other = 2379, 12379
	e.process.Stop()
	e.start(other)
	do()
	var answer struct{ Header struct{ Revision string } }
	e.ask("range", map[string]string{"key": encode("x")}, &answer)
	e.ask("compaction", map[string]string{"revision": answer.Header.Revision}, &struct{}{})
	e.process.Stop()
	e.start(usual)
}

// ask sends a request about keys.
func (e *Etcd) ask(path string, request, answer any) {
	e.u.t.Helper()
	e.post("/v3/kv/"+path, request, answer)
}

// post sends a request to etcd's JSON gateway.
func (e *Etcd) post(path string, request, answer any) {
	e.u.t.Helper()
	body, err := json.Marshal(request)
	if err != nil {
		e.u.t.Fatal(err)
	}
	out, err := e.u.Space.Run(e.curl(path, "-d", string(body))...)
	if err != nil {
		e.u.t.Fatal(err)
	}
	if err := json.Unmarshal([]byte(out), answer); err != nil {
		e.u.t.Fatalf("%s: %v: %s", path, err, out)
	}
}

func encode(text string) string { return base64.StdEncoding.EncodeToString([]byte(text)) }

// Put sets a key, without a lease.
func (e *Etcd) Put(key, value string) {
	e.u.t.Helper()
	e.ask("put", map[string]string{"key": encode(key), "value": encode(value)}, &struct{}{})
}

// PutFor sets a key with an etcd lease of that many seconds, and returns the lease.
func (e *Etcd) PutFor(key, value string, seconds int) (lease string) {
	e.u.t.Helper()
	var granted struct{ ID string }
	e.post("/v3/lease/grant", map[string]int{"TTL": seconds}, &granted)
	e.ask("put", map[string]string{"key": encode(key), "value": encode(value), "lease": granted.ID}, &struct{}{})
	return granted.ID
}

// Left returns the seconds that an etcd lease has left: -1 if it has expired.
func (e *Etcd) Left(lease string) int {
	e.u.t.Helper()
	var answer struct {
		TTL int `json:",string"`
	}
	e.post("/v3/lease/timetolive", map[string]string{"ID": lease}, &answer)
	return answer.TTL
}

// Delete removes a key.
func (e *Etcd) Delete(key string) {
	e.u.t.Helper()
	e.ask("deleterange", map[string]string{"key": encode(key)}, &struct{}{})
}

// KV is a key with its value and its etcd lease.
type KV struct{ Key, Value, Lease string }

// List returns the keys with a prefix.
func (e *Etcd) List(prefix string) []KV {
	e.u.t.Helper()
	end := []byte(prefix)
	end[len(end)-1]++
	var answer struct {
		Kvs []struct{ Key, Value, Lease string }
	}
	e.ask("range", map[string]string{"key": encode(prefix), "range_end": encode(string(end))}, &answer)
	var out []KV
	for _, kv := range answer.Kvs {
		key, err := base64.StdEncoding.DecodeString(kv.Key)
		if err != nil {
			e.u.t.Fatal(err)
		}
		value, err := base64.StdEncoding.DecodeString(kv.Value)
		if err != nil {
			e.u.t.Fatal(err)
		}
		out = append(out, KV{string(key), string(value), kv.Lease})
	}
	return out
}

// String names the endpoint.
func (e *Etcd) String() string { return fmt.Sprintf("etcd at %s", e.Endpoint) }
