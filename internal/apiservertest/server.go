// Package apiservertest starts a real Kubernetes API server with its etcd for tests: on loopback, for one test program, in a temporary
// directory. Nothing else of Kubernetes runs, so objects stay as a test leaves them: no namespace is finalized and nothing is garbage
// collected.
package apiservertest

import (
	"bytes"
	"context"
	"crypto/rand"
	"crypto/rsa"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"k8s.io/client-go/rest"

	"weft.dev/weft/internal/child"
)

const (
	// Environment is the variable with the directory of kube-apiserver.
	Environment = "WEFT_KUBERNETES"
	// DefaultDirectory is the directory if the variable is not set: the laboratory keeps its builds there.
	DefaultDirectory = "/var/cache/weft-lab/kubernetes/v1.34.4"
	// EnvironmentNext is the variable with a shell command, another test program, that Main runs after its own tests with the same server. In
	// a virtual machine, the start of a server takes longer than many tests.
	EnvironmentNext = "WEFT_APISERVER_NEXT"

	// environmentAddress is the variable with the address of the server that a program before has started.
	environmentAddress = "WEFT_APISERVER_ADDRESS"

	readyTimeout = 5 * time.Minute // a machine that builds at the same time is slow, and so is a virtual machine whose processor is emulated
	adminToken   = "admin"
)

// Server is a running API server.
type Server struct {
	address string
	// dir is the server's directory; empty: another program has started the server.
	dir  string
	etcd *process
	api  *process
}

// Main starts a server, passes it to use, runs the tests, and stops it. It returns the exit code for TestMain.
func Main(m *testing.M, use func(*Server) error) int {
	server, err := startOrJoin()
	if err != nil {
		fmt.Fprintln(os.Stderr, "start the API server:", err)
		return 1
	}
	defer server.stop()
	code := 1
	if err := use(server); err != nil {
		fmt.Fprintln(os.Stderr, "prepare the API server:", err)
	} else {
		code = m.Run()
	}
	if err := server.runNext(); err != nil {
		fmt.Fprintln(os.Stderr, "the next test program:", err)
		code = max(code, 1)
	}
	return code
}

// startOrJoin starts a server, unless a program before has started one.
func startOrJoin() (*Server, error) {
	if address := os.Getenv(environmentAddress); address != "" { //nolint:forbidigo // tests have no main
		return &Server{address: address}, nil
	}
	return startWhere()
}

// runNext runs the test program that follows in this process's environment, if there is one.
func (s *Server) runNext() error {
	next := os.Getenv(EnvironmentNext) //nolint:forbidigo // tests have no main
	if next == "" {
		return nil
	}
	cmd := exec.Command("/bin/sh", "-c", next)
	cmd.Env = append(os.Environ(), EnvironmentNext+"=", environmentAddress+"="+s.address)
	cmd.Stdout, cmd.Stderr = os.Stdout, os.Stderr
	return cmd.Run()
}

// Config returns the configuration of a client with all permissions.
func (s *Server) Config() *rest.Config {
	return &rest.Config{
		Host:            "https://" + s.address,
		BearerToken:     adminToken,
		TLSClientConfig: rest.TLSClientConfig{Insecure: true},
		QPS:             -1, // tests do not wait for each other
	}
}

// ConfigAs returns the configuration of a client with the permissions of the service account.
func (s *Server) ConfigAs(namespace, serviceAccount string) *rest.Config {
	config := s.Config()
	config.Impersonate = rest.ImpersonationConfig{
		UserName: "system:serviceaccount:" + namespace + ":" + serviceAccount,
		Groups:   []string{"system:serviceaccounts", "system:serviceaccounts:" + namespace, "system:authenticated"},
	}
	return config
}

// startWhere is start, with other ports if another program took one of those that were free a moment before.
func startWhere() (*Server, error) {
	const tries = 3
	for try := 1; ; try++ {
		server, err := start()
		if err == nil || try == tries || !strings.Contains(err.Error(), syscall.EADDRINUSE.Error()) {
			return server, err
		}
	}
}

