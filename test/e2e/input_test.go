//go:build lab

package e2e

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"math/rand/v2"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"weft.dev/weft/lab"
	"weft.dev/weft/lab/podruntime"
	"weft.dev/weft/test/probe"
	"weft.dev/weft/test/traffic"
)

// goodConfig is a network configuration as the runtime passes it to the plugin.
const goodConfig = `{"cniVersion":"1.0.0","name":"weft","type":"weft"}`

// plugin runs the CNI plugin on a node, as a runtime does, and returns its answer.
func plugin(t *testing.T, n lab.Node, stdin string, env map[string]string) (code uint, answer string) {
	t.Helper()
	all := map[string]string{
		"CNI_COMMAND": "ADD", "CNI_CONTAINERID": "e2einput", "CNI_NETNS": "/run/netns/none", "CNI_IFNAME": "eth0", "CNI_PATH": "/opt/cni/bin",
		"CNI_ARGS": "IgnoreUnknown=1;K8S_POD_NAMESPACE=default;K8S_POD_NAME=input;K8S_POD_INFRA_CONTAINER_ID=e2einput",
	}
	maps.Copy(all, env)
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	argv := n.Enter("/opt/cni/bin/weft")
	cmd := exec.CommandContext(ctx, argv[0], argv[1:]...)
	cmd.Stdin, cmd.Env = strings.NewReader(stdin), []string{"PATH=" + os.Getenv("PATH")}
	for name, value := range all {
		cmd.Env = append(cmd.Env, name+"="+value)
	}
	var out, errs bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &errs
	if err := cmd.Run(); err == nil {
		return 0, out.String()
	}
	var failure struct {
		Code uint   `json:"code"`
		Msg  string `json:"msg"`
	}
	if err := json.Unmarshal(out.Bytes(), &failure); err != nil || failure.Code == 0 || failure.Msg == "" {
		t.Errorf("the plugin failed without an error in the format of the CNI specification: %q, %q", out.String(), errs.String())
	}
	return failure.Code, failure.Msg
}

// Invalid input from a runtime gets a clear error, and leaves nothing behind.
func TestWrongRequests(t *testing.T) {
	c := cluster(t)
	n := c.Node(1)
	settledState(t, n)
	before, err := probe.Count(t.Context(), c, n)
	if err != nil {
		t.Fatal(err)
	}
	for name, wrong := range map[string]struct {
		stdin string
		env   map[string]string
	}{
		"empty stdin":           {"", nil},
		"truncated":             {goodConfig[:20], nil},
		"no JSON":               {"\x00\xff\x00", nil},
		"another type":          {`[1,2,3]`, nil},
		"an unknown version":    {`{"cniVersion":"9.9.9","name":"weft","type":"weft"}`, nil},
		"no name":               {`{"cniVersion":"1.0.0","type":"weft"}`, nil},
		"unknown fields":        {`{"cniVersion":"1.0.0","name":"weft","type":"weft","what":{"is":["this"]}}`, nil},
		"too long":              {`{"cniVersion":"1.0.0","name":"weft","type":"weft","x":"` + strings.Repeat("y", 8<<20) + `"}`, nil},
		"container: path":       {goodConfig, map[string]string{"CNI_CONTAINERID": "../../../../tmp/x"}},
		"container: newline":    {goodConfig, map[string]string{"CNI_CONTAINERID": "a\nb"}},
		"container: long":       {goodConfig, map[string]string{"CNI_CONTAINERID": strings.Repeat("a", 300)}},
		"container: none":       {goodConfig, map[string]string{"CNI_CONTAINERID": ""}},
		"interface: path":       {goodConfig, map[string]string{"CNI_IFNAME": "../eth0"}},
		"interface: long":       {goodConfig, map[string]string{"CNI_IFNAME": strings.Repeat("e", 40)}},
		"pod: path":             {goodConfig, map[string]string{"CNI_ARGS": "K8S_POD_NAMESPACE=../..;K8S_POD_NAME=../../etc/passwd"}},
		"pod: newline":          {goodConfig, map[string]string{"CNI_ARGS": "K8S_POD_NAMESPACE=a;K8S_POD_NAME=b\nlevel=ERROR"}},
		"pod: long":             {goodConfig, map[string]string{"CNI_ARGS": "K8S_POD_NAMESPACE=a;K8S_POD_NAME=" + strings.Repeat("p", 300)}},
		"arguments: none":       {goodConfig, map[string]string{"CNI_ARGS": "=;=;;"}},
		"namespace: none":       {goodConfig, map[string]string{"CNI_NETNS": ""}},
		"namespace: a file":     {goodConfig, map[string]string{"CNI_NETNS": "/etc/passwd"}},
		"namespace: the node's": {goodConfig, map[string]string{"CNI_NETNS": "/proc/self/ns/net"}},
		"command: unknown":      {goodConfig, map[string]string{"CNI_COMMAND": "EXPLODE"}},
	} {
		code, said := plugin(t, n, wrong.stdin, wrong.env)
		if code == 0 {
			t.Errorf("%s: accepted: %s", name, said)
		}
		if strings.Contains(said, "\n") {
			t.Errorf("%s: the error has more than one line: %q", name, said)
		}
		t.Logf("%s: %d %.200s", name, code, said)
	}
	await(t, "no leftovers", func(ctx context.Context) error {
		have, err := probe.Count(ctx, c, n)
		if err != nil {
			return err
		}
		return have.More(before)
	})
	addPod(t, c, "n1", "input-after")
}

