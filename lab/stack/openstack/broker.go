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

// brokerURL is RabbitMQ's address as Neutron's programs have it.
func brokerURL(at netip.Addr) string {
	return "rabbit://guest:guest@" + netip.AddrPortFrom(at, brokerPort).String() + "/"
}

var errNoBroker = errors.New("RabbitMQ is not installed: run build/prepare --openstack openvswitch")

// broker is RabbitMQ between Neutron and its agents, with ML2/OVS.
type broker struct{ place }

// brokerInstalled returns errNoBroker unless RabbitMQ is installed.
func brokerInstalled() error {
	if _, err := os.Stat(rabbitServer); err != nil {
		return fmt.Errorf("%w: %w", errNoBroker, err)
	}
	return nil
}

// program describes the broker. Erlang's port mapper, which it starts, is in its PID namespace and ends with it.
func (b broker) program() process.Program {
	dir := filepath.Join(b.dir, "rabbitmq")
	return process.Program{
		Name: b.name("rabbitmq"),
		Argv: b.alone(rabbitServer),
		Env: []string{
			"HOME=" + dir, // of Erlang's cookie
			"RABBITMQ_NODENAME=weft@localhost",
			"RABBITMQ_CONFIG_FILE=" + b.conf("rabbitmq.conf"),
			"RABBITMQ_GENERATED_CONFIG_DIR=" + filepath.Join(dir, "config"),
			"RABBITMQ_ENABLED_PLUGINS_FILE=" + filepath.Join(dir, "plugins"),
			"RABBITMQ_MNESIA_BASE=" + filepath.Join(dir, "mnesia"),
			"RABBITMQ_LOG_BASE=" + filepath.Join(dir, "log"),
			"RABBITMQ_LOGS=-",
			// Without these its schedulers spin while they wait for work.
			"RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS=+sbwt none +sbwtdcpu none +sbwtdio none",
		},
		Ready: b.listens,
	}
}

// listens connects to the broker from inside its namespace.
func (b broker) listens(ctx context.Context) error {
	conn, err := b.dial(ctx, "tcp", fmt.Sprintf("127.0.0.1:%d", brokerPort))
	if err != nil {
		return err
	}
	return conn.Close()
}
