package openstack

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"

	"weft.dev/weft/lab/process"
)

// rabbitServer is the broker's program itself: the one in PATH changes to the user rabbitmq.
const rabbitServer = "/usr/lib/rabbitmq/bin/rabbitmq-server"

// brokerPort is AMQP's usual port.
const brokerPort = 5672

// broker is RabbitMQ's address as Neutron's programs have it.
func broker(at netip.Addr) string {
	return "rabbit://guest:guest@" + netip.AddrPortFrom(at, brokerPort).String() + "/"
}

var errNoBroker = errors.New("RabbitMQ is not installed: run build/prepare --openstack openvswitch")

func (s *Stack) checkBroker() error {
	if _, err := os.Stat(rabbitServer); err != nil {
		return fmt.Errorf("%w: %w", errNoBroker, err)
	}
	return nil
}

// rabbitmq is the broker between Neutron and its agents, with ML2/OVS. Erlang's port mapper, which it starts, is in its PID namespace and
// ends with it.
func (s *Stack) rabbitmq() process.Program {
	dir := filepath.Join(s.Dir, "rabbitmq")
	return process.Program{
		Name: s.name("rabbitmq"),
		Argv: s.alone(rabbitServer),
		Env: []string{
			"HOME=" + dir, // of Erlang's cookie
			"RABBITMQ_NODENAME=weft@localhost",
			"RABBITMQ_CONFIG_FILE=" + s.conf("rabbitmq.conf"),
			"RABBITMQ_GENERATED_CONFIG_DIR=" + filepath.Join(dir, "config"),
			"RABBITMQ_ENABLED_PLUGINS_FILE=" + filepath.Join(dir, "plugins"),
			"RABBITMQ_MNESIA_BASE=" + filepath.Join(dir, "mnesia"),
			"RABBITMQ_LOG_BASE=" + filepath.Join(dir, "log"),
			"RABBITMQ_LOGS=-",
			// Without these its schedulers spin while they wait for work.
			"RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS=+sbwt none +sbwtdcpu none +sbwtdio none",
		},
		Ready: s.listens(brokerPort),
	}
}

// listens returns a function that connects to a port from inside the namespace.
func (s *Stack) listens(port uint16) func(context.Context) error {
	return func(ctx context.Context) error {
		conn, err := s.dial(ctx, "tcp", fmt.Sprintf("127.0.0.1:%d", port))
		if err != nil {
			return err
		}
		return conn.Close()
	}
}
