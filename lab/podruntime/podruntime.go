// Package podruntime is the container runtime of a node without a kubelet: a pod is a network namespace, attached to the cluster's
// network through libcni as containerd and CRI-O do it, with the same arguments, caching and order.
package podruntime

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"runtime"
	"sync"
	"time"

	"github.com/containernetworking/cni/libcni"
	"github.com/containernetworking/cni/pkg/types"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// Paths inside the node.
const (
	Socket   = "/run/weft-lab-pods.sock"
	confDir  = "/etc/cni/net.d"
	binDir   = "/opt/cni/bin"
	netnsDir = "/run/netns"
	podDir   = "/var/lib/cni/pods" // one file per sandbox
)

// Sandbox is what the runtime stores about a pod.
type Sandbox struct {
	ID        string            `json:"id"` // the CNI container id
	Namespace string            `json:"namespace"`
	Name      string            `json:"name"`
	UID       string            `json:"uid"`
	IfName    string            `json:"ifName"`         // default eth0
	Args      map[string]string `json:"args,omitempty"` // further CNI_ARGS
	// Capabilities are capability arguments, such as portMappings or bandwidth.
	Capabilities map[string]any `json:"capabilities,omitempty"`
	// CNIVersion, if set, replaces the version in the network configuration.
	CNIVersion string `json:"cniVersion,omitempty"`
}

// Answer is the result of a call.
type Answer struct {
	Result json.RawMessage `json:"result,omitempty"`
	Took   time.Duration   `json:"took"` // nanoseconds within libcni
	Error  *Failure        `json:"error,omitempty"`
}

// Failure is an error of the network plugin, in the specification's form, or of the runtime itself (code 0).
type Failure struct {
	Code    uint   `json:"code"`
	Msg     string `json:"msg"`
	Details string `json:"details,omitempty"`
}

// Error makes a Failure an error.
func (f *Failure) Error() string {
	text := f.Msg
	if f.Code != 0 {
		text = fmt.Sprintf("CNI error %d: %s", f.Code, f.Msg)
	}
	if f.Details != "" {
		text += ": " + f.Details
	}
	return text
}

type server struct {
	cni *libcni.CNIConfig
	// mu guards what follows: the IDs of sandboxes for which a call is under way, and of those that did not exist when their DEL came. idle
	// is signalled when a call ends.
	mu    sync.Mutex
	idle  *sync.Cond
	busy  map[string]bool
	early map[string]bool
}

// begin waits until no other call for the sandbox is under way. As in containerd, the DEL of a sandbox follows the end of its ADD, even if the
// caller of that ADD is gone: libcni keeps an ADD's result when the plugin has ended, and a DEL before that would leave the result behind.
func (s *server) begin(id string) (end func()) {
	if id == "" { // a call for the node
		return func() {}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	for s.busy[id] {
		s.idle.Wait()
	}
	s.busy[id] = true
	return func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		delete(s.busy, id)
		s.idle.Broadcast()
	}
}

// Run serves on the node whose namespaces the process is in, until the context ends.
func Run(ctx context.Context) error {
	for _, dir := range []string{netnsDir, podDir} {
		if err := os.MkdirAll(dir, 0o755); err != nil {
			return fmt.Errorf("make %s: %w", dir, err)
		}
	}
	_ = os.Remove(Socket)
	l, err := new(net.ListenConfig).Listen(ctx, "unix", Socket)
	if err != nil {
		return fmt.Errorf("answer on %s: %w", Socket, err)
	}
	s := &server{cni: libcni.NewCNIConfig([]string{binDir}, nil), busy: map[string]bool{}, early: map[string]bool{}}
	s.idle = sync.NewCond(&s.mu)
	mux := http.NewServeMux()
	mux.HandleFunc("POST /prepare", s.handle(func(_ context.Context, b Sandbox) (types.Result, time.Duration, error) { return nil, 0, s.prepare(b) }))
	mux.HandleFunc("POST /add", s.handle(s.add))
	mux.HandleFunc("POST /del", s.handle(s.del))
	mux.HandleFunc("POST /check", s.handle(s.check))
	mux.HandleFunc("POST /status", s.handle(s.status))
	mux.HandleFunc("POST /gc", s.handle(s.gc))
	mux.HandleFunc("GET /pods", func(w http.ResponseWriter, _ *http.Request) { _ = json.NewEncoder(w).Encode(sandboxes()) })
	srv := &http.Server{Handler: mux, ReadHeaderTimeout: 5 * time.Second}
	go func() {
		<-ctx.Done()
		_ = srv.Close()
	}()
	if err := srv.Serve(l); ctx.Err() == nil {
		return fmt.Errorf("serve pods: %w", err)
	}
	return nil
}

