package ovnd

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/asn1"
	"encoding/pem"
	"math/big"
	"strings"
	"testing"
	"time"
)

// authority returns a self-signed certificate that can sign others.
func authority(t testing.TB, name string) []byte {
	t.Helper()
	template := template(name)
	template.IsCA, template.KeyUsage = true, x509.KeyUsageCertSign
	return selfSigned(t, template).Certificate
}

// selfSigned returns new keys with the certificate of a template.
func selfSigned(t testing.TB, template *x509.Certificate) Keys {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		t.Fatal(err)
	}
	private, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		t.Fatal(err)
	}
	return Keys{
		Certificate: pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}),
		Key:         pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: private}),
	}
}

// named returns keys whose certificate has the subject: its sets of attributes in order, each of attributes and values such as CN=n1.
func named(t testing.TB, sets ...[]string) Keys {
	t.Helper()
	subject := pkix.RDNSequence{}
	for _, set := range sets {
		var attributes pkix.RelativeDistinguishedNameSET
		for _, text := range set {
			attribute, value, _ := strings.Cut(text, "=")
			kind := map[string]asn1.ObjectIdentifier{"CN": {2, 5, 4, 3}, "O": {2, 5, 4, 10}}[attribute]
			attributes = append(attributes, pkix.AttributeTypeAndValue{Type: kind, Value: value})
		}
		subject = append(subject, attributes)
	}
	template := template("")
	var err error
	if template.RawSubject, err = asn1.Marshal(subject); err != nil {
		t.Fatal(err)
	}
	return selfSigned(t, template)
}

func template(name string) *x509.Certificate {
	return &x509.Certificate{
		SerialNumber: big.NewInt(7), Subject: pkix.Name{CommonName: name}, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageDigitalSignature,
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
	}
}

// forge returns keys of another name, whose certificate is signed with a node's key.
func forge(t *testing.T, node Keys, name string) Keys {
	t.Helper()
	pair, err := tls.X509KeyPair(node.Certificate, node.Key)
	if err != nil {
		t.Fatal(err)
	}
	issuer, err := x509.ParseCertificate(pair.Certificate[0])
	if err != nil {
		t.Fatal(err)
	}
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	der, err := x509.CreateCertificate(rand.Reader, template(name), issuer, key.Public(), pair.PrivateKey)
	if err != nil {
		t.Fatal(err)
	}
	private, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		t.Fatal(err)
	}
	// The issuer is sent as well: the server has it among its trusted certificates.
	return Keys{
		Certificate: append(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}), node.Certificate...),
		Key:         pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: private}),
	}
}
