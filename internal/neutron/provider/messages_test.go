package provider

import (
	"log/slog"
	"net"
	"path/filepath"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"

	"weft.dev/weft/internal/neutron/cloud"
)

// octets is gRPC's codec for messages that are bytes.
type octets struct{}

func (octets) Name() string { return "proto" }

func (octets) Marshal(v any) ([]byte, error) { return *v.(*[]byte), nil } //nolint:forcetypeassert // the test's

func (octets) Unmarshal(data []byte, v any) error {
	*v.(*[]byte) = append([]byte(nil), data...) //nolint:forcetypeassert // the test's
	return nil
}

// Truncated, oversized and senseless messages get an error of gRPC, and the next call is served.
func TestBadMessages(t *testing.T) {
	path := filepath.Join(t.TempDir(), "provider.sock")
	listener, err := net.Listen("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	server := NewServer(slog.New(slog.DiscardHandler))
	if err := Register(server, Options{Cloud: reachable(cloud.New(nil, cloud.Config{})), Records: t.TempDir()}); err != nil {
		t.Fatal(err)
	}
	go func() { _ = server.Serve(listener) }()
	t.Cleanup(server.Stop)
	conn, err := grpc.NewClient("unix://"+path, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	call := func(method string, message []byte) ([]byte, error) {
		var answer []byte
		err := conn.Invoke(t.Context(), "/types."+method, &message, &answer, grpc.ForceCodec(octets{}))
		return answer, err
	}
	for name, c := range map[string]struct {
		message []byte
		want    codes.Code
	}{
		"a string that ends early":  {[]byte{0x0a, 0x05, 'a'}, codes.Internal},
		"a varint without an end":   {[]byte{0x08, 0xff, 0xff}, codes.Internal},
		"a field of number 0":       {[]byte{0x02, 0x00}, codes.Internal},
		"a string that is not text": {[]byte{0x0a, 0x02, 0xff, 0xfe}, codes.Internal},
		"more than is read":         {append([]byte{0x0a, 0x80, 0x80, 0x80, 0x01}, make([]byte, 2<<20)...), codes.ResourceExhausted},
	} {
		for _, method := range []string{"Pods/SetupPod", "Networks/DeleteNetwork", "LoadBalancers/DeleteLoadBalancer"} {
			if answer, err := call(method, c.message); status.Code(err) != c.want {
				t.Errorf("%s, %s: answer %x, %v, want %s", method, name, answer, err, c.want)
			}
		}
	}
	if answer, err := call("Networks/Active", nil); err != nil || len(answer) != 2 || answer[0] != 0x08 || answer[1] != 1 {
		t.Errorf("the next call: %x, %v", answer, err)
	}
}
