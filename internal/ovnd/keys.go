package ovnd

import (
	"bytes"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/asn1"
	"encoding/pem"
	"errors"
	"fmt"
	"io/fs"
	"math/big"
	"os"
	"path/filepath"
	"slices"
	"time"
)

// Names of the files in a directory of keys.
const (
	KeyFile         = "key.pem"
	CertificateFile = "cert.pem"
	// ServerFile is the certificate of the databases, on a node.
	ServerFile = "server.pem"
)

// serverName is the DNS name of the databases' certificates, and the common name of the certificate of a single server. Those of a cluster
// have common names of their own: with the same one, OpenSSL does not find the right certificate in a list.
const serverName = "weft-ovn"

// certificateType is the type of PEM blocks with certificates.
const certificateType = "CERTIFICATE"

// Certificates are valid for ten years, and are replaced after half of that time.
const (
	validity = 10 * 365 * 24 * time.Hour
	renewal  = validity / 2
)

// Keys are a private key and its self-signed certificate.
type Keys struct {
	// Certificate and Key are PEM.
	Certificate, Key []byte
}

// NewKeys returns new keys. The certificate is valid for a client and for a server of the name, and cannot sign others. The name is the
// common name; a server may have other DNS names.
func NewKeys(name string, now time.Time, dns ...string) (Keys, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return Keys{}, fmt.Errorf("make a key for %s: %w", name, err)
	}
	serial, err := rand.Int(rand.Reader, new(big.Int).Lsh(big.NewInt(1), 127))
	if err != nil {
		return Keys{}, fmt.Errorf("make a certificate for %s: %w", name, err)
	}
	template := &x509.Certificate{
		SerialNumber: serial, Subject: pkix.Name{CommonName: name}, DNSNames: slices.Compact(append([]string{name}, dns...)),
		NotBefore: now.Add(-time.Hour), NotAfter: now.Add(validity), // clocks of nodes differ
		KeyUsage: x509.KeyUsageDigitalSignature, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth, x509.ExtKeyUsageServerAuth},
		BasicConstraintsValid: true,
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		return Keys{}, fmt.Errorf("make a certificate for %s: %w", name, err)
	}
	private, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		return Keys{}, fmt.Errorf("encode the key of %s: %w", name, err)
	}
	return Keys{
		Certificate: pem.EncodeToMemory(&pem.Block{Type: certificateType, Bytes: der}),
		Key:         pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: private}),
	}, nil
}

// KeysIn returns the keys in a directory. Keys that are missing, unreadable, old or for another name are replaced.
func KeysIn(dir, name string, now time.Time, dns ...string) (Keys, error) {
	certificate, err := os.ReadFile(filepath.Join(dir, CertificateFile))
	key, keyErr := os.ReadFile(filepath.Join(dir, KeyFile))
	if err := errors.Join(err, keyErr); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return Keys{}, fmt.Errorf("keys for OVN: %w", err)
	}
	keys := Keys{Certificate: certificate, Key: key}
	if keys.serve(name, now) {
		return keys, nil
	}
	if keys, err = NewKeys(name, now, dns...); err != nil {
		return Keys{}, err
	}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return Keys{}, fmt.Errorf("keys for OVN: %w", err)
	}
	// A crash between the two writes leaves a certificate of another key, which the next start replaces.
	if err := errors.Join(
		replace(filepath.Join(dir, KeyFile), keys.Key, 0o600),
		replace(filepath.Join(dir, CertificateFile), keys.Certificate, 0o644)); err != nil {
		return Keys{}, err
	}
	return keys, nil
}

// serve reports whether the key and certificate match, are for the name and are not old.
func (k Keys) serve(name string, now time.Time) bool {
	pair, err := tls.X509KeyPair(k.Certificate, k.Key)
	if err != nil {
		return false
	}
	certificate, err := x509.ParseCertificate(pair.Certificate[0])
	return err == nil && certificate.Subject.CommonName == name && now.Add(renewal).Before(certificate.NotAfter) && now.After(certificate.NotBefore)
}

// Errors of published certificates.
var (
	errCertificate = errors.New("not one certificate in PEM")
	errAuthority   = errors.New("the certificate is an authority's")
	errName        = errors.New("the certificate is another's")
	errForm        = errors.New("the certificate does not have the form of those that Weft makes")
)

