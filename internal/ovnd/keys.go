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
		Certificate: pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}),
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
)

// checkShown checks a certificate that a client publishes: its subject is the name of the object, and nothing else, and it cannot sign others.
// Open vSwitch uses the first common name of a subject (get_peer_common_name, lib/stream-ssl.c), and Go returns the last one.
func checkShown(text []byte, name string) error {
	block, rest := pem.Decode(text)
	if block == nil || block.Type != "CERTIFICATE" || len(rest) != 0 {
		return fmt.Errorf("certificate of %s: %w", name, errCertificate)
	}
	certificate, err := x509.ParseCertificate(block.Bytes)
	if err != nil {
		return fmt.Errorf("certificate of %s: %w", name, err)
	}
	if certificate.IsCA || !certificate.BasicConstraintsValid || certificate.KeyUsage != x509.KeyUsageDigitalSignature {
		return fmt.Errorf("certificate of %s: %w", name, errAuthority)
	}
	subject, err := asn1.Marshal(pkix.Name{CommonName: name}.ToRDNSequence())
	if err != nil {
		return fmt.Errorf("certificate of %s: %w", name, err)
	}
	if !bytes.Equal(certificate.RawSubject, subject) {
		return fmt.Errorf("certificate of %s: %w: its subject is %.128q", name, errName, fmt.Sprint(certificate.Subject.Names))
	}
	return nil
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
