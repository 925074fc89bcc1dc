// Package ofproto queries a running ovs-vswitchd about its flow tables. It sends commands to the control socket in the JSON-RPC of
// ovs-appctl(8), without starting a program.
package ofproto

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"time"
)

// ErrCommand says that the switch refused a valid command: for example no such bridge, or a flow that it cannot parse.
var ErrCommand = errors.New("ovs-vswitchd refused")

// Trace returns what the bridge would do with a packet, as `ovs-appctl ofproto/trace` prints it. flow is in the syntax of ovs-ofctl, for
// example "in_port=3,tcp,nw_src=10.128.0.5,tp_dst=80". options precede it on the command line, for example "--ct-next", "trk,est".
// ctlSocket is the path of the control socket.
func Trace(ctx context.Context, ctlSocket, bridge, flow string, options ...string) (string, error) {
	return Command(ctx, ctlSocket, "ofproto/trace", append([]string{bridge, flow}, options...)...)
}

// Command runs any command of ovs-appctl and returns what it prints.
func Command(ctx context.Context, ctlSocket, name string, args ...string) (string, error) {
	nc, err := (&net.Dialer{}).DialContext(ctx, "unix", ctlSocket)
	if err != nil {
		return "", fmt.Errorf("connect to ovs-vswitchd: %w", err)
	}
	defer func() { _ = nc.Close() }()
	stop := context.AfterFunc(ctx, func() { _ = nc.SetDeadline(time.Unix(1, 0)) })
	defer stop()
	text, err := exchange(nc, name, args)
	if err != nil && ctx.Err() != nil {
		err = context.Cause(ctx)
	}
	if err != nil {
		return "", fmt.Errorf("%s %q: %w", name, args, err)
	}
	return text, nil
}

// request and reply are JSON-RPC 1.0 messages.
type request struct {
	Method string   `json:"method"`
	Params []string `json:"params"`
	ID     int      `json:"id"`
}

type reply struct {
	Result *string `json:"result"`
	Error  any     `json:"error"`
}

func exchange(nc net.Conn, name string, args []string) (string, error) {
	if args == nil {
		args = []string{}
	}
	if err := json.NewEncoder(nc).Encode(request{name, args, 1}); err != nil {
		return "", fmt.Errorf("send the command: %w", err)
	}
	var r reply
	if err := json.NewDecoder(nc).Decode(&r); err != nil {
		return "", fmt.Errorf("read the answer: %w", err)
	}
	if r.Error != nil {
		return "", fmt.Errorf("%w: %v", ErrCommand, r.Error)
	}
	if r.Result == nil {
		return "", errors.New("the answer has neither result nor error")
	}
	return *r.Result, nil
}
