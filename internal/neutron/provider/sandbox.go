package provider

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"regexp"
	"strconv"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// Runtimes finds sandboxes by the sockets of the node's container runtimes.
type Runtimes struct {
	Docker string // path of Docker's socket
	CRI    string // path of the CRI runtime's socket
}

// sandboxPattern is the form of container IDs of all runtimes, which have at most sandboxMax characters.
var sandboxPattern = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9_.-]*$`) //nolint:gochecknoglobals // a constant

const sandboxMax = 128

var errNoProcess = errors.New("the sandbox has no running process")

// NetNS requests the sandbox's process from the runtime. Requests for "docker" are sent to Docker if it is installed, because kubelets with
// cri-dockerd do not identify it.
func (r Runtimes) NetNS(ctx context.Context, runtime, sandbox string) (string, error) {
	if len(sandbox) > sandboxMax || !sandboxPattern.MatchString(sandbox) {
		return "", fmt.Errorf("podInfraContainerID: %.64q is not the id of a container", sandbox)
	}
	ask := r.cri
	if runtime == runtimeDocker {
		ask = r.docker
	}
	pid, err := ask(ctx, sandbox)
	if err != nil {
		return "", fmt.Errorf("find the network namespace of sandbox %s: %w", sandbox, err)
	}
	if pid <= 0 {
		return "", fmt.Errorf("find the network namespace of sandbox %s: %w", sandbox, errNoProcess)
	}
	return "/proc/" + strconv.Itoa(pid) + "/ns/net", nil
}

// maxInspect limits a runtime's answer, in bytes.
const maxInspect = 4 << 20

// docker sends a request to Docker's API (Engine API, GET /containers/{id}/json).
func (r Runtimes) docker(ctx context.Context, id string) (int, error) {
	client := http.Client{Transport: &http.Transport{DisableKeepAlives: true, DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, "unix", r.Docker)
	}}}
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://docker/containers/"+url.PathEscape(id)+"/json", nil)
	if err != nil {
		return 0, fmt.Errorf("ask Docker: %w", err)
	}
	res, err := client.Do(req)
	if err != nil {
		return 0, fmt.Errorf("ask Docker: %w", err)
	}
	defer func() { _ = res.Body.Close() }()
	if res.StatusCode != http.StatusOK {
		return 0, fmt.Errorf("Docker answers %s", res.Status) //nolint:staticcheck // a name
	}
	var container struct{ State struct{ Pid int } }
	if err := json.NewDecoder(io.LimitReader(res.Body, maxInspect)).Decode(&container); err != nil {
		return 0, fmt.Errorf("read Docker's answer: %w", err)
	}
	return container.State.Pid, nil
}

// cri requests the verbose status from a CRI runtime, in which containerd and CRI-O report the process of the sandbox.
func (r Runtimes) cri(ctx context.Context, id string) (int, error) {
	conn, err := grpc.NewClient("unix://"+r.CRI, grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(maxInspect)))
	if err != nil {
		return 0, fmt.Errorf("reach the container runtime at %s: %w", r.CRI, err)
	}
	defer func() { _ = conn.Close() }()
	answer, err := runtimeapi.NewRuntimeServiceClient(conn).PodSandboxStatus(ctx, &runtimeapi.PodSandboxStatusRequest{PodSandboxId: id, Verbose: true})
	if err != nil {
		return 0, fmt.Errorf("ask the container runtime at %s: %w", r.CRI, err)
	}
	var info struct{ Pid int }
	if err := json.Unmarshal([]byte(answer.GetInfo()["info"]), &info); err != nil {
		return 0, fmt.Errorf("read the container runtime's answer: %w", err)
	}
	return info.Pid, nil
}
