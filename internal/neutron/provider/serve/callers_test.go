package serve

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"fmt"
	"io"
	"math/big"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"

	api "weft.dev/weft/api/kubestack"
	"weft.dev/weft/internal/testwait"
)

// callerMode is the first argument of the test's program when it is a caller: NETWORK ADDRESS UID follow.
const callerMode = "weft-test-caller"

func TestMain(m *testing.M) {
	if len(os.Args) == 5 && os.Args[1] == callerMode {
		fmt.Println(tryCall(os.Args[2], os.Args[3], os.Args[4]))
		return
	}
	os.Exit(m.Run())
}

const (
	callServed = "connected, and served"
	callClosed = "connected, and closed"
)

// preface begins a client's connection of HTTP/2: with its settings, which are empty.
const preface = "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\x00\x00\x00\x04\x00\x00\x00\x00\x00"

// tryCall begins a connection of HTTP/2 as a user, and returns what becomes of it. A server that serves it sends its settings at once.
func tryCall(network, address, uid string) string {
	if n, err := strconv.Atoi(uid); err != nil || n != os.Getuid() && syscall.Setresuid(n, n, n) != nil {
		return "uid " + uid + " cannot be taken"
	}
	conn, err := net.DialTimeout(network, address, 10*time.Second)
	if err != nil {
		return "not connected: " + err.Error()
	}
	defer func() { _ = conn.Close() }()
	_ = conn.SetDeadline(time.Now().Add(10 * time.Second))
	_, _ = io.WriteString(conn, preface)
	switch n, err := conn.Read(make([]byte, 1)); {
	case n == 1:
		return callServed
	case os.IsTimeout(err):
		return "connected, without an answer"
	}
	return callClosed
}

// call runs tryCall in a process of its own.
func call(t *testing.T, at net.Addr, uid int) string {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	out, err := exec.CommandContext(t.Context(), self, callerMode, at.Network(), at.String(), strconv.Itoa(uid)).CombinedOutput()
	if err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	return strings.TrimSpace(string(out))
}

// await waits until the log has what a pattern matches, and returns its group.
func (s *said) await(t *testing.T, pattern string) string {
	t.Helper()
	var found []string
	testwait.Eventually(t, "the log says "+pattern, func() error {
		if found = regexp.MustCompile(pattern).FindStringSubmatch(s.String()); found == nil {
			return fmt.Errorf("it says %s", s)
		}
		return nil
	})
	return found[1]
}

// listening returns the address at which the program listens.
func (s *said) listening(t *testing.T) net.Addr {
	t.Helper()
	at := s.await(t, `msg="provider serves" address=(\S+)`)
	if strings.HasPrefix(at, "/") {
		return &net.UnixAddr{Net: "unix", Name: at}
	}
	addr, err := net.ResolveTCPAddr("tcp", at)
	if err != nil {
		t.Fatal(err)
	}
	return addr
}

// anotherUID is of no user that a test runs as.
const anotherUID = 65533

// Callers by loopback and by a unix socket are checked by their uid: those that --allow-uid names are served, by default root, and the same
// program as another user is refused, which the log says with its uid.
func TestCallers(t *testing.T) {
	k := newKeystone(t)
	callers := []int{os.Getuid()}
	if os.Getuid() == 0 {
		callers = append(callers, anotherUID)
	}
	for _, allowed := range [][]int{nil, {os.Getuid()}, {anotherUID}, {os.Getuid(), anotherUID}} {
		for _, network := range []string{"tcp", "unix"} {
			t.Run(fmt.Sprint(network, allowed), func(t *testing.T) {
				listen := "127.0.0.1:0"
				if network == "unix" {
					dir := t.TempDir()
					for _, open := range []string{dir, filepath.Dir(dir)} { // to all users
						if err := os.Chmod(open, 0o755); err != nil { //nolint:gosec // it holds a socket
							t.Fatal(err)
						}
					}
					listen = "unix:" + filepath.Join(dir, "provider.sock")
				}
				flags, serves := []string{"--listen=" + listen}, allowed
				for _, uid := range allowed {
					flags = append(flags, fmt.Sprintf("--allow-uid=%d", uid))
				}
				if allowed == nil {
					serves = []int{0}
				}
				log := start(t, k, flags...)
				at := log.listening(t)
				for _, uid := range callers {
					want := callClosed
					if slices.Contains(serves, uid) {
						want = callServed
					}
					if got := call(t, at, uid); got != want {
						t.Errorf("uid %d: %s, want %s", uid, got, want)
					}
					if want == callClosed {
						log.await(t, fmt.Sprintf(`msg="caller refused" .*(uid=%d) error=<nil>`, uid))
					}
				}
			})
		}
	}
}

// authority signs certificates.
type authority struct {
	dir  string
	cert *x509.Certificate
	key  *ecdsa.PrivateKey
}

func newAuthority(t *testing.T) *authority {
	t.Helper()
	a := &authority{dir: t.TempDir()}
	a.cert, a.key = a.sign(t, "ca", &x509.Certificate{IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign})
	return a
}

