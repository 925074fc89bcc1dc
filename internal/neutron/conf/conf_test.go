package conf

import (
	"encoding/json"
	"fmt"
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

const whole = `
[Global]
auth-url = http://192.0.2.1:5000/v2.0
username = admin
password = "s3cret # with all"
tenant-name = admin
region = RegionOne
ext-net-id = 1b9d5f4c-5a7e-4f2c-9d3c-6a6a3f0c2c11
keystone-version = 2

[LoadBalancer]
lb-method = SOURCE_IP_PORT
create-monitor = yes
monitor-delay = 5500ms
monitor-timeout = 2s
monitor-max-retries = 4

[Plugin]
plugin-name = ovs
`

func TestParse(t *testing.T) {
	got, notes, err := Parse(whole)
	if err != nil {
		t.Fatal(err)
	}
	want := Config{
		Global: Global{
			AuthURL: "http://192.0.2.1:5000/v3", Username: "admin", Password: "s3cret # with all", TenantName: "admin",
			Region: "RegionOne", ExtNetID: "1b9d5f4c-5a7e-4f2c-9d3c-6a6a3f0c2c11",
		},
		LoadBalancer: LoadBalancer{
			Method: "SOURCE_IP_PORT", CreateMonitor: true, MonitorDelay: 5 * time.Second, MonitorTimeout: 2 * time.Second, MonitorMaxRetries: 4,
		},
		Plugin: Plugin{Name: "ovs", IntegrationBridge: "br-int"},
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
	if len(notes) != 3 {
		t.Errorf("notes: %q; want one each for auth-url, keystone-version and monitor-delay", notes)
	}
}

func TestErrorsNameTheKey(t *testing.T) {
	const base = "[Global]\nauth-url = http://192.0.2.1:5000/v3\nusername = u\npassword = hunter2\n"
	for _, c := range []struct{ name, text, want string }{
		{"no address", "[Global]\nusername = u\npassword = hunter2\n", "auth-url"},
		{"not an address", strings.Replace(base, "http://192.0.2.1:5000/v3", "keystone", 1), "auth-url"},
		{"credentials in the address", strings.Replace(base, "http://", "http://u:hunter2@", 1), "auth-url"},
		{"unknown key", base + "passwort = x\n", "passwort"},
		{"unknown section", base + "[Netwerk]\na = b\n", "Netwerk"},
		{"no user", "[Global]\nauth-url = http://192.0.2.1/v3\n", "username"},
		{"no password", "[Global]\nauth-url = http://192.0.2.1/v3\nusername = u\n", "password"},
		{"two users", base + "user-id = 1\n", "user-id"},
		{"token and user", base + "token-id = t\n", "token-id"},
		{"half an application credential", base + "application-credential-id = a\n", "application-credential-secret"},
		{"two domains", base + "domain-id = a\ndomain-name = b\n", "domain-name"},
		{"method", base + "[LoadBalancer]\nlb-method = RANDOM\n", "lb-method"},
		{"delay", base + "[LoadBalancer]\nmonitor-delay = 5\n", "monitor-delay"},
		{"time-out above the delay", base + "[LoadBalancer]\ncreate-monitor = 1\nmonitor-delay = 2s\nmonitor-timeout = 3s\n", "monitor-timeout"},
		{"retries", base + "[LoadBalancer]\nmonitor-max-retries = 11\n", "monitor-max-retries"},
		{"monitor", base + "[LoadBalancer]\ncreate-monitor = maybe\n", "create-monitor"},
		{"bridge", base + "[Plugin]\nintegration-bridge = a-name-that-is-too-long\n", "integration-bridge"},
	} {
		t.Run(c.name, func(t *testing.T) {
			_, _, err := Parse(c.text)
			if err == nil {
				t.Fatal("no error")
			}
			if !strings.Contains(err.Error(), c.want) {
				t.Errorf("error %q does not name %s", err, c.want)
			}
			if strings.Contains(err.Error(), "hunter2") {
				t.Errorf("error %q holds the password", err)
			}
		})
	}
}

func TestSecretIsHidden(t *testing.T) {
	config, _, err := Parse(whole)
	if err != nil {
		t.Fatal(err)
	}
	var log strings.Builder
	slog.New(slog.NewTextHandler(&log, nil)).Info("configuration", "config", config, "password", config.Global.Password)
	encoded, err := json.Marshal(config)
	if err != nil {
		t.Fatal(err)
	}
	for _, text := range []string{fmt.Sprint(config), fmt.Sprintf("%+v %#v %v", config, config, config.Global.Password), log.String(), string(encoded)} {
		if strings.Contains(text, "s3cret") {
			t.Errorf("the password is in %s", text)
		}
	}
}

func FuzzParse(f *testing.F) {
	f.Add(whole)
	f.Add("[Global]\nauth-url = http://[::1]:5000\ntoken-id = \"a\\\"b\"\n")
	f.Add("[Global \"sub\"]\nauth-url\n")
	f.Fuzz(func(t *testing.T, text string) {
		config, _, err := Parse(text)
		if err != nil {
			return
		}
		if !strings.HasSuffix(config.Global.AuthURL, "/v3") {
			t.Errorf("address %q", config.Global.AuthURL)
		}
		if config.LoadBalancer.MonitorDelay < time.Second || config.LoadBalancer.MonitorMaxRetries < 1 || config.Plugin.IntegrationBridge == "" {
			t.Errorf("accepted %+v", config)
		}
	})
}
