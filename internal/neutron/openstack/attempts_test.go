package openstack

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"weft.dev/weft/internal/neutron/conf"
)

// keystone is a Keystone and a Neutron. Passwords are right while right is set, and tokens valid while valid is.
type keystone struct {
	*httptest.Server

	// tries counts the requests for tokens.
	tries atomic.Int32
	right atomic.Bool
	valid atomic.Bool
}

func newKeystone(t *testing.T) *keystone {
	t.Helper()
	k := &keystone{}
	k.valid.Store(true)
	k.Server = httptest.NewServer(k)
	t.Cleanup(k.Close)
	return k
}

func (k *keystone) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	switch {
	case r.Method == http.MethodPost:
		k.tries.Add(1)
		if !k.right.Load() {
			w.WriteHeader(http.StatusUnauthorized)
			_, _ = fmt.Fprint(w, `{"error":{"message":"The request you have made requires authentication."}}`)
			return
		}
		w.Header().Set("X-Subject-Token", "token")
		w.WriteHeader(http.StatusCreated)
		_, _ = fmt.Fprintf(w, `{"token":{"expires_at":"2099-01-01T00:00:00.000000Z","project":{"id":"p"},"catalog":[`+
			`{"type":"identity","endpoints":[{"interface":"public","region":"R","url":"%[1]s/v3"}]},`+
			`{"type":"network","endpoints":[{"interface":"public","region":"R","url":"%[1]s/net"}]}]}}`, k.URL)
	case r.URL.Path == "/net/" || r.URL.Path == "/net":
		_, _ = fmt.Fprintf(w, `{"versions":[{"id":"v2.0","status":"CURRENT","links":[{"rel":"self","href":"%s/net/v2.0/"}]}]}`, k.URL)
	case r.URL.Path == "/net/v2.0/ports" && !k.valid.Load():
		w.WriteHeader(http.StatusUnauthorized)
	case r.URL.Path == "/net/v2.0/ports":
		_, _ = fmt.Fprint(w, `{"ports":[]}`)
	default:
		_, _ = fmt.Fprintf(w, `{"versions":{"values":[{"id":"v3.14","status":"stable","links":[{"rel":"self","href":"%s/v3/"}]}]}}`, k.URL)
	}
}

func (k *keystone) conf(password conf.Secret) conf.Global {
	return conf.Global{AuthURL: k.URL + "/v3", Username: "u", Password: password, TenantName: "t", DomainName: "Default", Region: "R"}
}

// A password that Keystone refuses is tried once for all callers, then less and less often, and at once if it is another one.
func TestRefusedPasswordIsTriedOnce(t *testing.T) {
	k := newKeystone(t)
	now := time.Now()
	attempts := NewAttempts()
	attempts.now = func() time.Time { return now }
	open := func(password conf.Secret) error {
		_, err := New(t.Context(), k.conf(password), Options{Attempts: attempts})
		return err
	}
	var callers sync.WaitGroup
	for range 20 {
		callers.Go(func() {
			if err := open("wrong"); !Unauthorized(err) {
				t.Errorf("with a wrong password: %v", err)
			}
		})
	}
	callers.Wait()
	if tries := k.tries.Swap(0); tries != 1 {
		t.Errorf("%d tries of a wrong password by 20 callers, want 1", tries)
	}
	began := now
	var at []time.Duration
	for now.Sub(began) < 2*time.Hour {
		left, paused := Paused(open("wrong"))
		if !paused || left <= 0 {
			t.Fatalf("after %s: paused %t for %s", now.Sub(began), paused, left)
		}
		if k.tries.Swap(0) > 0 {
			at = append(at, now.Sub(began))
		}
		now = now.Add(left)
	}
	if want := "[1m0s 3m0s 7m0s 15m0s 31m0s 1h1m0s 1h31m0s]"; fmt.Sprint(at) != want {
		t.Errorf("tries of a wrong password after %v, want %s", at, want)
	}
	k.right.Store(true)
	if err := open("right"); err != nil {
		t.Errorf("with another password: %v", err)
	}
}

// Keystone that does not answer is asked again soon, by one of the callers.
func TestKeystoneAway(t *testing.T) {
	k := newKeystone(t)
	k.right.Store(true)
	now := time.Now()
	attempts := NewAttempts()
	attempts.now = func() time.Time { return now }
	away := errors.New("away")
	fail := func(context.Context) error { return away }
	for _, want := range []time.Duration{time.Second, 2 * time.Second, 4 * time.Second} {
		err := attempts.do(t.Context(), k.conf("right"), fail)
		if left, paused := Paused(err); !errors.Is(err, away) || !paused || left != want {
			t.Errorf("%v, paused %t for %s, want %s", err, paused, left, want)
		}
		now = now.Add(want)
	}
	if _, err := New(t.Context(), k.conf("right"), Options{Attempts: attempts}); err != nil {
		t.Error(err)
	}
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	err := attempts.do(ended, k.conf("right"), func(ctx context.Context) error { return ctx.Err() })
	if _, paused := Paused(err); err == nil || paused {
		t.Errorf("a caller whose time is up: %v, shared %t", err, paused)
	}
}

// A token that ends after the password was changed: the requests under way share one try of the former password.
func TestChangedPasswordIsTriedOnce(t *testing.T) {
	k := newKeystone(t)
	k.right.Store(true)
	c, err := New(t.Context(), k.conf("former"), Options{})
	if err != nil {
		t.Fatal(err)
	}
	k.tries.Store(0)
	k.right.Store(false)
	k.valid.Store(false)
	var callers sync.WaitGroup
	for range 8 {
		callers.Go(func() {
			for range 3 {
				_, err := c.Network.Get(t.Context(), c.Network.ServiceURL("ports"), nil, nil) //nolint:bodyclose // there is none
				if err = Explain(err); !Unauthorized(err) {
					t.Errorf("with an ended token: %v", err)
				}
				if _, paused := Paused(err); !paused {
					t.Errorf("no shared failure: %v", err)
				}
			}
		})
	}
	callers.Wait()
	if tries := k.tries.Load(); tries != 1 {
		t.Errorf("%d tries of the former password, want 1", tries)
	}
}
