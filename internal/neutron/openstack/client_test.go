package openstack

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"testing"

	"weft.dev/weft/internal/neutron/conf"
)

// An OpenStack without Octavia has no client for it: gophercloud returns an unusable one beside the error.
func TestCatalogueWithoutOctavia(t *testing.T) {
	for name, test := range map[string]struct {
		more string
		want bool
	}{
		"without": {"", false},
		"with":    {`,{"type":"load-balancer","endpoints":[{"interface":"public","region":"R","url":"%[1]s/lb"}]}`, true},
	} {
		t.Run(name, func(t *testing.T) {
			var url string
			server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				if r.URL.Path == "/net/" || r.URL.Path == "/net" || r.URL.Path == "/lb" || r.URL.Path == "/lb/" {
					_, _ = fmt.Fprintf(w, `{"versions":[{"id":"v2.0","status":"CURRENT","links":[{"rel":"self","href":"%s%s/v2.0/"}]}]}`, url, r.URL.Path)
					return
				}
				if r.Method != http.MethodPost {
					_, _ = fmt.Fprintf(w, `{"versions":{"values":[{"id":"v3.14","status":"stable","links":[{"rel":"self","href":"%s/v3/"}]}]}}`, url)
					return
				}
				w.Header().Set("X-Subject-Token", "token")
				w.WriteHeader(http.StatusCreated)
				_, _ = fmt.Fprintf(w, `{"token":{"expires_at":"2099-01-01T00:00:00.000000Z","project":{"id":"p"},"catalog":[`+
					`{"type":"identity","endpoints":[{"interface":"public","region":"R","url":"%[1]s/v3"}]},`+
					`{"type":"network","endpoints":[{"interface":"public","region":"R","url":"%[1]s/net"}]}`+test.more+`]}}`, url)
			}))
			defer server.Close()
			url = server.URL
			c, err := New(t.Context(), conf.Global{AuthURL: url + "/v3", Username: "u", Password: "p", TenantName: "t", DomainName: "Default", Region: "R"}, Options{})
			if err != nil {
				t.Fatal(err)
			}
			if (c.LoadBalancer != nil) != test.want {
				t.Errorf("client for Octavia: %v", c.LoadBalancer)
			}
		})
	}
}
