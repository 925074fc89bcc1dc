//go:build real

package session_test

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"fmt"
	"math/big"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"weft.dev/weft/internal/ovsdb/session"
	"weft.dev/weft/internal/testwait"
)

// process is a running ovsdb-server.
type process struct {
	socket  string
	control string
	cmd     *exec.Cmd
}

func tool(t testing.TB, args ...string) {
	t.Helper()
	run(t, "ovsdb-tool", args...)
}

func run(t testing.TB, name string, args ...string) {
	t.Helper()
	if out, err := exec.CommandContext(t.Context(), name, args...).CombinedOutput(); err != nil {
		t.Fatalf("%s %v: %v: %s", name, args, err, out)
	}
}

// startServer starts ovsdb-server on a database file and returns once its socket exists.
func startServer(t testing.TB, file string, args ...string) *process {
	t.Helper()
	dir, err := os.MkdirTemp("", "wtdb") // short: a unix socket's path has room for 107 bytes
	must(t, err)
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	s := &process{socket: filepath.Join(dir, "s"), control: filepath.Join(dir, "c")}
	args = append(args, "--remote=punix:"+s.socket, "--unixctl="+s.control, "-vconsole:warn", file)
	s.cmd = exec.Command("ovsdb-server", args...)
	s.cmd.Stderr = t.Output()
	s.cmd.Env = append(os.Environ(), "OVS_RUNDIR="+dir, "OVS_LOGDIR="+dir)
	must(t, s.cmd.Start())
	t.Cleanup(s.kill)
	testwait.Until(t, "socket of ovsdb-server", func() bool {
		conn, err := net.Dial("unix", s.socket)
		if err == nil {
			_ = conn.Close()
		}
		return err == nil
	})
	return s
}

func (s *process) kill() {
	if s.cmd.ProcessState == nil {
		_ = s.cmd.Process.Signal(syscall.SIGKILL)
		_ = s.cmd.Wait()
	}
}

func TestReal(t *testing.T) {
	suite(t, func(t *testing.T) string {
		file := filepath.Join(t.TempDir(), "db")
		tool(t, "create", file, schemaFile)
		return startServer(t, file).socket
	})
}

// The session uses the leader, and moves to the next leader with a complete copy: when the server ends, and when it hands over the leadership and
// keeps the connection.
func TestRealLeader(t *testing.T) {
	for name, end := range map[string]func(t *testing.T, leader *process){
		"ends": func(_ *testing.T, leader *process) { leader.kill() },
		"leaves": func(t *testing.T, leader *process) {
			run(t, "ovs-appctl", "-t", leader.control, "cluster/leave", database)
		},
	} {
		t.Run(name, func(t *testing.T) { movesToLeader(t, end) })
	}
}

// startCluster starts three servers of a clustered database. The last endpoint is the leader's.
func startCluster(t *testing.T) (endpoints []string, servers map[string]*process) {
	t.Helper()
	var address [3]string
	for i := range address {
		listener, err := net.Listen("tcp", "127.0.0.1:0")
		must(t, err)
		address[i] = "tcp:" + listener.Addr().String()
		must(t, listener.Close())
	}
	dir := t.TempDir()
	servers = map[string]*process{}
	for i := range address {
		file := filepath.Join(dir, fmt.Sprint(i))
		if i == 0 {
			tool(t, "create-cluster", file, schemaFile, address[0])
		} else {
			tool(t, "join-cluster", file, database, address[i], address[0])
		}
		s := startServer(t, file)
		endpoints = append([]string{"unix:" + s.socket}, endpoints...)
		servers["unix:"+s.socket] = s
	}
	return endpoints, servers
}

func movesToLeader(t *testing.T, end func(t *testing.T, leader *process)) {
	t.Helper()
	endpoints, servers := startCluster(t)
	connected := make(chan bool, 10)
	k := keep(t, session.Config{Endpoints: endpoints, LeaderOnly: true, Connected: func(again bool) { connected <- again }})
	write(t, k, insert("first"))
	leader := k.Current().Endpoint()
	if leader != endpoints[2] {
		t.Fatalf("connected to %s, the leader is %s", leader, endpoints[2])
	}
	// The others must have joined first: the cluster would die with its only member.
	follower := keep(t, session.Config{Endpoints: endpoints[:1]})
	second := keep(t, session.Config{Endpoints: endpoints[1:2]})
	for _, k := range []*session.Keeper{follower, second} {
		testwait.Until(t, "copy of a follower", func() bool { return names(t, k)["first"] })
	}
	<-connected
	end(t, servers[leader])
	if !<-connected {
		t.Error("the next session says that it is the first")
	}
	write(t, k, insert("second"))
	if now := k.Current().Endpoint(); now == leader {
		t.Errorf("still connected to %s", now)
	}
	if have := names(t, k); !have["first"] || len(have) > 2 {
		t.Errorf("the new leader's copy has %v", have)
	}
}

func TestRealTLS(t *testing.T) {
	dir := t.TempDir()
	certificate := selfSigned(t, dir)
	file := filepath.Join(dir, "db")
	tool(t, "create", file, schemaFile)
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	must(t, err)
	address := listener.Addr().String()
	_, port, _ := net.SplitHostPort(address)
	must(t, listener.Close())
	startServer(t, file, "--remote=pssl:"+port+":127.0.0.1", "--private-key="+dir+"/key.pem",
		"--certificate="+dir+"/cert.pem", "--ca-cert="+dir+"/cert.pem")
	roots := x509.NewCertPool()
	roots.AddCert(certificate.Leaf)
	k := keep(t, session.Config{
		Endpoints: []string{"ssl:" + address}, LeaderOnly: true,
		TLS: &tls.Config{MinVersion: tls.VersionTLS12, RootCAs: roots, Certificates: []tls.Certificate{certificate}},
	})
	write(t, k, insert("sealed"))
	testwait.Until(t, "the own write in the copy", func() bool { return names(t, k)["sealed"] })
}

// selfSigned writes key.pem and cert.pem, and returns them.
func selfSigned(t *testing.T, dir string) tls.Certificate {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	must(t, err)
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "n1"}, NotBefore: time.Now().Add(-time.Hour),
		NotAfter: time.Now().Add(time.Hour), IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)},
		IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageDigitalSignature | x509.KeyUsageCertSign,
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, &key.PublicKey, key)
	must(t, err)
	secret, err := x509.MarshalPKCS8PrivateKey(key)
	must(t, err)
	certPEM := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})
	keyPEM := pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: secret})
	must(t, os.WriteFile(filepath.Join(dir, "cert.pem"), certPEM, 0o600))
	must(t, os.WriteFile(filepath.Join(dir, "key.pem"), keyPEM, 0o600))
	certificate, err := tls.X509KeyPair(certPEM, keyPEM)
	must(t, err)
	return certificate
}
