package ovnd

import (
	"bytes"
	"crypto/tls"
	"errors"
	"os"
	"path/filepath"
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

// A certificate is trusted for the name of the object that publishes it, and only if it cannot sign others.
func TestCheckShown(t *testing.T) {
	keys, err := NewKeys("n1", time.Now())
	if err != nil {
		t.Fatal(err)
	}
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
	} {
		if err := checkShown(test.text, test.of); !errors.Is(err, test.want) {
			t.Errorf("%s: %v, want %v", name, err, test.want)
		}
	}
}

func FuzzCheckShown(f *testing.F) {
	keys, err := NewKeys("n1", time.Now())
	if err != nil {
		f.Fatal(err)
	}
	f.Add(keys.Certificate)
	f.Add([]byte("-----BEGIN CERTIFICATE-----\n-----END CERTIFICATE-----\n"))
	f.Fuzz(func(_ *testing.T, text []byte) { _ = checkShown(text, "n1") })
}
