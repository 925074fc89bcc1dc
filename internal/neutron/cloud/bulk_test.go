package cloud

import (
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"testing"

	"github.com/gophercloud/gophercloud/v2"

	"weft.dev/weft/internal/neutron/openstack"
)

// neutronAt returns a Cloud whose Neutron is the handler.
func neutronAt(t *testing.T, handler http.Handler) *Cloud {
	t.Helper()
	server := httptest.NewServer(handler)
	t.Cleanup(server.Close)
	client := &gophercloud.ServiceClient{ProviderClient: &gophercloud.ProviderClient{}, Endpoint: server.URL + "/", ResourceBase: server.URL + "/v2.0/"}
	return New(&openstack.Client{Network: client}, Config{Cluster: "c"})
}

// A list of ports may come in pages, of which the last may be empty. Both parts of a port are read.
func TestPagesOfPorts(t *testing.T) {
	var asked []string
	c := neutronAt(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		asked = append(asked, r.URL.String())
		next := fmt.Sprintf(`"ports_links":[{"rel":"next","href":"http://%s/v2.0/ports?network_id=blue&limit=2&marker=%d"}]`, r.Host, len(asked))
		switch len(asked) {
		case 1:
			_, _ = fmt.Fprintf(w, `{"ports":[{"id":"a","binding:host_id":"n1"},{"id":"b","status":"ACTIVE"}],%s}`, next)
		case 2:
			_, _ = fmt.Fprintf(w, `{"ports":[{"id":"c"}],%s}`, next)
		default:
			_, _ = fmt.Fprint(w, `{"ports":[],"ports_links":[{"rel":"previous","href":"http://elsewhere.example/"}]}`)
		}
	}))
	found, err := c.Ports(t.Context(), "blue")
	if err != nil {
		t.Fatal(err)
	}
	if len(found) != 3 || found[0].ID != "a" || found[0].HostID != "n1" || !found[1].Active() || found[2].ID != "c" {
		t.Errorf("read %+v", found)
	}
	want := []string{"/v2.0/ports?network_id=blue", "/v2.0/ports?network_id=blue&limit=2&marker=1", "/v2.0/ports?network_id=blue&limit=2&marker=2"}
	if fmt.Sprint(asked) != fmt.Sprint(want) {
		t.Errorf("requests %q, want %q", asked, want)
	}
}

// An answer without a list does not say that a network has no ports; an empty list does.
func TestAnswersWithoutPorts(t *testing.T) {
	for body, whole := range map[string]bool{
		`{"ports":[]}`: true, `{}`: false, `{"ports":null}`: false, `{"ports":[{"id":"a"}`: false, `{"ports":{}}`: false, ``: false,
		`{"ports":[{"id":"a"}],"ports_links":[{"rel":"next","href":7}]}`: false,
	} {
		c := neutronAt(t, http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = fmt.Fprint(w, body) }))
		found, err := c.Ports(t.Context(), "blue")
		if (err == nil) != whole || len(found) > 0 {
			t.Errorf("%s: %d ports, %v", body, len(found), err)
		}
		if body == `{}` && !errors.Is(err, ErrAnswer) {
			t.Errorf("%s: %v", body, err)
		}
	}
}