// Garbage on the agent's socket does no harm.
func TestGarbageOnSocket(t *testing.T) {
	c := cluster(t)
	n := c.Node(1)
	socket := filepath.Join(n.RunDir, "weft/cni/cni.sock")
	random := rand.New(rand.NewPCG(1, 2))
	for i := range 60 {
		conn, err := net.DialTimeout("unix", socket, time.Second)
		if err != nil {
			t.Fatal(err)
		}
		garbage := make([]byte, random.IntN(1<<16))
		for j := range garbage {
			garbage[j] = byte(random.Uint32())
		}
		switch i % 4 {
		case 1:
			garbage = append([]byte("POST /cni HTTP/1.1\r\nHost: x\r\nContent-Length: 99999999\r\n\r\n"), garbage...)
		case 2:
			garbage = bytes.Repeat([]byte("{\"a\":"), 20000)
		case 3:
			garbage = nil // and silence
		}
		_ = conn.SetWriteDeadline(time.Now().Add(200 * time.Millisecond))
		_, _ = conn.Write(garbage)
		if i%8 < 4 {
			_ = conn.Close()
		} else {
			t.Cleanup(func() { _ = conn.Close() })
		}
	}
	began := time.Now()
	addPod(t, c, "n1", "garbage-after")
	t.Logf("ADD beside 30 connections that stay open: %s", time.Since(began).Round(time.Millisecond))
	if status, err := program(t.Context(), c, "n1/weft-agent"); err != nil || strings.Contains(logOf(t, c, "n1/weft-agent"), "panic") {
		t.Errorf("agent not ready afterwards: %v, %v", status, err)
	}
}

