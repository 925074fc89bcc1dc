//go:build real

package daemon_test

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"fmt"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"weft.dev/weft/internal/flannel/flanneltest"
)

// TestCompaction: changes made while etcd could not be reached take effect once it is back, also if etcd has compacted their history.
func TestCompaction(t *testing.T) {
	weft, _ := programs(t)
	u := flanneltest.NewUnderlay(t)
	etcd := u.Etcd()
	// The node's own subnet is none of those below.
	etcd.Put(configKey, `{"Network":"10.5.0.0/16","SubnetMin":"10.5.100.0","Backend":{"Type":"vxlan"}}`)
	n1 := u.Node()
	p := startWeft(n1, weft, etcd)
	data := func(n int) string {
		return fmt.Sprintf(`{"PublicIP":"192.0.2.%d","BackendType":"vxlan","BackendData":{"VNI":1,"VtepMAC":"02:00:00:00:01:%02d"}}`, n, n)
	}
	etcd.Put(subnetsPrefix+"10.5.80.0-24", data(80))
	etcd.Put(subnetsPrefix+"10.5.81.0-24", data(81))
	has(t, n1, "10.5.80.0/24", true)
	has(t, n1, "10.5.81.0/24", true)
	etcd.Away(func() {
		etcd.Delete(subnetsPrefix + "10.5.80.0-24")
		etcd.Put(subnetsPrefix+"10.5.81.0-24", data(91)) // the same subnet with other attributes: flanneld misses it
		etcd.Put(subnetsPrefix+"10.5.82.0-24", data(82))
	})
	has(t, n1, "10.5.82.0/24", true)
	has(t, n1, "10.5.80.0/24", false)
	flanneltest.Eventually(t, "the lease's new address", func() error {
		out, err := n1.Run("bridge", "fdb", "show", "dev", "flannel.1")
		if err == nil && (!strings.Contains(out, "dst 192.0.2.91") || strings.Contains(out, "dst 192.0.2.81")) {
			err = errors.New(out)
		}
		return err
	})
	if ended, err := p.Ended(); ended {
		t.Errorf("the daemon ended: %v", err)
	}
	etcd.Put(configKey, `{"Network":"10.5.0.0/16","SubnetMin":"10.5.100.0","Backend":{"Type":"host-gw"}}`) // takes effect at once, and the device is removed
	flanneltest.Eventually(t, "the change of the backend", func() error {
		if _, err := n1.Run("ip", "link", "show", "flannel.1"); err == nil {
			return errors.New("flannel.1 is there")
		}
		return nil
	})
}

// TestTLS: an etcd that requires a client certificate and a user is used with both; without them the log has the reason for the failure.
func TestTLS(t *testing.T) {
	weft, _ := programs(t)
	u := flanneltest.NewUnderlay(t)
	files := certificates(t)
	const user, password = "root", "secret"
	etcd := u.EtcdTLS(files, user, password)
	etcd.Put(configKey, `{"Network":"10.5.0.0/16","Backend":{"Type":"vxlan"}}`)
	etcd.EnableAuth()
	n1, n2 := u.Node(), u.Node()
	tls := []string{"--etcd-cafile=" + files.CA, "--etcd-certfile=" + files.Cert, "--etcd-keyfile=" + files.Key}
	startWeft(n1, weft, etcd, append(tls, "--etcd-username="+user, "--etcd-password="+password)...)
	if subnet := n1.Subnet("FLANNEL_SUBNET"); !strings.HasPrefix(subnet, "10.5.") {
		t.Errorf("subnet %s", subnet)
	}
	refused := startWeft(n2, weft, etcd, tls...)
	flanneltest.Eventually(t, "the refusal is reported", func() error {
		if !strings.Contains(refused.Log(), "etcdserver: ") {
			return errors.New(refused.Log())
		}
		return nil
	})
	if strings.Contains(refused.Log(), password) {
		t.Error("the log has the password")
	}
}

// certificates creates an authority, and a certificate signed by it for 192.0.2.254 that is valid for both client and server.
func certificates(t *testing.T) flanneltest.Certificates {
	t.Helper()
	dir := t.TempDir()
	files := flanneltest.Certificates{CA: filepath.Join(dir, "ca.pem"), Cert: filepath.Join(dir, "cert.pem"), Key: filepath.Join(dir, "key.pem")}
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{Organization: []string{"test"}}, NotAfter: time.Now().Add(time.Hour), IsCA: true,
		BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign | x509.KeyUsageDigitalSignature, IPAddresses: []net.IP{net.IPv4(192, 0, 2, 254)},
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth},
	}
	raw, err := x509.CreateCertificate(rand.Reader, template, template, &key.PublicKey, key)
	if err != nil {
		t.Fatal(err)
	}
	private, err := x509.MarshalECPrivateKey(key)
	if err != nil {
		t.Fatal(err)
	}
	for path, block := range map[string]*pem.Block{
		files.CA: {Type: "CERTIFICATE", Bytes: raw}, files.Cert: {Type: "CERTIFICATE", Bytes: raw}, files.Key: {Type: "EC PRIVATE KEY", Bytes: private},
	} {
		if err := os.WriteFile(path, pem.EncodeToMemory(block), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return files
}
