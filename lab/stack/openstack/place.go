package openstack

import (
	"context"
	"net"
	"path/filepath"

	"weft.dev/weft/lab/ground"
	"weft.dev/weft/lab/process"
)

// place is where the programs of a stack run and keep their files.
type place struct {
	space  ground.Space
	group  *process.Group
	dir    string
	prefix string // of the programs' names in the group
}

func (p place) name(program string) string { return p.prefix + "/" + program }

func (p place) conf(file string) string { return filepath.Join(p.dir, "conf", file) }

// alone runs a program that starts others in its own PID namespace, so that killing it ends all of them: octavia-driver-agent deadlocks
// when its children get SIGTERM as well.
func (p place) alone(argv ...string) []string {
	return p.space.Enter(append([]string{"unshare", "--pid", "--fork", "--kill-child=KILL", "--"}, argv...)...)
}

func (p place) dial(ctx context.Context, network, address string) (net.Conn, error) {
	return p.space.Dial(ctx, network, address)
}

func (p place) sock(name string) string { return filepath.Join(p.dir, "run", name+".sock") }
