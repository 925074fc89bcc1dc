package cluster

import (
	"encoding/json"
	"fmt"
	"log/slog"
	"maps"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/gophercloud/gophercloud/v2"

	"weft.dev/weft/internal/neutron/cloud"
	"weft.dev/weft/internal/neutron/conf"
	"weft.dev/weft/internal/neutron/openstack"
)

// object is an object of OpenStack.
type object map[string]any

// fakeOpenStack stores objects as Neutron and Octavia do: by collection, in all projects, with lists filtered by the query. A created
// object has an id, and is ready at once, except load balancers.
type fakeOpenStack struct {
	// pending is for how many requests that read load balancers a change of one is in progress. Until it ends, Octavia refuses others.
	pending int
	// monitors is set to have TCP listeners monitored.
	monitors bool
	// failing makes created load balancers fail, and away every request.
	failing, away bool
	// withoutOctavia leaves the load-balancer service out of the catalogue.
	withoutOctavia bool
	// refused is a host whose ports are not created.
	refused string
	// quota is how many ports there may be; 0: any number.
	quota int
	// arrived is called when a request to create ports arrives, and false ends the connection without an answer. Nil is not called.
	arrived func() bool
	// provider is the provider of created load balancers; "": none is reported.
	provider string
	// whole is set to have load balancers refused that are created with their parts: each leaves a port in Neutron.
	whole bool
	// way sends the sessions' requests; nil: the default transport.
	way http.RoundTripper

	mu   sync.Mutex
	next int
	held map[string][]object // by collection, such as "ports"
	// allocated are the addresses, each after its network, that no port has and that are allocated nevertheless: those of a refused request,
	// before the one for which it was refused.
	allocated map[string]bool
	// changes are the requests other than GET, in order.
	changes []string
}

const (
	externalNetwork = "outside"
	clusterName     = "weft"
)

// session opens the fake as the controller would, with credentials of the project "admin".
func (f *fakeOpenStack) session(t *testing.T) *session {
	t.Helper()
	server := httptest.NewServer(f)
	t.Cleanup(server.Close)
	at := func(base string) *gophercloud.ServiceClient {
		return &gophercloud.ServiceClient{
			ProviderClient: &gophercloud.ProviderClient{TokenID: "t", HTTPClient: http.Client{Transport: f.way}},
			Endpoint:       server.URL + "/", ResourceBase: server.URL + "/v2.0/" + base,
		}
	}
	client := &openstack.Client{Identity: at(""), Network: at(""), LoadBalancer: at(""), ProjectID: "admin"}
	if f.withoutOctavia {
		client.LoadBalancer = nil
	}
	config := cloud.Config{Cluster: clusterName, ExternalNetwork: externalNetwork, LoadBalancer: conf.LoadBalancer{CreateMonitor: f.monitors}}
	return &session{Cloud: cloud.New(client, config), project: client.ProjectID}
}

// add stores an object, and returns its id.
func (f *fakeOpenStack) add(collection string, o object) string {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.addLocked(collection, o)
}

func (f *fakeOpenStack) addLocked(collection string, o object) string {
	f.next++
	if o["id"] == nil {
		o["id"] = fmt.Sprintf("%08x-0000-4000-8000-000000000000", f.next)
	}
	id, _ := o["id"].(string)
	switch collection {
	case "ports":
		if o["binding:vif_type"] == nil {
			o["binding:vif_type"] = "ovs"
		}
	case "loadbalancers":
		if o["provisioning_status"] == nil {
			o["provisioning_status"] = "ACTIVE"
		}
		o["vip_address"], o["vip_port_id"] = "10.244.0.9", "vip-"+id
		if f.provider != "" {
			o["provider"] = f.provider
		}
		f.addPartsLocked(id, o)
		if f.pending > 0 {
			o["provisioning_status"], o["left"] = "PENDING_CREATE", f.pending
		}
		if f.failing {
			o["provisioning_status"] = "ERROR"
		}
	case "subnets":
		for _, n := range f.held["networks"] {
			if n["id"] == o["network_id"] {
				below, _ := n["subnets"].([]string)
				n["subnets"] = append(below, id)
			}
		}
	case "floatingips":
		if o["floating_ip_address"] == nil {
			o["floating_ip_address"] = fmt.Sprintf("192.0.2.%d", 100+f.next)
		}
	case "healthmonitors":
		for _, p := range f.held["pools"] {
			if p["id"] == o["pool_id"] {
				p["healthmonitor_id"] = id
			}
		}
	case "listeners":
		o["loadbalancers"] = []object{{"id": o["loadbalancer_id"]}}
	case "pools":
		for _, l := range f.held["listeners"] {
			if l["id"] == o["listener_id"] {
				l["default_pool_id"], o["loadbalancer_id"] = id, l["loadbalancer_id"]
			}
		}
	}
	if f.held == nil {
		f.held = map[string][]object{}
	}
	f.held[collection] = append(f.held[collection], o)
	return id
}