func start() (_ *Server, err error) {
	dir, err := os.MkdirTemp("", "weft-apiserver-")
	if err != nil {
		return nil, err
	}
	s := &Server{dir: dir}
	defer func() {
		if err != nil {
			s.stop()
		}
	}()
	ports, err := freePorts(3)
	if err != nil {
		return nil, err
	}
	if err := s.writeKeys(); err != nil {
		return nil, err
	}
	client, peer := "http://127.0.0.1:"+ports[0], "http://127.0.0.1:"+ports[1]
	s.etcd, err = run(dir, "etcd", "etcd",
		"--data-dir="+filepath.Join(dir, "etcd-data"), "--unsafe-no-fsync=true",
		"--listen-client-urls="+client, "--advertise-client-urls="+client,
		"--listen-peer-urls="+peer, "--initial-advertise-peer-urls="+peer, "--initial-cluster=default="+peer)
	if err != nil {
		return nil, err
	}
	directory := os.Getenv(Environment) //nolint:forbidigo // tests have no main
	if directory == "" {
		directory = DefaultDirectory
	}
	s.address = "127.0.0.1:" + ports[2]
	key := filepath.Join(dir, "sa.key")
	s.api, err = run(dir, "kube-apiserver", filepath.Join(directory, "kube-apiserver"),
		"--etcd-servers="+client, "--bind-address=127.0.0.1", "--secure-port="+ports[2],
		// It is not published; without it the server does not start on a machine that has loopback alone.
		"--advertise-address=192.0.2.1",
		"--endpoint-reconciler-type=none", // it would publish an address that is not loopback
		"--service-cluster-ip-range=172.30.0.0/16", "--cert-dir="+filepath.Join(dir, "certs"),
		"--service-account-key-file="+key, "--service-account-signing-key-file="+key,
		"--service-account-issuer=https://kubernetes.default.svc",
		"--token-auth-file="+filepath.Join(dir, "tokens.csv"), "--authorization-mode=RBAC")
	if err != nil {
		return nil, err
	}
	return s, s.awaitReady()
}

func (s *Server) writeKeys() error {
	key, err := rsa.GenerateKey(rand.Reader, 2048)
	if err != nil {
		return err
	}
	block := pem.EncodeToMemory(&pem.Block{Type: "RSA PRIVATE KEY", Bytes: x509.MarshalPKCS1PrivateKey(key)})
	tokens := []byte(adminToken + `,admin,1,"system:masters"` + "\n")
	return errors.Join(
		os.WriteFile(filepath.Join(s.dir, "sa.key"), block, 0o600),
		os.WriteFile(filepath.Join(s.dir, "tokens.csv"), tokens, 0o600),
	)
}

// awaitReady waits until the server reports that it is ready. It fails if one of the programs ends.
func (s *Server) awaitReady() error {
	client, err := rest.HTTPClientFor(s.Config())
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(context.Background(), readyTimeout)
	defer cancel()
	poll := time.NewTicker(100 * time.Millisecond)
	defer poll.Stop()
	for {
		if ready(ctx, client, "https://"+s.address+"/readyz") {
			return nil
		}
		select {
		case <-s.etcd.Done():
			return s.etcd.failure()
		case <-s.api.Done():
			return s.api.failure()
		case <-ctx.Done():
			return fmt.Errorf("not ready after %v: %w", readyTimeout, s.api.failure())
		case <-poll.C:
		}
	}
}

func ready(ctx context.Context, client *http.Client, url string) bool {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, url, http.NoBody)
	if err != nil {
		return false
	}
	response, err := client.Do(request)
	if err != nil {
		return false
	}
	return response.Body.Close() == nil && response.StatusCode == http.StatusOK
}

func (s *Server) stop() {
	if s.dir == "" {
		return
	}
	for _, p := range []*process{s.api, s.etcd} {
		if p != nil {
			p.Kill()
		}
	}
	if err := os.RemoveAll(s.dir); err != nil {
		fmt.Fprintln(os.Stderr, "remove the API server's directory:", err)
	}
}

// process is a running program.
type process struct {
	*child.Process
	program, log string
}

// run starts a program that ends with the test program, however that ends.
func run(dir, name, program string, args ...string) (*process, error) {
	p := &process{program: program, log: filepath.Join(dir, name+".log")}
	log, err := os.Create(p.log)
	if err != nil {
		return nil, err
	}
	defer func() { _ = log.Close() }() // the program has its own descriptor
	cmd := exec.Command(program, args...)
	cmd.Stdout, cmd.Stderr = log, log
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	if p.Process, err = child.Start(cmd, ""); err != nil {
		return nil, fmt.Errorf("%w (set %s to the directory of Kubernetes' programs)", err, Environment)
	}
	return p, nil
}

// failure returns the end of the log as an error.
func (p *process) failure() error {
	const most = 2000
	log, err := os.ReadFile(p.log)
	if err != nil {
		return err
	}
	return fmt.Errorf("%s: %s", p.program, bytes.TrimSpace(log[max(0, len(log)-most):]))
}

// freePorts returns TCP ports that were free a moment ago.
func freePorts(n int) ([]string, error) {
	var ports []string
	for range n {
		listener, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			return nil, err
		}
		defer func() { _ = listener.Close() }() // all are held until the last is chosen, so that they differ
		address, ok := listener.Addr().(*net.TCPAddr)
		if !ok {
			return nil, fmt.Errorf("listening on %v", listener.Addr())
		}
		ports = append(ports, strconv.Itoa(address.Port))
	}
	return ports, nil
}