// sign writes NAME.pem and NAME.key.
func (a *authority) sign(t *testing.T, name string, cert *x509.Certificate) (*x509.Certificate, *ecdsa.PrivateKey) {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	cert.SerialNumber, cert.Subject = big.NewInt(time.Now().UnixNano()), pkix.Name{CommonName: name}
	cert.NotBefore, cert.NotAfter = time.Now().Add(-time.Hour), time.Now().Add(time.Hour)
	parent, signer := a.cert, a.key
	if parent == nil {
		parent, signer = cert, key
	}
	der, err := x509.CreateCertificate(rand.Reader, cert, parent, &key.PublicKey, signer)
	if err != nil {
		t.Fatal(err)
	}
	signed, err := x509.ParseCertificate(der)
	if err != nil {
		t.Fatal(err)
	}
	raw, err := x509.MarshalECPrivateKey(key)
	if err != nil {
		t.Fatal(err)
	}
	for file, block := range map[string]*pem.Block{".pem": {Type: "CERTIFICATE", Bytes: der}, ".key": {Type: "EC PRIVATE KEY", Bytes: raw}} {
		if err := os.WriteFile(filepath.Join(a.dir, name+file), pem.EncodeToMemory(block), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return signed, key
}

func (a *authority) client(t *testing.T) tls.Certificate {
	t.Helper()
	cert, key := a.sign(t, "client", &x509.Certificate{ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}})
	return tls.Certificate{Certificate: [][]byte{cert.Raw}, PrivateKey: key}
}

// With mutual TLS, a client with a certificate of the authority is served. One without a certificate, with another authority's, or without TLS
// is not, also on loopback and as root.
func TestMutualTLS(t *testing.T) {
	k, ours, others := newKeystone(t), newAuthority(t), newAuthority(t)
	ours.sign(t, "server", &x509.Certificate{
		IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)}, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
	})
	file := func(name string) string { return filepath.Join(ours.dir, name) }
	log := start(t, k, "--listen=127.0.0.1:0", "--tls-cert="+file("server.pem"), "--tls-key="+file("server.key"), "--client-ca="+file("ca.pem"))
	at := log.listening(t)
	roots := x509.NewCertPool()
	roots.AddCert(ours.cert)
	with := func(certs ...tls.Certificate) *tls.Config {
		// Go's client leaves a certificate out that the server's authority has not signed.
		given := func(*tls.CertificateRequestInfo) (*tls.Certificate, error) {
			return &append(certs, tls.Certificate{})[0], nil
		}
		return &tls.Config{RootCAs: roots, MinVersion: tls.VersionTLS12, NextProtos: []string{"h2"}, GetClientCertificate: given}
	}
	conn := dial(t, "passthrough:///"+at.String(), grpc.WithTransportCredentials(credentials.NewTLS(with(ours.client(t)))))
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	if got, err := api.NewNetworksClient(conn).Active(ctx, &api.ActiveRequest{}); err != nil || !got.GetResult() {
		t.Errorf("with a certificate of the authority: %v, %v", got, err)
	}
	// The server's alert arrives after the client's handshake, in place of HTTP/2.
	for want, config := range map[string]*tls.Config{
		"certificate required": with(), "unknown certificate authority": with(others.client(t)),
	} {
		conn, err := (&tls.Dialer{Config: config}).DialContext(ctx, at.Network(), at.String())
		if err == nil {
			_, err = conn.Read(make([]byte, 1))
			_ = conn.Close()
		}
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v, want %q", err, want)
		}
	}
	plain, err := new(net.Dialer).DialContext(ctx, at.Network(), at.String())
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = plain.Close() }()
	_, _ = io.WriteString(plain, preface)
	const alert = 21 // the first byte of a record of TLS
	if got, _ := io.ReadAll(plain); len(got) > 0 && got[0] != alert {
		t.Errorf("without TLS: the server answers %q", got)
	}
	if served := strings.Count(log.String(), "call served"); served != 1 {
		t.Errorf("%d calls were served, want 1", served)
	}
}

// The program does not start on an address that other machines reach without mutual TLS, nor with a part of it.
func TestListenNeedsTLS(t *testing.T) {
	for flags, want := range map[string]string{
		"--listen=:0":        "needs mutual TLS",
		"--listen=0.0.0.0:0": "needs mutual TLS",
		"--listen=localhost:0 --tls-cert=/nonexistent":                                                 "mutual TLS needs all of",
		"--listen=:0 --tls-cert=/nonexistent --tls-key=/nonexistent":                                   "mutual TLS needs all of",
		"--listen=127.0.0.1:0 --tls-cert=/nonexistent --tls-key=/nonexistent --client-ca=/nonexistent": "/nonexistent",
	} {
		cmd, o := describe(Program)
		if err := cmd.ParseFlags(strings.Fields(flags)); err != nil {
			t.Fatal(err)
		}
		in, _, err := o.listen.Open()
		if err == nil {
			_ = in.Close()
		}
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %q", flags, err, want)
		}
	}
}
