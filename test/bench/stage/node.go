package stage

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"
	"golang.org/x/sync/errgroup"
	"golang.org/x/sys/unix"

	"weft.dev/weft/lab"
)

// Node is a node of one of the sides. Both sides use the same container runtime program.
type Node struct {
	lab.Node
	cpu func(context.Context) (Meter, error)
	// objects makes Pod objects, for a network that reads them; nil: none are made. uids are the UIDs of the objects, by name.
	objects func(context.Context, lab.PodSpec) (uid string, err error)
	uids    *sync.Map
}

// Expect makes the objects of pods that will be added, if the network needs them: a kubelet's ADD comes long after its Pod object.
func (n Node) Expect(ctx context.Context, names ...string) error {
	if n.objects == nil {
		return nil
	}
	for _, name := range names {
		name = n.Name + "-" + name // both sides are in one cluster
		uid, err := n.objects(ctx, lab.PodSpec{Node: n.Name, Namespace: "default", Name: name})
		if err != nil {
			return err
		}
		n.uids.Store(name, uid)
	}
	return nil
}

// Meter reads the processor time of the network on the node.
func (n Node) Meter(ctx context.Context) (Meter, error) { return n.cpu(ctx) }

// Pod is a pod with the index of its interface.
type Pod struct {
	*lab.Pod
	link int
}

// Add starts a pod. Took is the network's share of the time.
func (n Node) Add(ctx context.Context, name string) (Pod, error) {
	var uid string
	if n.uids != nil {
		name = n.Name + "-" + name
		if known, ok := n.uids.Load(name); ok {
			uid, _ = known.(string)
		}
	}
	p, err := n.Attach(ctx, lab.PodSpec{Namespace: "default", Name: name, NoObject: true}, uid)
	return Pod{Pod: p}, err
}

// FindLink finds the pod's interface.
func (p *Pod) FindLink() error {
	return inNetns(p.Netns, func(h *netlink.Handle) error {
		l, err := h.LinkByName("eth0")
		if err != nil {
			return fmt.Errorf("find eth0 of pod %s: %w", p.Name, err)
		}
		p.link = l.Attrs().Index
		return nil
	})
}

// Deletion has the durations of a deletion, from the request to the container runtime on.
type Deletion struct {
	// Answered is the time within libcni, until the network's answer.
	Answered time.Duration
	// Event is when the kernel reported that the pod's interface was removed. The bridge plugin's answer comes after that, delayed by the
	// kernel's rcu_barrier; Weft answers before.
	Event time.Duration
	// Gone is the later of both: the network has answered, and the interface is removed.
	Gone time.Duration
}

// Delete deletes a pod and waits until its interface is removed. FindLink must have been called.
func (n Node) Delete(ctx context.Context, p Pod) (Deletion, error) {
	links, err := watchLinks(p.Netns)
	if err != nil {
		return Deletion{}, err
	}
	defer links.close()
	begin := time.Now()
	answered, err := p.Detach(ctx)
	if err != nil {
		return Deletion{}, err
	}
	at, err := links.awaitGone(ctx, p.link)
	if err != nil {
		return Deletion{}, fmt.Errorf("pod %s is deleted, but its interface stays: %w", p.Name, err)
	}
	event := at.Sub(begin)
	return Deletion{Answered: answered, Event: event, Gone: max(answered, event)}, nil
}

// inNetns calls f with a netlink connection into the namespace at path.
func inNetns(path string, f func(*netlink.Handle) error) error {
	space, err := netns.GetFromPath(path)
	if err != nil {
		return fmt.Errorf("open namespace %s: %w", path, err)
	}
	defer func() { _ = space.Close() }()
	h, err := netlink.NewHandleAt(space, unix.NETLINK_ROUTE)
	if err != nil {
		return fmt.Errorf("open netlink in %s: %w", path, err)
	}
	defer h.Close()
	return f(h)
}

// links records when each link of a namespace was removed.
type links struct {
	stop chan struct{}

	mu      sync.Mutex
	gone    map[int]time.Time
	changed chan struct{}
	failed  error
}

func watchLinks(path string) (*links, error) {
	space, err := netns.GetFromPath(path)
	if err != nil {
		return nil, fmt.Errorf("open namespace %s: %w", path, err)
	}
	defer func() { _ = space.Close() }()
	l := &links{stop: make(chan struct{}), gone: map[int]time.Time{}, changed: make(chan struct{})}
	updates := make(chan netlink.LinkUpdate, 1024)
	const buffer = 8 << 20 // bytes: a thousand links that are added and removed at once
	err = netlink.LinkSubscribeWithOptions(updates, l.stop, netlink.LinkSubscribeOptions{
		Namespace: &space, ErrorCallback: l.fail, ReceiveBufferSize: buffer, ReceiveBufferForceSize: true,
	})
	if err != nil {
		return nil, fmt.Errorf("watch the links of %s: %w", path, err)
	}
	go l.follow(updates)
	return l, nil
}

func (l *links) follow(updates <-chan netlink.LinkUpdate) {
	for u := range updates {
		// A bridge reports its removed ports by the same message in its own family.
		if u.Header.Type != unix.RTM_DELLINK || u.Family != unix.AF_UNSPEC {
			continue
		}
		l.mu.Lock()
		l.gone[int(u.Index)] = time.Now()
		l.wake()
		l.mu.Unlock()
	}
}

func (l *links) wake() {
	close(l.changed)
	l.changed = make(chan struct{})
}

func (l *links) fail(err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.failed = err
	l.wake()
}

func (l *links) close() { close(l.stop) }

// awaitGone waits until a link is removed, and returns when that was.
func (l *links) awaitGone(ctx context.Context, index int) (time.Time, error) {
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	for {
		l.mu.Lock()
		at, gone := l.gone[index]
		changed, failed := l.changed, l.failed
		l.mu.Unlock()
		if gone {
			return at, nil
		}
		if failed != nil {
			return time.Time{}, fmt.Errorf("watch links: %w", failed)
		}
		select {
		case <-ctx.Done():
			return time.Time{}, fmt.Errorf("link %d: %w", index, ctx.Err())
		case <-changed:
		}
	}
}

// fillTogether is the number of pods that are added or deleted concurrently while a node is filled.
const fillTogether = 32

// Populate sets the number of permanent pods on the first node of each side.
func (c *Cluster) Populate(ctx context.Context, pods int) error {
	for i := range c.running {
		node := c.Ours[0]
		if i == 1 {
			node = c.Peers[0]
		}
		if err := node.populate(ctx, &c.running[i], pods); err != nil {
			return err
		}
	}
	return nil
}

func (n Node) populate(ctx context.Context, running *[]Pod, want int) error {
	g, ctx := errgroup.WithContext(ctx)
	g.SetLimit(fillTogether)
	have := len(*running)
	if want < have {
		for _, p := range (*running)[want:] {
			g.Go(func() error {
				_, err := n.Delete(ctx, p)
				return err
			})
		}
		*running = (*running)[:want]
		return g.Wait()
	}
	*running = append(*running, make([]Pod, want-have)...)
	for i := have; i < want; i++ {
		p := &(*running)[i]
		g.Go(func() (err error) {
			if *p, err = n.Add(ctx, fmt.Sprintf("standing-%d", i)); err != nil {
				return err
			}
			return p.FindLink()
		})
	}
	return g.Wait()
}

// Running returns pod i of those that Populate keeps on the first of our nodes.
func (c *Cluster) Running(i int) *Pod { return &c.running[0][i] }