func (s *server) handle(f func(context.Context, Sandbox) (types.Result, time.Duration, error)) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		var box Sandbox
		var a Answer
		err := json.NewDecoder(r.Body).Decode(&box)
		if err == nil {
			var res types.Result
			end := s.begin(box.ID)
			res, a.Took, err = f(r.Context(), box)
			end()
			if err == nil && res != nil {
				a.Result, err = json.Marshal(res)
			}
		}
		a.Error = failure(err)
		_ = json.NewEncoder(w).Encode(a)
	}
}

func failure(err error) *Failure {
	if err == nil {
		return nil
	}
	if e, ok := errors.AsType[*types.Error](err); ok {
		return &Failure{Code: e.Code, Msg: e.Msg, Details: e.Details}
	}
	return &Failure{Msg: err.Error()}
}

// network loads the first configuration, as runtimes do.
func network(box Sandbox) (*libcni.NetworkConfigList, error) {
	files, err := libcni.ConfFiles(confDir, []string{".conf", ".conflist", ".json"})
	if err != nil {
		return nil, fmt.Errorf("list %s: %w", confDir, err)
	}
	if len(files) == 0 {
		return nil, fmt.Errorf("no network configuration in %s: the agent writes it when it can serve", confDir)
	}
	list, err := libcni.NetworkConfFromFile(files[0])
	if err != nil {
		return nil, fmt.Errorf("load %s: %w", files[0], err)
	}
	if box.CNIVersion != "" {
		list.CNIVersion = box.CNIVersion
	}
	return list, nil
}

func (b Sandbox) netns() string { return filepath.Join(netnsDir, b.ID) }
func (b Sandbox) file() string  { return filepath.Join(podDir, b.ID) }

func (b Sandbox) conf() *libcni.RuntimeConf {
	ifName := b.IfName
	if ifName == "" {
		ifName = "eth0"
	}
	args := [][2]string{
		{"IgnoreUnknown", "1"},
		{"K8S_POD_NAMESPACE", b.Namespace},
		{"K8S_POD_NAME", b.Name},
		{"K8S_POD_INFRA_CONTAINER_ID", b.ID},
		{"K8S_POD_UID", b.UID},
	}
	for k, v := range b.Args {
		args = append(args, [2]string{k, v})
	}
	return &libcni.RuntimeConf{ContainerID: b.ID, NetNS: b.netns(), IfName: ifName, Args: args, CapabilityArgs: b.Capabilities}
}

func (s *server) add(ctx context.Context, b Sandbox) (types.Result, time.Duration, error) {
	list, err := network(b)
	if err != nil {
		return nil, 0, err
	}
	if err := s.prepare(b); err != nil {
		return nil, 0, err
	}
	began := time.Now()
	res, err := s.cni.AddNetworkList(ctx, list, b.conf())
	return res, time.Since(began), err
}

var errEarly = errors.New("its DEL came before")

// prepare makes a sandbox's namespace, unless it exists. An ADD whose caller is gone may begin after the DEL of its sandbox: nothing would
// remove the namespace.
func (s *server) prepare(b Sandbox) error {
	s.mu.Lock()
	early := s.early[b.ID]
	s.mu.Unlock()
	if early {
		return fmt.Errorf("make sandbox %s: %w", b.ID, errEarly)
	}
	raw, err := json.Marshal(b)
	if err != nil {
		return fmt.Errorf("encode sandbox %s: %w", b.ID, err)
	}
	if err := os.WriteFile(b.file(), raw, 0o600); err != nil {
		return fmt.Errorf("keep sandbox %s: %w", b.ID, err)
	}
	return makeNetns(b.netns())
}

