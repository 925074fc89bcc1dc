package provider

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"path/filepath"
	"strings"
	"testing"

	"google.golang.org/grpc"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// criRuntime answers as containerd does: the sandbox's process is in the verbose status.
type criRuntime struct {
	runtimeapi.UnimplementedRuntimeServiceServer
}

func (criRuntime) PodSandboxStatus(_ context.Context, req *runtimeapi.PodSandboxStatusRequest) (*runtimeapi.PodSandboxStatusResponse, error) {
	info := map[string]string{"running": `{"pid":4711,"sandboxID":"running"}`, "ended": `{"pid":0}`, "truncated": `{"pid":47`}
	text, there := info[req.GetPodSandboxId()]
	if !there || !req.GetVerbose() {
		return nil, errors.New("no such sandbox")
	}
	return &runtimeapi.PodSandboxStatusResponse{Info: map[string]string{"info": text}}, nil
}

// A sandbox's namespace is found by Docker for "docker", and by the CRI runtime otherwise. What a runtime answers is not trusted.
func TestRuntimes(t *testing.T) {
	dir := t.TempDir()
	listen := func(name string) net.Listener {
		l, err := net.Listen("unix", filepath.Join(dir, name))
		if err != nil {
			t.Fatal(err)
		}
		return l
	}
	cri := grpc.NewServer()
	runtimeapi.RegisterRuntimeServiceServer(cri, criRuntime{})
	criSocket, dockerSocket := listen("cri.sock"), listen("docker.sock")
	go func() { _ = cri.Serve(criSocket) }()
	t.Cleanup(cri.Stop)
	docker := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path != "/containers/running/json" {
			http.NotFound(w, r)
			return
		}
		_, _ = fmt.Fprint(w, `{"Id":"running","State":{"Pid":4712}}`)
	})}
	go func() { _ = docker.Serve(dockerSocket) }()
	t.Cleanup(func() { _ = docker.Close() })
	r := Runtimes{Docker: filepath.Join(dir, "docker.sock"), CRI: filepath.Join(dir, "cri.sock")}
	for _, c := range []struct{ runtime, sandbox, want, says string }{
		{"docker", "running", "/proc/4712/ns/net", ""},
		{"", "running", "/proc/4711/ns/net", ""},
		{"docker", "absent", "", "404"},
		{"", "absent", "", "no such sandbox"},
		{"", "ended", "", "no running process"},
		{"", "truncated", "", "read the container runtime's answer"},
		{"", "../../etc", "", "podInfraContainerID"},
		{"docker", strings.Repeat("a", sandboxMax+1), "", "podInfraContainerID"},
		{"", "", "", "podInfraContainerID"},
	} {
		got, err := r.NetNS(t.Context(), c.runtime, c.sandbox)
		if got != c.want || (err == nil) != (c.says == "") || err != nil && !strings.Contains(err.Error(), c.says) {
			t.Errorf("runtime %q, sandbox %.20q: %q, %v", c.runtime, c.sandbox, got, err)
		}
	}
}
