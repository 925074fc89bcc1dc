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
	"slices"
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
		Certificate: pem.EncodeToMemory(&pem.Block{Type: certificateType, Bytes: der}),
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

// malformed returns a certificate that Go parses and OpenSSL refuses: a field that Go skips, which no certificate of Weft has, is empty.
func malformed(t testing.TB, certificate []byte) []byte {
	t.Helper()
	return change(t, certificate, func(fields []asn1.RawValue) []asn1.RawValue {
		unique := asn1.RawValue{Class: asn1.ClassContextSpecific, Tag: 1} // issuerUniqueID, a BIT STRING, which has at least one byte
		signed := changeDER(t, fields[0].FullBytes, func(fields []asn1.RawValue) []asn1.RawValue {
			return slices.Insert(fields, len(fields)-1, unique) // before the extensions
		})
		return append([]asn1.RawValue{{FullBytes: signed}}, fields[1:]...)
	})
}

// change changes the fields of a certificate. Its signature stays.
func change(t testing.TB, certificate []byte, edit func([]asn1.RawValue) []asn1.RawValue) []byte {
	t.Helper()
	block, _ := pem.Decode(certificate)
	return pem.EncodeToMemory(&pem.Block{Type: certificateType, Bytes: changeDER(t, block.Bytes, edit)})
}

func changeDER(t testing.TB, sequence []byte, edit func([]asn1.RawValue) []asn1.RawValue) []byte {
	t.Helper()
	var fields []asn1.RawValue
	if rest, err := asn1.Unmarshal(sequence, &fields); err != nil || len(rest) != 0 {
		t.Fatalf("no sequence: %v, and %x follows", err, rest)
	}
	der, err := asn1.Marshal(edit(fields))
	if err != nil {
		t.Fatal(err)
	}
	return der
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
		Certificate: append(pem.EncodeToMemory(&pem.Block{Type: certificateType, Bytes: der}), node.Certificate...),
		Key:         pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: private}),
	}
}