// addPartsLocked stores what a load balancer is created with: listeners with their pools and members.
func (f *fakeOpenStack) addPartsLocked(id string, balancer object) {
	below := func(o object, field string) []object {
		var all []object
		list, _ := o[field].([]any)
		for _, one := range list {
			part, _ := one.(map[string]any)
			all = append(all, part)
		}
		delete(o, field)
		return all
	}
	for _, listener := range below(balancer, "listeners") {
		pool, _ := listener["default_pool"].(map[string]any)
		delete(listener, "default_pool")
		listener["loadbalancer_id"] = id
		listenerID := f.addLocked("listeners", listener)
		members := below(pool, "members")
		pool["listener_id"] = listenerID
		poolID := f.addLocked("pools", pool)
		for _, member := range members {
			f.addLocked("pools/"+poolID+"/members", member)
		}
	}
}

// share shares a network with a project, or with all: "*".
func (f *fakeOpenStack) share(network, project string) {
	f.add("rbac-policies", object{"object_type": "network", "object_id": network, "action": "access_as_shared", "target_tenant": project})
}

// clear removes the objects of a collection.
func (f *fakeOpenStack) clear(collection string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	delete(f.held, collection)
}

// absent makes every request fail, or none.
func (f *fakeOpenStack) absent(away bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.away = away
}

// refuse makes the creation of a host's ports fail; "": of none.
func (f *fakeOpenStack) refuse(host string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.refused = host
}

// set changes a field of an object.
func (f *fakeOpenStack) set(collection, id, field string, value any) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, o := range f.held[collection] {
		if o["id"] == id {
			o[field] = value
		}
	}
}

// all returns the objects of a collection.
func (f *fakeOpenStack) all(collection string) []object {
	f.mu.Lock()
	defer f.mu.Unlock()
	var copies []object
	for _, o := range f.held[collection] {
		copies = append(copies, maps.Clone(o))
	}
	return copies
}

// one returns an object of a collection; nil if there is none.
func (f *fakeOpenStack) one(collection, id string) object {
	for _, o := range f.all(collection) {
		if o["id"] == id {
			return o
		}
	}
	return nil
}

// portsRefused returns why ports are not created; status 0: they are.
func (f *fakeOpenStack) portsRefused(list []object) (status int, kind string) {
	taken := map[string]bool{}
	for _, o := range f.held["ports"] {
		taken[fmt.Sprint(o["network_id"], addressOf(o))] = true
	}
	for i, o := range list {
		at := fmt.Sprint(o["network_id"], addressOf(o))
		switch {
		case f.refused != "" && o["binding:host_id"] == f.refused:
			return http.StatusBadRequest, ""
		case taken[at] || f.allocated[at]:
			if f.allocated == nil {
				f.allocated = map[string]bool{}
			}
			for _, before := range list[:i] {
				f.allocated[fmt.Sprint(before["network_id"], addressOf(before))] = true
			}
			return http.StatusConflict, "IpAddressAlreadyAllocated"
		}
	}
	if f.quota > 0 && len(f.held["ports"])+len(list) > f.quota {
		return http.StatusConflict, "OverQuota"
	}
	return 0, ""
}

// addressOf returns the first address of a port.
func addressOf(port object) any {
	switch list := port["fixed_ips"].(type) {
	case []any:
		first, _ := list[0].(map[string]any)
		return first["ip_address"]
	case []object:
		return list[0]["ip_address"]
	}
	return nil
}