// del ends the attachment before the namespace, as runtimes do. If nothing exists it succeeds.
func (s *server) del(ctx context.Context, b Sandbox) (types.Result, time.Duration, error) {
	list, err := network(b)
	if err != nil {
		return nil, 0, err
	}
	began := time.Now()
	if err := s.cni.DelNetworkList(ctx, list, b.conf()); err != nil {
		return nil, time.Since(began), err
	}
	took := time.Since(began)
	if _, err := os.Stat(b.file()); errors.Is(err, os.ErrNotExist) {
		s.mu.Lock()
		s.early[b.ID] = true
		s.mu.Unlock()
	}
	return nil, took, errors.Join(dropNetns(b.netns()), remove(b.file()))
}

func (s *server) check(ctx context.Context, b Sandbox) (types.Result, time.Duration, error) {
	list, err := network(b)
	if err != nil {
		return nil, 0, err
	}
	began := time.Now()
	err = s.cni.CheckNetworkList(ctx, list, b.conf())
	return nil, time.Since(began), err
}

func (s *server) status(ctx context.Context, b Sandbox) (types.Result, time.Duration, error) {
	list, err := network(b)
	if err != nil {
		return nil, 0, err
	}
	began := time.Now()
	err = s.cni.GetStatusNetworkList(ctx, list)
	return nil, time.Since(began), err
}

// gc passes the list of existing sandboxes to the network plugin.
func (s *server) gc(ctx context.Context, b Sandbox) (types.Result, time.Duration, error) {
	list, err := network(b)
	if err != nil {
		return nil, 0, err
	}
	args := &libcni.GCArgs{}
	for _, box := range sandboxes() {
		args.ValidAttachments = append(args.ValidAttachments, types.GCAttachment{ContainerID: box.ID, IfName: box.conf().IfName})
	}
	began := time.Now()
	err = s.cni.GCNetworkList(ctx, list, args)
	return nil, time.Since(began), err
}

func sandboxes() []Sandbox {
	entries, err := os.ReadDir(podDir)
	if err != nil {
		return nil
	}
	boxes := []Sandbox{}
	for _, e := range entries {
		var b Sandbox
		raw, err := os.ReadFile(filepath.Join(podDir, e.Name()))
		if err == nil && json.Unmarshal(raw, &b) == nil {
			boxes = append(boxes, b)
		}
	}
	return boxes
}

// makeNetns makes a namespace with lo up at a path, unless it exists: an ADD may be repeated.
func makeNetns(path string) error {
	f, err := os.OpenFile(path, os.O_CREATE|os.O_EXCL|os.O_RDONLY, 0o444)
	if errors.Is(err, os.ErrExist) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("make namespace: %w", err)
	}
	_ = f.Close()
	done := make(chan error, 1)
	go func() {
		runtime.LockOSThread() // never unlocked: the thread ends with the goroutine
		done <- newNetns(path)
	}()
	return <-done
}

func newNetns(path string) error {
	if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
		return fmt.Errorf("make namespace: %w", err)
	}
	lo, err := netlink.LinkByName("lo")
	if err != nil {
		return fmt.Errorf("find lo: %w", err)
	}
	if err := netlink.LinkSetUp(lo); err != nil {
		return fmt.Errorf("set lo up: %w", err)
	}
	if err := unix.Mount("/proc/thread-self/ns/net", path, "none", unix.MS_BIND, ""); err != nil {
		return fmt.Errorf("give the namespace the path %s: %w", path, err)
	}
	return nil
}

func dropNetns(path string) error {
	if err := unix.Unmount(path, unix.MNT_DETACH); err != nil && !errors.Is(err, unix.EINVAL) && !errors.Is(err, unix.ENOENT) {
		return fmt.Errorf("let go of namespace %s: %w", path, err)
	}
	return remove(path)
}

func remove(path string) error {
	if err := os.Remove(path); err != nil && !errors.Is(err, os.ErrNotExist) {
		return fmt.Errorf("remove %s: %w", path, err)
	}
	return nil
}
