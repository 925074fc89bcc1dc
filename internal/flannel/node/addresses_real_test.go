//go:build real

package node_test

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	types100 "github.com/containernetworking/cni/pkg/types/100"

	"weft.dev/weft/internal/attach/lifecycle"
	"weft.dev/weft/internal/cni"
	"weft.dev/weft/internal/flannel/address"
	"weft.dev/weft/internal/testwait"
)

// addPod attaches a sandbox of a pod.
func addPod(t *testing.T, h *lifecycle.Handler, container, pod string, ips ...string) (*types100.Result, error) {
	t.Helper()
	return h.Add(t.Context(), &cni.Request{
		Command: cni.CommandAdd, ContainerID: container, IfName: "eth0", Netns: space(t).Path(), Args: cni.Args{PodNamespace: "shop", PodName: pod},
		NetConf: &cni.NetConf{RuntimeConfig: cni.RuntimeConfig{IPs: ips}},
	})
}

// addressesOf returns the addresses of a pod that has just been attached.
func addressesOf(t *testing.T, h *lifecycle.Handler, container, pod string) string {
	t.Helper()
	result, err := addPod(t, h, container, pod)
	if err != nil {
		t.Fatal(err)
	}
	var texts []string
	for _, ip := range result.IPs {
		texts = append(texts, ip.Address.IP.String())
	}
	return strings.Join(texts, " ")
}

func del(t *testing.T, h *lifecycle.Handler, container string) {
	t.Helper()
	if err := h.Del(t.Context(), &cni.Request{Command: cni.CommandDel, ContainerID: container, IfName: "eth0", NetConf: &cni.NetConf{}}); err != nil {
		t.Fatal(err)
	}
}

// TestAnnotationIP: a pod gets the addresses in its annotation, in host-local's files too. Each next sandbox of the pod gets them, although
// the former one may still be being removed. A pod does not get another one's address, and no other address in its place.
func TestAnnotationIP(t *testing.T) {
	s := newStage(t)
	s.annotations = map[string]string{address.AnnotationIP: "fd00:244:0:3::77, 10.244.3.77"}
	h := serve(t, s)
	const want = "10.244.3.77 fd00:244:0:3::77"
	for i := range 5 {
		container := fmt.Sprintf("web%d", i)
		if got := addressesOf(t, h, container, "web"); got != want {
			t.Errorf("sandbox %s of the pod has %s", container, got)
		}
		for addr := range strings.FieldsSeq(want) {
			content, err := os.ReadFile(filepath.Join(s.dir, "networks", "cbr0", addr))
			if err != nil || string(content) != container+"\r\neth0" {
				t.Errorf("host-local's file of %s: %q, %v", addr, content, err)
			}
		}
		_, err := addPod(t, h, "other", "other")
		if failure := cni.AsError(err); failure == nil || failure.Code != cni.CodeTryAgainLater || !strings.Contains(failure.Error(), "10.244.3.77, which the pod asks for, is another pod's") {
			t.Errorf("another pod that asks for it: %v", err)
		}
		del(t, h, container)
	}
	testwait.Eventually(t, "host-local's files of the last sandbox are gone", func() error {
		if left, err := filepath.Glob(filepath.Join(s.dir, "networks", "cbr0", "*77")); len(left) > 0 {
			return fmt.Errorf("%v, %w", left, err)
		}
		return nil
	})
}

// TestBadAnnotations: a pod with an invalid annotation is refused, and the error names the annotation and a valid value.
func TestBadAnnotations(t *testing.T) {
	s := newStage(t)
	h := serve(t, s)
	for text, annotations := range map[string]map[string]string{
		`annotation network.weft.dev/ip: "10.244.4.7" is not an address for pods in 10.244.3.0/24 and fd00:244:0:3::/64: write`: {address.AnnotationIP: "10.244.4.7"},
		`annotation network.weft.dev/sticky: "long" is not a time above 0 and at most 168h: write`:                              {address.AnnotationSticky: "long"},
	} {
		s.annotations = annotations
		_, err := addPod(t, h, "web", "web")
		if failure := cni.AsError(err); failure == nil || failure.Code != cni.CodeRefused || !strings.Contains(failure.Error(), "pod shop/web: "+text) {
			t.Errorf("%v: %v", annotations, err)
		}
	}
	s.annotations = map[string]string{address.AnnotationIP: "10.244.3.7"}
	if _, err := addPod(t, h, "web", "web", "10.244.3.8/24"); err == nil || !strings.Contains(err.Error(), "annotation network.weft.dev/ip of the pod for 10.244.3.7: leave one") {
		t.Errorf("another address by capability ips: %v", err)
	}
}

// TestSticky: the addresses of a pod are kept for the next pod of its name, and for no other, also over a restart of the agent. Without the
// annotation they are not.
func TestSticky(t *testing.T) {
	s := newStage(t)
	h, stop := serveUntil(t, s)
	s.annotations = map[string]string{address.AnnotationSticky: "10m"}
	first := addressesOf(t, h, "web-0.1", "web-0")
	if again := addressesOf(t, h, "web-0.2", "web-0"); again == first {
		t.Errorf("two pods have %s", first)
	}
	del(t, h, "web-0.2")
	del(t, h, "web-0.1")
	s.annotations = nil
	taken := map[string]bool{}
	fill := func(when string) {
		for i := range 260 { // more than addresses
			container := fmt.Sprintf("%s%d", when, i)
			result, err := addPod(t, h, container, container)
			if err != nil {
				t.Fatal(err)
			}
			taken[result.IPs[0].Address.IP.String()] = true
			del(t, h, container)
		}
	}
	fill("before")
	if taken[strings.Fields(first)[0]] {
		t.Errorf("%s was another pod's before the next pod of its name", first)
	}
	if next := addressesOf(t, h, "web-0.3", "web-0"); next != first {
		t.Errorf("the next pod of the name has %s, and the one before had %s", next, first)
	}
	del(t, h, "web-0.3")
	stop()
	h = serve(t, s)
	if next := addressesOf(t, h, "web-0.4", "web-0"); next != first {
		t.Errorf("after a restart the next pod of the name has %s, and the one before had %s", next, first)
	}
}
