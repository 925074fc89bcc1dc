package neutron

import (
	"errors"
	"testing"
)

// The lines are those of Neutron's server, and of gunicorn, which serves Keystone and Octavia.
func TestRequests(t *testing.T) {
	const log = `2026-11-30 09:00:00.000 12 INFO neutron.wsgi [req-1] 10.0.0.1 "GET /v2.0/ports?network_id=1 HTTP/1.1" status: 200  len: 12 time: 0.1
2026-11-30 09:00:00.100 12 INFO neutron.wsgi [req-2] 10.0.0.1 "POST /v2.0/ports HTTP/1.1" status: 201  len: 12 time: 0.1
127.0.0.1 - - [30/Nov/2026:09:00:00 +0000] "POST /v3/auth/tokens HTTP/1.1" 201 12 "-" "weft gophercloud/v2"
127.0.0.1 - - [30/Nov/2026:09:00:00 +0000] "GET /v3/auth/tokens HTTP/1.1" 200 12 "-" "python-keystoneclient"
127.0.0.1 - - [30/Nov/2026:09:00:00 +0000] "PATCH /v3/users/1 HTTP/1.1" 200 12 "-" "weft gophercloud/v2"
127.0.0.1 - - [30/Nov/2026:09:00:00 +0000] "DELETE /v2.0/lbaas/loadbalancers/1?cascade=true HTTP/1.1" 204 0 "-" "weft gophercloud/v2"
127.0.0.1 - - [30/Nov/2026:09:00:00 +0000] "PUT /v3/projects/1/users/2/roles/3 HTTP/1.1" 204 0 "-" "weft gophercloud/v2"
`
	got := countRequests(log)
	if got.reads != 1 || got.writes != 4 {
		t.Errorf("%d reads and %d writes, want 1 and 4", got.reads, got.writes)
	}
	before := requests{"Neutron": got}
	if _, err := before.since(before); !errors.Is(err, errUnread) {
		t.Errorf("without a reading request: %v", err)
	}
	got.reads++
	got.writes += 2
	if writes, err := (requests{"Neutron": got}).since(before); writes != 2 || err != nil {
		t.Errorf("%d writes, %v, want 2", writes, err)
	}
}
