package rows

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"path/filepath"
	"sync"
	"syscall"
	"time"

	"weft.dev/weft/test/bench/measure"
	"weft.dev/weft/test/bench/stage"
	"weft.dev/weft/test/probe"
	"weft.dev/weft/test/traffic"
)

// switchWall is the time from the daemon's start until pods reach each other; for the floor, the duration of the daemon's own start.
const switchWall = "switch-wall"

// switchRest is how long the daemon runs before it is killed again: its supervisor restarts a daemon sooner if it has run for some time.
const switchRest = 3 * time.Second

// switchKilled kills the switch's daemon under traffic. The floor is the daemon's own start with the same ports and no flows: until its
// bridge accepts connections, no flow can be programmed.
func switchKilled() Group {
	return Group{
		lab:   true,
		Title: fmt.Sprintf("a killed ovs-vswitchd with %d pods on the node, against its start without flows", restartPods),
		Rows: []measure.Row{{
			Name: "switch-killed/100/forwards", Metric: switchWall, Unit: "ms after its start", Target: measure.RatioAtMost(switchRatio),
		}},
		run: func(ctx context.Context, b Bench, rows []measure.Row) ([]measure.Result, error) {
			c, err := b.Stage.Cluster(ctx)
			if err != nil {
				return nil, err
			}
			if err := c.Populate(ctx, restartPods); err != nil {
				return nil, err
			}
			return b.compare(ctx, rows, forwardsAgain(c), startsWithoutFlows(c))
		},
	}
}

// switchRatio is the maximum time that pods may wait, as a multiple of the daemon's start without flows.
const switchRatio = 2

func forwardsAgain(c *stage.Cluster) measure.Side {
	return func(ctx context.Context) (measure.Figures, error) {
		from, to := c.Running(0), c.Running(1)
		address := netip.AddrPortFrom(to.IPs[0], echoPort)
		return killOnce(ctx, c, func(stop <-chan struct{}) (*occurrences, error) { return answers(from.Netns, address, stop) })
	}
}

func startsWithoutFlows(c *stage.Cluster) measure.Side {
	return func(ctx context.Context) (_ measure.Figures, err error) {
		socket := filepath.Join(c.Ours[0].RunDir, "openvswitch", stage.Bridge+".mgmt")
		stopped := 0
		defer func() {
			if stopped != 0 {
				err = errors.Join(err, syscall.Kill(stopped, syscall.SIGCONT))
			}
		}()
		return killOnce(ctx, c, func(stop <-chan struct{}) (*occurrences, error) {
			if stopped, err = probe.Signal(ctx, c.Cluster, c.Ours[0].Name+"/weft-agent", syscall.SIGSTOP); err != nil {
				return nil, err
			}
			return connections(socket, stop), nil
		})
	}
}

// killOnce kills the daemon, and returns the time from the start of the next one to the first occurrence after that.
func killOnce(ctx context.Context, c *stage.Cluster, watch func(stop <-chan struct{}) (*occurrences, error)) (measure.Figures, error) {
	from, to := c.Running(0), c.Running(1)
	echo, err := traffic.NewEcho(to.Netns, netip.AddrPortFrom(to.IPs[0], echoPort))
	if err != nil {
		return nil, err
	}
	defer func() { _ = echo.Close() }()
	limited, cancel := context.WithTimeout(ctx, probe.Patience)
	defer cancel()
	select {
	case <-ctx.Done():
		return nil, ctx.Err()
	case <-time.After(switchRest):
	}
	if _, err := traffic.Ping(limited, from.Netns, netip.AddrPortFrom(to.IPs[0], echoPort)); err != nil {
		return nil, err
	}
	stop := make(chan struct{})
	seen, err := watch(stop)
	if err != nil {
		return nil, err
	}
	defer seen.wait.Wait()
	defer close(stop)
	program := c.Ours[0].Name + "/ovs-vswitchd"
	if err := probe.Kill(limited, c.Cluster, program, syscall.SIGKILL); err != nil {
		return nil, err
	}
	status, err := probe.Program(limited, c.Cluster, program)
	if err != nil {
		return nil, err
	}
	var first time.Time
	_, err = probe.Await(ctx, probe.Patience, program+" forwarding again", func(context.Context) (err error) {
		first, err = seen.after(status.Since)
		return err
	})
	return measure.Figures{switchWall: milliseconds(first.Sub(status.Since))}, err
}

// occurrences are the times of an awaited event.
type occurrences struct {
	wait sync.WaitGroup
	mu   sync.Mutex
	at   []time.Time
}

func (o *occurrences) add() {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.at = append(o.at, time.Now())
}

var errNothing = errors.New("no datagram was received")

// after returns the first time after begin.
func (o *occurrences) after(begin time.Time) (time.Time, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	for _, at := range o.at {
		if at.After(begin) {
			return at, nil
		}
	}
	return time.Time{}, errNothing
}

// watchEvery is the interval of checks.
const watchEvery = time.Millisecond

// often calls ask repeatedly until stop is closed.
func often(stop <-chan struct{}, ask func()) {
	tick := time.NewTicker(watchEvery)
	defer tick.Stop()
	for {
		select {
		case <-stop:
			return
		case <-tick.C:
			ask()
		}
	}
}

// answers records the time of each answer, to one datagram per millisecond.
func answers(from string, to netip.AddrPort, stop <-chan struct{}) (*occurrences, error) {
	conn, err := traffic.ListenUDP(from, netip.AddrPort{})
	if err != nil {
		return nil, err
	}
	seen := &occurrences{}
	seen.wait.Go(func() {
		defer func() { _ = conn.Close() }()
		often(stop, func() { _, _ = conn.WriteToUDPAddrPort([]byte("8 octets"), to) }) // a datagram that cannot be sent is not answered
	})
	seen.wait.Go(func() {
		buffer := make([]byte, 64)
		for {
			if _, err := conn.Read(buffer); err != nil {
				return // closed
			}
			seen.add()
		}
	})
	return seen, nil
}

// connections records each time that a unix socket accepts a connection, of one per millisecond.
func connections(socket string, stop <-chan struct{}) *occurrences {
	seen := &occurrences{}
	seen.wait.Go(func() {
		often(stop, func() {
			if conn, err := net.Dial("unix", socket); err == nil {
				seen.add()
				_ = conn.Close()
			}
		})
	})
	return seen
}
