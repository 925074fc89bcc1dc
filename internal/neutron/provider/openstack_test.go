package provider

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/gophercloud/gophercloud/v2"

	"weft.dev/weft/internal/neutron/cloud"
	"weft.dev/weft/internal/neutron/openstack"
)

// object is an object of OpenStack.
type object map[string]any

// fakeOpenStack stores objects by collection, such as "ports". Lists are filtered by the query.
type fakeOpenStack struct {
	// before is called before a request is served. Nil is not called.
	before func(method, collection string)
	// away reports whether a request, such as "GET ports/ID", is answered with 503. Nil: none is.
	away func(request string) bool

	mu     sync.Mutex
	next   int
	held   map[string][]object
	writes []string
}

// cloud opens the fake.
func (f *fakeOpenStack) cloud(t *testing.T) Reach {
	t.Helper()
	server := httptest.NewServer(f)
	t.Cleanup(server.Close)
	client := &gophercloud.ServiceClient{
		ProviderClient: &gophercloud.ProviderClient{TokenID: "t"}, Endpoint: server.URL + "/", ResourceBase: server.URL + "/v2.0/",
	}
	return reachable(cloud.New(&openstack.Client{Identity: client, Network: client, LoadBalancer: client, ProjectID: "admin"}, cloud.Config{Cluster: "provider"}))
}

// reachable is an OpenStack that is always reachable.
func reachable(c *cloud.Cloud) Reach {
	return func(context.Context) (*cloud.Cloud, error) { return c, nil }
}

// add stores an object, and returns its id.
func (f *fakeOpenStack) add(collection string, o object) string {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.addLocked(collection, o)
}

func (f *fakeOpenStack) addLocked(collection string, o object) string {
	if f.held == nil {
		f.held = map[string][]object{}
	}
	if o["id"] == nil {
		o["id"] = fmt.Sprintf("%s-%d", collection, f.next)
		f.next++
	}
	if collection == "ports" && o["fixed_ips"] == nil { // Neutron chooses the address, another one for each port
		o["status"], o["mac_address"] = "ACTIVE", "fa:16:3e:00:00:05"
		o["fixed_ips"] = []object{{"subnet_id": f.held["subnets"][0]["id"], "ip_address": fmt.Sprintf("10.0.0.%d", 10+f.next)}}
	}
	f.held[collection] = append(f.held[collection], o)
	return fmt.Sprint(o["id"])
}

// ids returns the ids of a collection's objects.
func (f *fakeOpenStack) ids(collection string) []string {
	f.mu.Lock()
	defer f.mu.Unlock()
	var all []string
	for _, o := range f.held[collection] {
		all = append(all, fmt.Sprint(o["id"]))
	}
	return all
}

// ServeHTTP implements http.Handler.
func (f *fakeOpenStack) ServeHTTP(w http.ResponseWriter, req *http.Request) {
	parts := strings.Split(strings.Trim(strings.TrimPrefix(strings.TrimPrefix(req.URL.Path, "/v2.0/"), "lbaas/"), "/"), "/")
	if f.before != nil {
		f.before(req.Method, parts[0])
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.away != nil && f.away(req.Method+" "+strings.Join(parts, "/")) {
		w.WriteHeader(http.StatusServiceUnavailable)
		return
	}
	if req.Method != http.MethodGet {
		f.writes = append(f.writes, req.Method+" "+strings.Join(parts, "/"))
	}
	plural := strings.ReplaceAll(parts[len(parts)-1], "-", "_")
	singular := strings.TrimSuffix(strings.ReplaceAll(parts[0], "-", "_"), "s")
	switch {
	case len(parts) == 3 && req.Method == http.MethodPut: // a router's interface
		answer(w, http.StatusOK, object{})
	case len(parts) == 2:
		f.one(w, req, parts, singular)
	case req.Method == http.MethodPost:
		var body map[string]object
		_ = json.NewDecoder(req.Body).Decode(&body)
		f.addLocked(parts[0], body[singular])
		answer(w, http.StatusCreated, object{singular: body[singular]})
	default:
		found := []object{}
		for _, o := range f.held[strings.Join(parts, "/")] {
			if matches(o, req.URL.Query()) {
				found = append(found, o)
			}
		}
		answer(w, http.StatusOK, object{plural: found})
	}
}

func (f *fakeOpenStack) one(w http.ResponseWriter, req *http.Request, parts []string, singular string) {
	at := slices.IndexFunc(f.held[parts[0]], func(o object) bool { return o["id"] == parts[1] })
	switch {
	case at < 0:
		w.WriteHeader(http.StatusNotFound)
	case req.Method == http.MethodDelete:
		f.held[parts[0]] = slices.Delete(f.held[parts[0]], at, at+1)
		w.WriteHeader(http.StatusNoContent)
	default:
		answer(w, http.StatusOK, object{singular: maps.Clone(f.held[parts[0]][at])})
	}
}

func matches(o object, query map[string][]string) bool {
	for key, values := range query {
		if fmt.Sprint(o[key]) != values[0] {
			return false
		}
	}
	return true
}

func answer(w http.ResponseWriter, status int, body any) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	_ = json.NewEncoder(w).Encode(body)
}
