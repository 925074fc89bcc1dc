package ovnd

import (
	"bytes"
	"crypto/tls"
	"crypto/x509"
	"encoding/asn1"
	"encoding/pem"
	"errors"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"
)

// Keys are kept until they are old, damaged or for another name; only the owner can read the key.
func TestKeysIn(t *testing.T) {
	dir, now := t.TempDir(), time.Now()
	keys := func(name string, at time.Time) Keys {
		t.Helper()
		k, err := KeysIn(dir, name, at)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := tls.X509KeyPair(k.Certificate, k.Key); err != nil {
			t.Fatal(err)
		}
		return k
	}
	first := keys("n1", now)
	if st, err := os.Stat(filepath.Join(dir, KeyFile)); err != nil || st.Mode().Perm() != 0o600 {
		t.Errorf("mode %v of the key, %v", st.Mode(), err)
	}
	if again := keys("n1", now.Add(time.Hour)); !bytes.Equal(again.Certificate, first.Certificate) {
		t.Error("new keys without need")
	}
	second := keys("n1", now.Add(validity-renewal+time.Hour))
	if bytes.Equal(second.Certificate, first.Certificate) {
		t.Error("old keys stay")
	}
	third := keys("n2", now.Add(validity-renewal+time.Hour))
	if bytes.Equal(third.Certificate, second.Certificate) {
		t.Error("another's keys stay")
	}
	if err := os.WriteFile(filepath.Join(dir, KeyFile), []byte("damaged"), 0o600); err != nil {
		t.Fatal(err)
	}
	if fourth := keys("n2", now); bytes.Equal(fourth.Certificate, third.Certificate) {
		t.Error("damaged keys stay")
	}
}

// A certificate is trusted for the name of the object that publishes it, if it has no other name, and only if it cannot sign others. The text
// around it is not used.
func TestCheckShown(t *testing.T) {
	keys, err := NewKeys("n1", time.Now())
	if err != nil {
		t.Fatal(err)
	}
	unlimited := template("n1")
	unlimited.KeyUsage = 0
	for name, test := range map[string]struct {
		text []byte
		of   string
		want error
	}{
		"its own":        {keys.Certificate, "n1", nil},
		"another's":      {keys.Certificate, "n2", errName},
		"two":            {append(bytes.Clone(keys.Certificate), keys.Certificate...), "n1", errCertificate},
		"none":           {[]byte("hello"), "n1", errCertificate},
		"a key":          {keys.Key, "n1", errCertificate},
		"an authority's": {authority(t, "n1"), "n1", errAuthority},
		"for all uses":   {selfSigned(t, unlimited).Certificate, "n1", errAuthority},

		"with its name in the form of an agent's": {named(t, []string{"CN=n1"}).Certificate, "n1", nil},
		"with another's name before its own":      {named(t, []string{"CN=n2"}, []string{"CN=n1"}).Certificate, "n1", errName},
		"with another's name after its own":       {named(t, []string{"CN=n1"}, []string{"CN=n2"}).Certificate, "n1", errName},
		"with two names in one set":               {named(t, []string{"CN=n1", "CN=n2"}).Certificate, "n1", errName},
		"with an organization":                    {named(t, []string{"O=n2"}, []string{"CN=n1"}).Certificate, "n1", errName},
		"with a zero byte in its name":            {named(t, []string{"CN=n1\x00"}).Certificate, "n1", errName},
		"without a name":                          {named(t).Certificate, "n1", errName},

		"without a newline at its end": {bytes.TrimSpace(keys.Certificate), "n1", nil},
		"after other text":             {append([]byte("n1\n"), keys.Certificate...), "n1", nil},
		"that OpenSSL refuses":         {malformed(t, keys.Certificate), "n1", errForm},
		"with a further field": {change(t, keys.Certificate, func(fields []asn1.RawValue) []asn1.RawValue {
			return append(fields, asn1.NullRawValue)
		}), "n1", errForm},
	} {
		have, err := checkShown(test.text, test.of)
		if !errors.Is(err, test.want) {
			t.Errorf("%s: %v, want %v", name, err, test.want)
		}
		if err != nil {
			continue
		}
		block, rest := pem.Decode(have)
		if !bytes.Equal(have, pem.EncodeToMemory(block)) || len(rest) != 0 || !bytes.Contains(have, body(test.text)) {
			t.Errorf("%s: returned as\n%s", name, have)
		}
	}
}

// body is the text of a certificate in PEM, between the lines around it.
func body(text []byte) []byte {
	_, after, _ := bytes.Cut(text, []byte("-----BEGIN CERTIFICATE-----\n"))
	before, _, _ := bytes.Cut(after, []byte("-----END CERTIFICATE-----"))
	return before
}