// checkShown checks a certificate that a client publishes, and returns it in PEM that has nothing of the client's text. Its subject is the
// name of the object, and nothing else, and it cannot sign others. Open vSwitch uses the first common name of a subject
// (get_peer_common_name, lib/stream-ssl.c), and Go returns the last one.
func checkShown(text []byte, name string) ([]byte, error) {
	block, rest := pem.Decode(text)
	if block == nil || block.Type != certificateType || len(rest) != 0 {
		return nil, fmt.Errorf("certificate of %s: %w", name, errCertificate)
	}
	certificate, err := x509.ParseCertificate(block.Bytes)
	if err != nil {
		return nil, fmt.Errorf("certificate of %s: %w", name, err)
	}
	if certificate.IsCA || !certificate.BasicConstraintsValid || certificate.KeyUsage != x509.KeyUsageDigitalSignature {
		return nil, fmt.Errorf("certificate of %s: %w", name, errAuthority)
	}
	subject, err := asn1.Marshal(pkix.Name{CommonName: name}.ToRDNSequence())
	if err != nil {
		return nil, fmt.Errorf("certificate of %s: %w", name, err)
	}
	if !bytes.Equal(certificate.RawSubject, subject) {
		return nil, fmt.Errorf("certificate of %s: %w: its subject is %.128q", name, errName, fmt.Sprint(certificate.Subject.Names))
	}
	der, err := encode(certificate)
	if err == nil && !bytes.Equal(der, certificate.Raw) {
		err = errForm
	}
	if err != nil {
		return nil, fmt.Errorf("certificate of %s: %w", name, err)
	}
	return pem.EncodeToMemory(&pem.Block{Type: certificateType, Bytes: der}), nil
}

// encode returns a certificate in DER (RFC 5280, 4.1) with the fields of [NewKeys] and no others. Go skips fields that it does not use, and
// OpenSSL refuses a whole list of certificates if one field of one of them is malformed.
func encode(c *x509.Certificate) ([]byte, error) {
	key, ok := c.PublicKey.(*ecdsa.PublicKey)
	if !ok || key.Curve != elliptic.P256() {
		return nil, errForm
	}
	public, err := x509.MarshalPKIXPublicKey(key)
	if err != nil {
		return nil, fmt.Errorf("encode its key: %w", err)
	}
	type validity struct{ NotBefore, NotAfter time.Time }
	type signed struct {
		Version         int `asn1:"explicit,tag:0"`
		Serial          *big.Int
		Algorithm       pkix.AlgorithmIdentifier
		Issuer          asn1.RawValue
		Validity        validity
		Subject, Public asn1.RawValue
		Extensions      []pkix.Extension `asn1:"explicit,tag:3"`
	}
	algorithm := pkix.AlgorithmIdentifier{Algorithm: asn1.ObjectIdentifier{1, 2, 840, 10045, 4, 3, 2}} // ecdsa-with-SHA256 (RFC 5758, 3.2)
	subject := asn1.RawValue{FullBytes: c.RawSubject}
	contents := signed{
		2, c.SerialNumber, algorithm, subject, validity{c.NotBefore, c.NotAfter}, subject, asn1.RawValue{FullBytes: public}, c.Extensions,
	}
	der, err := asn1.Marshal(struct {
		Signed    signed
		Algorithm pkix.AlgorithmIdentifier
		Signature asn1.BitString
	}{contents, algorithm, asn1.BitString{Bytes: c.Signature, BitLength: 8 * len(c.Signature)}})
	if err != nil {
		return nil, fmt.Errorf("encode it: %w", err)
	}
	return der, nil
}

// clientTLS returns the TLS configuration of a client with the keys, for databases with the server certificate.
func clientTLS(keys Keys, server []byte) (*tls.Config, error) {
	pair, err := tls.X509KeyPair(keys.Certificate, keys.Key)
	if err != nil {
		return nil, fmt.Errorf("keys for OVN: %w", err)
	}
	roots := x509.NewCertPool()
	if !roots.AppendCertsFromPEM(server) {
		return nil, fmt.Errorf("certificate of OVN's databases: %w", errCertificate)
	}
	return &tls.Config{Certificates: []tls.Certificate{pair}, RootCAs: roots, ServerName: serverName, MinVersion: tls.VersionTLS12}, nil
}

// replace replaces a file atomically.
func replace(path string, data []byte, mode os.FileMode) error {
	fresh, err := os.CreateTemp(filepath.Dir(path), ".new-*")
	if err != nil {
		return fmt.Errorf("write %s: %w", path, err)
	}
	_, err = fresh.Write(data)
	if err := errors.Join(err, fresh.Chmod(mode), fresh.Sync(), fresh.Close()); err != nil {
		return errors.Join(fmt.Errorf("write %s: %w", path, err), os.Remove(fresh.Name()))
	}
	if err := os.Rename(fresh.Name(), path); err != nil {
		return errors.Join(fmt.Errorf("write %s: %w", path, err), os.Remove(fresh.Name()))
	}
	return nil
}

// replaceIfChanged replaces a file atomically, unless it has the data already.
func replaceIfChanged(path string, data []byte) error {
	if have, err := os.ReadFile(path); err == nil && bytes.Equal(have, data) {
		return nil
	}
	return replace(path, data, 0o644)
}
