// Package pki makes a lab's certificate authority, certificates and kubeconfigs. They live as long as the lab.
package pki

import (
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/base64"
	"encoding/pem"
	"fmt"
	"math/big"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"time"

	"sigs.k8s.io/yaml"
)

// lifetime is the validity of all certificates; an older lab must be made again.
const lifetime = 365 * 24 * time.Hour

// Authority signs certificates.
type Authority struct {
	dir  string
	cert *x509.Certificate
	key  crypto.Signer
	pem  []byte
}

// New makes an authority that stores its files in dir (0700).
func New(dir string) (*Authority, error) {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, fmt.Errorf("make %s: %w", dir, err)
	}
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, fmt.Errorf("make the authority's key: %w", err)
	}
	tmpl := template("weft-lab", nil)
	tmpl.IsCA, tmpl.BasicConstraintsValid = true, true
	tmpl.KeyUsage = x509.KeyUsageCertSign | x509.KeyUsageDigitalSignature | x509.KeyUsageCRLSign
	raw, err := x509.CreateCertificate(rand.Reader, tmpl, tmpl, key.Public(), key)
	if err != nil {
		return nil, fmt.Errorf("sign the authority: %w", err)
	}
	cert, err := x509.ParseCertificate(raw)
	if err != nil {
		return nil, fmt.Errorf("read the authority: %w", err)
	}
	a := &Authority{dir: dir, cert: cert, key: key, pem: certPEM(raw)}
	return a, a.write("ca.crt", a.pem)
}

// CAFile returns the path of the authority's certificate.
func (a *Authority) CAFile() string { return a.Path("ca.crt") }

// Path gives the path of a file made here.
func (a *Authority) Path(name string) string { return filepath.Join(a.dir, name) }

// Identity is the subject of a certificate.
type Identity struct {
	File   string // NAME.crt and NAME.key
	User   string
	Groups []string
	// For servers:
	DNS []string
	IPs []netip.Addr
}

// Issue makes a certificate and its key, for clients and servers.
func (a *Authority) Issue(id Identity) error {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return fmt.Errorf("make a key for %s: %w", id.User, err)
	}
	tmpl := template(id.User, id.Groups)
	tmpl.KeyUsage = x509.KeyUsageDigitalSignature
	tmpl.ExtKeyUsage = []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth, x509.ExtKeyUsageServerAuth}
	tmpl.DNSNames = id.DNS
	for _, ip := range id.IPs {
		tmpl.IPAddresses = append(tmpl.IPAddresses, net.IP(ip.AsSlice()))
	}
	raw, err := x509.CreateCertificate(rand.Reader, tmpl, a.cert, key.Public(), a.key)
	if err != nil {
		return fmt.Errorf("sign the certificate of %s: %w", id.User, err)
	}
	if err := a.write(id.File+".crt", certPEM(raw)); err != nil {
		return err
	}
	return a.writeKey(id.File+".key", key)
}

// SigningKey makes the key pair that service account tokens are signed with: NAME.key and NAME.pub.
func (a *Authority) SigningKey(name string) error {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return fmt.Errorf("make the key %s: %w", name, err)
	}
	raw, err := x509.MarshalPKIXPublicKey(key.Public())
	if err != nil {
		return fmt.Errorf("encode the key %s: %w", name, err)
	}
	if err := a.write(name+".pub", pem.EncodeToMemory(&pem.Block{Type: "PUBLIC KEY", Bytes: raw})); err != nil {
		return err
	}
	return a.writeKey(name+".key", key)
}

func (a *Authority) writeKey(name string, key *ecdsa.PrivateKey) error {
	raw, err := x509.MarshalECPrivateKey(key)
	if err != nil {
		return fmt.Errorf("encode %s: %w", name, err)
	}
	return a.write(name, pem.EncodeToMemory(&pem.Block{Type: "EC PRIVATE KEY", Bytes: raw}))
}

func (a *Authority) write(name string, data []byte) error {
	if err := os.WriteFile(a.Path(name), data, 0o600); err != nil {
		return fmt.Errorf("write %s: %w", name, err)
	}
	return nil
}

func certPEM(raw []byte) []byte {
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: raw})
}

func template(user string, groups []string) *x509.Certificate {
	serial, err := rand.Int(rand.Reader, new(big.Int).Lsh(big.NewInt(1), 120))
	if err != nil {
		serial = big.NewInt(time.Now().UnixNano()) // rand.Reader does not fail on Linux
	}
	now := time.Now()
	return &x509.Certificate{
		SerialNumber: serial, Subject: pkix.Name{CommonName: user, Organization: groups},
		NotBefore: now.Add(-time.Hour), NotAfter: now.Add(lifetime),
	}
}

// Kubeconfig writes the kubeconfig of an issued identity for a server. It contains the credentials, so that it can be read from any mount
// namespace.
func (a *Authority) Kubeconfig(path, server, file string) error {
	crt, err := os.ReadFile(a.Path(file + ".crt"))
	if err != nil {
		return fmt.Errorf("write %s: %w", path, err)
	}
	key, err := os.ReadFile(a.Path(file + ".key"))
	if err != nil {
		return fmt.Errorf("write %s: %w", path, err)
	}
	b64 := base64.StdEncoding.EncodeToString
	type named map[string]any
	doc := map[string]any{
		"apiVersion": "v1", "kind": "Config", "current-context": "lab",
		"clusters": []named{{"name": "lab", "cluster": named{"server": server, "certificate-authority-data": b64(a.pem)}}},
		"users":    []named{{"name": file, "user": named{"client-certificate-data": b64(crt), "client-key-data": b64(key)}}},
		"contexts": []named{{"name": "lab", "context": named{"cluster": "lab", "user": file}}},
	}
	raw, err := yaml.Marshal(doc)
	if err != nil {
		return fmt.Errorf("encode %s: %w", path, err)
	}
	if err := os.WriteFile(path, raw, 0o600); err != nil {
		return fmt.Errorf("write the kubeconfig: %w", err)
	}
	return nil
}
