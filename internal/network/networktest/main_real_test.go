//go:build real

package networktest_test

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"net"
	"os"
	"os/signal"
	"syscall"
	"testing"

	"github.com/go-logr/logr"
	"k8s.io/client-go/rest"
	ctrllog "sigs.k8s.io/controller-runtime/pkg/log"

	"weft.dev/weft/deploy/crds"
	"weft.dev/weft/internal/agent"
	"weft.dev/weft/internal/apiservertest"
	"weft.dev/weft/internal/network"
	"weft.dev/weft/internal/network/networktest"
)

// agentEnvironment is a variable with the options of an agent. If it is set, this program runs that agent, in a separate network namespace.
const agentEnvironment = "WEFT_NETWORKTEST_AGENT"

// agentOptions are the options of a node's agent.
type agentOptions struct {
	Node, Dir, OVSRunDir, Host, Token, Proxy string
}

var server *apiservertest.Server //nolint:gochecknoglobals // set once, by TestMain

func TestMain(m *testing.M) {
	ctrllog.SetLogger(logr.Discard())
	if text := os.Getenv(agentEnvironment); text != "" {
		if err := runAgent(text); err != nil {
			fmt.Fprintln(os.Stderr, "agent:", err)
			os.Exit(1)
		}
		return
	}
	os.Exit(apiservertest.MainWith(m, &server, crds.All))
}

// runAgent runs the agent of a node that serves the overlay and the test network.
func runAgent(text string) error {
	var o agentOptions
	if err := json.Unmarshal([]byte(text), &o); err != nil {
		return err
	}
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer stop()
	config := &rest.Config{
		Host: o.Host, BearerToken: o.Token, TLSClientConfig: rest.TLSClientConfig{Insecure: true}, QPS: -1,
		Dial: func(ctx context.Context, _, _ string) (net.Conn, error) {
			return (&net.Dialer{}).DialContext(ctx, "unix", o.Proxy)
		},
	}
	return agent.Run(ctx, agent.Options{
		Config: config, Node: o.Node,
		Paths:         agent.Paths{OVSRunDir: o.OVSRunDir, StateDir: o.Dir + "/state", RunDir: o.Dir + "/run", CNIConfDir: o.Dir + "/net.d"},
		HealthAddress: agent.DefaultHealthAddress, Datapath: agent.DatapathNetdev, Networks: []network.Kind{networktest.Kind()},
		Log: slog.New(slog.NewTextHandler(os.Stderr, nil)),
	})
}
