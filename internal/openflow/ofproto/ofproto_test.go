package ofproto_test

import (
	"context"
	"encoding/json"
	"errors"
	"net"
	"os"
	"path/filepath"
	"testing"
	"time"

	"weft.dev/weft/internal/openflow/ofproto"
)

func serve(t *testing.T, answer string) (path string, asked <-chan map[string]any) {
	t.Helper()
	dir, err := os.MkdirTemp("", "wt")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	path = filepath.Join(dir, "ctl")
	l, err := net.Listen("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = l.Close() })
	questions := make(chan map[string]any, 1)
	go func() {
		nc, err := l.Accept()
		if err != nil {
			return
		}
		defer func() { _ = nc.Close() }()
		var q map[string]any
		_ = json.NewDecoder(nc).Decode(&q)
		questions <- q
		if answer == "" {
			_, _ = nc.Read(make([]byte, 1)) // until the other side closes the connection
		}
		_, _ = nc.Write([]byte(answer))
	}()
	return path, questions
}

func TestCommandSpeaksJSONRPC(t *testing.T) {
	path, asked := serve(t, `{"id":1,"result":"Flow: tcp\n","error":null}`)
	got, err := ofproto.Trace(t.Context(), path, "br0", "tcp", "--ct-next", "trk,est")
	if err != nil || got != "Flow: tcp\n" {
		t.Fatalf("%q, %v", got, err)
	}
	q := <-asked
	if q["method"] != "ofproto/trace" || len(q["params"].([]any)) != 4 {
		t.Errorf("asked %v", q)
	}
}

func TestCommandReturnsTheSwitchsError(t *testing.T) {
	path, _ := serve(t, `{"id":1,"result":null,"error":"Unknown bridge name"}`)
	if _, err := ofproto.Command(t.Context(), path, "x"); !errors.Is(err, ofproto.ErrCommand) {
		t.Errorf("%v", err)
	}
}

func TestCommandEndsWithItsContext(t *testing.T) {
	path, _ := serve(t, "")
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
	defer cancel()
	if _, err := ofproto.Command(ctx, path, "x"); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("%v", err)
	}
}
