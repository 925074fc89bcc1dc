package flanneltest

import (
	"encoding/base64"
	"encoding/json"
	"fmt"
)

// Etcd is an etcd on the underlay.
type Etcd struct {
	u        *Underlay
	Endpoint string
}

// Etcd starts etcd on the underlay.
func (u *Underlay) Etcd() *Etcd {
	u.t.Helper()
	const local, peers = "http://192.0.2.254:2379", "http://192.0.2.254:2380"
	u.Space.Start(nil, "etcd", "--data-dir", u.t.TempDir(), "--listen-client-urls", local, "--advertise-client-urls", local,
		"--listen-peer-urls", peers, "--initial-advertise-peer-urls", peers, "--initial-cluster", "default="+peers)
	Eventually(u.t, "etcd answers", func() error {
		_, err := u.Space.Run("curl", "-sf", local+"/health")
		return err
	})
	return &Etcd{u, local}
}

// ask uses etcd's JSON gateway.
func (e *Etcd) ask(path string, request, answer any) {
	e.u.t.Helper()
	body, err := json.Marshal(request)
	if err != nil {
		e.u.t.Fatal(err)
	}
	out, err := e.u.Space.Run("curl", "-sf", "-d", string(body), e.Endpoint+"/v3/kv/"+path)
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