// A half-written record after a power cut is rebuilt from the result of the ADD that the container runtime keeps. Without that result,
// the record is set aside and logged, and the pod's port closes because its owner is unknown. Other pods are not affected, and DEL
// removes the rest.
func TestHalfWrittenRecord(t *testing.T) {
	c := cluster(t)
	n := c.Node(1)
	tr := newTrio(t, c, "half")
	watch := watchFlows(t, n)
	settledState(t, n)
	before, err := probe.Count(t.Context(), c, n)
	if err != nil {
		t.Fatal(err)
	}
	victim := addPod(t, c, "n1", "half-victim")
	echo(t, victim.Netns, victim.IPs[0])
	ping(t, tr.far.Netns, victim.IPs[0])
	_, logged := halveRecord(t, c, victim)
	await(t, "the record rebuilt from the runtime's result", func(context.Context) error {
		if said := logOf(t, c, "n1/weft-agent")[logged:]; !strings.Contains(said, "unreadable attachment record rebuilt") {
			return fmt.Errorf("the agent logged:\n%s", said)
		}
		return nil
	})
	ping(t, tr.far.Netns, victim.IPs[0])
	await(t, "CNI CHECK of the pod", victim.Check)
	tr.reaches(t, c)
	if err := watch.Check(t.Context(), []*lab.Pod{victim}); err != nil {
		t.Error(err)
	}

	for _, result := range runtimeResults(t, victim) {
		if err := os.Remove(result); err != nil {
			t.Fatal(err)
		}
	}
	path, logged := halveRecord(t, c, victim)
	await(t, "the pod's port closed", func(context.Context) error {
		ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
		defer cancel()
		if _, err := traffic.Ping(ctx, tr.far.Netns, addrPort(victim)); err == nil {
			return fmt.Errorf("%s still answers", victim.IPs[0])
		}
		return nil
	})
	if said := logOf(t, c, "n1/weft-agent")[logged:]; !strings.Contains(said, "level=ERROR") || !strings.Contains(said, filepath.Base(path)) {
		t.Errorf("the broken record is not reported:\n%s", said)
	}
	tr.reaches(t, c)
	if err := watch.Check(t.Context(), []*lab.Pod{victim}); err != nil {
		t.Error(err)
	}
	if err := victim.Check(t.Context()); err == nil {
		t.Error("CNI CHECK of the pod succeeds")
	} else if failure := new(podruntime.Failure); !asFailure(err, &failure) {
		t.Errorf("CNI CHECK: %v", err)
	}
	delPod(t, victim)
	fresh := addPod(t, c, "n1", "half-fresh")
	echo(t, fresh.Netns, fresh.IPs[0])
	ping(t, tr.far.Netns, fresh.IPs[0])
	delPod(t, fresh)
	await(t, "no leftovers", func(ctx context.Context) error {
		have, err := probe.Count(ctx, c, n)
		if err != nil {
			return err
		}
		delete(have, "files") // the file set aside is kept for inspection
		for name := range have {
			if strings.HasPrefix(name, "restarts") {
				delete(have, name)
			}
		}
		return have.More(before)
	})
}

// halveRecord cuts the record of a pod on n1 in half and kills the agent. It returns the record's file, and the length of the agent's log
// before.
func halveRecord(t *testing.T, c *lab.Cluster, p *lab.Pod) (path string, logged int) {
	t.Helper()
	path, raw := recordOf(t, p)
	if err := os.WriteFile(path, raw[:len(raw)/2], 0o600); err != nil {
		t.Fatal(err)
	}
	logged = len(logOf(t, c, "n1/weft-agent"))
	kill(t, c, "n1/weft-agent", syscall.SIGKILL)
	return path, logged
}

// runtimeResults returns the files in which the container runtime keeps the result of a pod's ADD.
func runtimeResults(t *testing.T, p *lab.Pod) []string {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(p.Node.Dir, "root/var/lib/cni/results/*-"+p.Sandbox.ID+"-*"))
	if err != nil || len(files) == 0 {
		t.Fatalf("results of pod %s: %v, %v", p.Name, files, err)
	}
	return files
}

// recordOf returns the file of a pod's attachment, and its content.
func recordOf(t *testing.T, p *lab.Pod) (path string, raw []byte) {
	t.Helper()
	all, err := filepath.Glob(filepath.Join(p.Node.Dir, "root/var/lib/weft/attachments/*"))
	if err != nil {
		t.Fatal(err)
	}
	for _, path := range all {
		if raw, err := os.ReadFile(path); err == nil && bytes.Contains(raw, []byte(p.Sandbox.ID)) {
			return path, raw
		}
	}
	t.Fatalf("no record of %s among %v", p.Sandbox.ID, all)
	return "", nil
}