func FuzzCheckShown(f *testing.F) {
	keys, err := NewKeys("n1", time.Now())
	if err != nil {
		f.Fatal(err)
	}
	f.Add(keys.Certificate)
	f.Add([]byte("-----BEGIN CERTIFICATE-----\n-----END CERTIFICATE-----\n"))
	f.Add(named(f, []string{"CN=n2"}, []string{"CN=n1"}).Certificate)
	f.Add(named(f, []string{"CN=n1", "CN=n2"}).Certificate)
	f.Add(bytes.TrimSpace(keys.Certificate))
	f.Add(malformed(f, keys.Certificate))
	f.Fuzz(func(t *testing.T, text []byte) {
		have, err := checkShown(text, "n1")
		if err != nil {
			return
		}
		if name := peerName(t, have); name != "n1" {
			t.Errorf("Open vSwitch finds the name %q in an accepted certificate", name)
		}
		if block, rest := pem.Decode(have); len(rest) != 0 || block.Type != certificateType || !bytes.Equal(have, pem.EncodeToMemory(block)) {
			t.Errorf("not one certificate: %s", have)
		}
	})
}

// peerName returns the name that Open vSwitch finds in a certificate: the first common name, whatever its string's type, up to a zero byte.
func peerName(t *testing.T, text []byte) string {
	t.Helper()
	block, _ := pem.Decode(text)
	certificate, err := x509.ParseCertificate(block.Bytes)
	if err != nil {
		t.Fatal(err)
	}
	type attributesSET []struct { // encoding/asn1 recognizes a set by the end of its type's name
		Type  asn1.ObjectIdentifier
		Value asn1.RawValue
	}
	var sets []attributesSET
	if rest, err := asn1.Unmarshal(certificate.RawSubject, &sets); err != nil || len(rest) != 0 {
		t.Fatalf("the subject is followed by %x: %v", rest, err)
	}
	for _, set := range sets {
		for _, attribute := range set {
			if attribute.Type.Equal(asn1.ObjectIdentifier{2, 5, 4, 3}) {
				name, _, _ := bytes.Cut(attribute.Value.Bytes, []byte{0})
				return string(name)
			}
		}
	}
	return ""
}

// A server reads its number from what was installed: another number is refused, with what to do.
func TestNumberOfServers(t *testing.T) {
	one, three := Options{}.withDefaults(), Options{Servers: 3}.withDefaults()
	ofOne := map[string]string{northboundKey: "ssl:192.0.2.1:6641"}
	ofThree := map[string]string{serverKey(northboundKey, 0): "ssl:192.0.2.1:6641", clusterKey(NorthboundDB): "4d5c"}
	for name, c := range map[string]struct {
		options Options
		data    map[string]string
		want    error
	}{
		"one, first": {one, nil, nil}, "three, first": {three, nil, nil}, "one": {one, ofOne, nil}, "three": {three, ofThree, nil},
		"one to three": {three, ofOne, errWasOne}, "three to one": {one, ofThree, errWasThree},
	} {
		if err := c.options.checkServers(c.data); !errors.Is(err, c.want) {
			t.Errorf("%s: %v, want %v", name, err, c.want)
		}
	}
	for _, o := range []Options{{Servers: 2}, {Servers: 5}, {Servers: 3, Server: 3}, {Server: 1}} {
		o.Address = netip.MustParseAddr("192.0.2.1")
		if err := o.withDefaults().validate(); err == nil {
			t.Errorf("server %d of %d is accepted", o.Server, o.Servers)
		}
	}
}

// Clients get the endpoints and certificates of all servers. A certificate of another name is an error.
func TestServersOfClients(t *testing.T) {
	data := map[string]string{clusterKey(NorthboundDB): "4d5c"}
	for i, at := range []string{"ssl:192.0.2.1:6641", "", "ssl:192.0.2.3:6641"} {
		if at == "" {
			continue
		}
		keys, err := NewKeys(serverKey(serverName, i), time.Now(), serverName)
		if err != nil {
			t.Fatal(err)
		}
		data[serverKey(northboundKey, i)], data[serverKey(certificateKey, i)] = at, string(keys.Certificate)
	}
	if have := ofServers(data, northboundKey); !slices.Equal(have, []string{"ssl:192.0.2.1:6641", "ssl:192.0.2.3:6641"}) {
		t.Errorf("endpoints %q", have)
	}
	want := data[serverKey(certificateKey, 0)] + data[serverKey(certificateKey, 2)]
	if have, err := serverCertificates(data); err != nil || string(have) != want {
		t.Errorf("certificates %s, %v", have, err)
	}
	data[serverKey(certificateKey, 1)] = data[serverKey(certificateKey, 2)]
	if _, err := serverCertificates(data); !errors.Is(err, errName) {
		t.Errorf("another server's certificate: %v", err)
	}
}
