package daemon

import (
	"fmt"
	"net"
)

// NotifyReady reports to systemd that the daemon has started: a unit of Type=notify, as flanneld's often is, waits for it (sd_notify(3)). socket
// is $NOTIFY_SOCKET; without one there is no such unit.
func NotifyReady(socket string) error {
	if socket == "" {
		return nil
	}
	conn, err := net.DialUnix("unixgram", nil, &net.UnixAddr{Name: socket, Net: "unixgram"}) // a leading @ stands for an abstract socket
	if err != nil {
		return fmt.Errorf("report to systemd: %w", err)
	}
	defer conn.Close() //nolint:errcheck // the datagram is sent
	if _, err := conn.Write([]byte("READY=1")); err != nil {
		return fmt.Errorf("report to systemd: %w", err)
	}
	return nil
}