// ServeHTTP implements http.Handler.
func (f *fakeOpenStack) ServeHTTP(w http.ResponseWriter, req *http.Request) {
	if f.arrived != nil && req.Method == http.MethodPost && strings.HasSuffix(req.URL.Path, "/ports") && !f.arrived() {
		panic(http.ErrAbortHandler)
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.away {
		w.WriteHeader(http.StatusServiceUnavailable)
		return
	}
	parts := strings.Split(strings.TrimPrefix(strings.TrimPrefix(req.URL.Path, "/v2.0/"), "lbaas/"), "/")
	parts = slices.DeleteFunc(parts, func(s string) bool { return s == "" })
	if len(parts) > 2 { // a part of an object: pools/ID/members
		parts = []string{strings.Join(parts[:3], "/")}
	}
	collection := parts[0]
	plural := strings.ReplaceAll(collection[strings.LastIndex(collection, "/")+1:], "-", "_")
	singular := strings.TrimSuffix(plural, "s")
	if req.Method != http.MethodGet {
		f.changes = append(f.changes, req.Method+" "+strings.Join(parts, "/"))
	}
	var body map[string]json.RawMessage
	if req.Body != nil {
		_ = json.NewDecoder(req.Body).Decode(&body) // without a body: none
	}
	if strings.Contains(req.URL.Path, "/lbaas/") {
		if !f.octavia(req, parts, singular, body) {
			w.WriteHeader(http.StatusConflict)
			return
		}
	}
	if status := f.refusedLocked(req, parts, body[singular]); status != 0 {
		w.WriteHeader(status)
		return
	}
	if strings.HasSuffix(collection, "_router_interface") {
		f.connect(w, strings.Split(collection, "/"), body)
		return
	}
	if len(parts) == 2 {
		f.serveOne(w, req, parts, singular, body)
		return
	}
	switch req.Method {
	case http.MethodGet:
		found := []object{}
		for _, o := range f.held[collection] {
			if matches(o, req.URL.Query()) {
				found = append(found, o)
			}
		}
		answer(w, http.StatusOK, map[string]any{plural: found})
	case http.MethodPut: // the members of a pool, all at once
		delete(f.held, collection)
		var list []object
		_ = json.Unmarshal(body[plural], &list)
		for _, o := range list {
			f.addLocked(collection, o)
		}
		w.WriteHeader(http.StatusAccepted)
	case http.MethodPost:
		if raw, bulk := body[plural]; bulk {
			var list []object
			_ = json.Unmarshal(raw, &list)
			if status, kind := f.portsRefused(list); status != 0 {
				answer(w, status, map[string]any{"NeutronError": object{"type": kind, "message": "refused"}})
				return
			}
			for _, o := range list {
				f.addLocked(collection, o)
			}
			answer(w, http.StatusCreated, map[string]any{plural: list})
			return
		}
		o := object{}
		_ = json.Unmarshal(body[singular], &o)
		f.addLocked(collection, o)
		answer(w, http.StatusCreated, map[string]any{singular: o})
	}
}

// refusedLocked returns the status with which a request is refused; 0: it is not.
func (f *fakeOpenStack) refusedLocked(req *http.Request, parts []string, body json.RawMessage) int {
	var o object
	_ = json.Unmarshal(body, &o) // without a body: none
	uses := map[string]string{"networks": "network_id", "routers": "device_id"}
	for _, p := range f.held["ports"] {
		if req.Method == http.MethodDelete && len(parts) == 2 && uses[parts[0]] != "" && p[uses[parts[0]]] == parts[1] {
			return http.StatusConflict
		}
	}
	for _, other := range f.held["floatingips"] { // a port has one at most
		if parts[0] == "floatingips" && o["port_id"] != nil && other["port_id"] == o["port_id"] && (len(parts) == 1 || other["id"] != parts[1]) {
			return http.StatusConflict
		}
	}
	if f.whole && req.Method == http.MethodPost && parts[0] == "loadbalancers" && o["listeners"] != nil {
		f.addLocked("ports", object{"name": "vip"})
		return http.StatusForbidden
	}
	return 0
}

// connect connects a router to a subnet, or disconnects it.
func (f *fakeOpenStack) connect(w http.ResponseWriter, path []string, body map[string]json.RawMessage) {
	var subnet string
	_ = json.Unmarshal(body["subnet_id"], &subnet)
	at := slices.IndexFunc(f.held["subnets"], func(o object) bool { return o["id"] == subnet })
	if path[2] == "add_router_interface" {
		f.addLocked("ports", object{
			"network_id": f.held["subnets"][at]["network_id"], "device_id": path[1], "device_owner": "network:router_interface",
			"fixed_ips": []object{{"subnet_id": subnet, "ip_address": f.held["subnets"][at]["gateway_ip"]}},
		})
	} else {
		f.held["ports"] = slices.DeleteFunc(f.held["ports"], func(p object) bool {
			return p["device_id"] == path[1] && p["network_id"] == f.held["subnets"][at]["network_id"]
		})
	}
	answer(w, http.StatusOK, object{"subnet_id": subnet})
}

// settleLocked advances the changes of all load balancers.
func (f *fakeOpenStack) settleLocked() {
	for _, lb := range f.held["loadbalancers"] {
		left, changing := lb["left"].(int)
		if !changing {
			continue
		}
		lb["left"] = left - 1
		if left <= 1 {
			delete(lb, "left")
			lb["provisioning_status"] = "ACTIVE"
		}
	}
}

// octavia marks the load balancer of a request as changing, and returns false if it already is.
func (f *fakeOpenStack) octavia(req *http.Request, parts []string, singular string, body map[string]json.RawMessage) bool {
	if req.Method == http.MethodGet {
		if parts[0] == "loadbalancers" {
			f.settleLocked()
		}
		return true
	}
	var o object
	_ = json.Unmarshal(body[singular], &o)
	lb := f.balancerOf(parts, o)
	if lb == nil {
		return true // the load balancer itself
	}
	if strings.HasPrefix(fmt.Sprint(lb["provisioning_status"]), "PENDING") {
		return false
	}
	if f.pending > 0 && parts[0] != "loadbalancers" {
		lb["provisioning_status"], lb["left"] = "PENDING_UPDATE", f.pending
	}
	return true
}

// balancerOf returns the load balancer that a request changes, by the path or by the object to create; nil if none.
func (f *fakeOpenStack) balancerOf(parts []string, made object) object {
	find := func(collection string, id any) object {
		for _, o := range f.held[collection] {
			if o["id"] == id {
				return o
			}
		}
		return nil
	}
	id := made["loadbalancer_id"]
	if l := find("listeners", made["listener_id"]); l != nil {
		id = l["loadbalancer_id"]
	}
	if p := find("pools", made["pool_id"]); p != nil {
		id = p["loadbalancer_id"]
	}
	if below := strings.Split(strings.Join(parts, "/"), "/"); len(below) > 1 {
		if id = below[1]; below[0] != "loadbalancers" {
			id = find(below[0], id)["loadbalancer_id"]
		}
	}
	return find("loadbalancers", id)
}

func (f *fakeOpenStack) serveOne(w http.ResponseWriter, req *http.Request, parts []string, singular string, body map[string]json.RawMessage) {
	at := slices.IndexFunc(f.held[parts[0]], func(o object) bool { return o["id"] == parts[1] })
	if at < 0 {
		w.WriteHeader(http.StatusNotFound)
		return
	}
	o := f.held[parts[0]][at]
	switch req.Method {
	case http.MethodDelete:
		f.held[parts[0]] = slices.Delete(f.held[parts[0]], at, at+1)
		for _, l := range f.held["listeners"] {
			if parts[0] == "pools" && l["default_pool_id"] == parts[1] {
				delete(l, "default_pool_id")
			}
		}
		w.WriteHeader(http.StatusNoContent)
		return
	case http.MethodPut:
		_ = json.Unmarshal(body[singular], &o)
	}
	answer(w, http.StatusOK, map[string]any{singular: o})
}

func matches(o object, query map[string][]string) bool {
	for key, values := range query {
		if held, there := o[key]; !slices.Contains(values, fmt.Sprint(held)) && (there || values[0] != "") {
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

func discard() *slog.Logger { return slog.New(slog.DiscardHandler) }
