package lifecycle_test

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	types100 "github.com/containernetworking/cni/pkg/types/100"
	"go.uber.org/goleak"

	"weft.dev/weft/internal/attach"
	"weft.dev/weft/internal/attach/lifecycle"
	"weft.dev/weft/internal/cni"
	"weft.dev/weft/internal/network"
	"weft.dev/weft/internal/placement"
	"weft.dev/weft/internal/testwait"
)

const boot = "boot-2"

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// kernel is what networks have made on a node. Like a kernel's state, it outlives them.
type kernel struct {
	mu   sync.Mutex
	made map[attach.Key]string // the network
	open map[attach.Key]bool
}

func newKernel() *kernel { return &kernel{made: map[attach.Key]string{}, open: map[attach.Key]bool{}} }

func (k *kernel) has(key attach.Key) (network string, open bool) {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.made[key], k.open[key]
}

// memory is a network in memory.
type memory struct {
	name   string
	kernel *kernel
	// records, if not nil, get each record marked as attached by Connect.
	records network.Records
	// hang is the channel that Remove waits for; nil: none.
	hang chan struct{}

	mu sync.Mutex
	// notReady is the error of STATUS, and fail has the errors of the next calls, by method. A failed Connect has made its interface
	// nevertheless.
	notReady error
	fail     map[string][]error
	calls    []string
	// chosen is called in Plan, before the network chooses.
	chosen func()
	// fixed is an address that all pods must have; 0: they have any.
	fixed byte
}

func (m *memory) call(method string, key attach.Key) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.calls = append(m.calls, method+" "+key.ContainerID)
	if errs := m.fail[method]; len(errs) > 0 {
		m.fail[method] = errs[1:]
		return errs[0]
	}
	return nil
}

func (m *memory) Plan(_ context.Context, req *cni.Request, at placement.Decision, inUse attach.InUse) (attach.Record, error) {
	if err := m.call("plan", attach.Key{ContainerID: req.ContainerID}); err != nil {
		return attach.Record{}, err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	for i := 2; i < 10; i++ {
		address := netip.AddrFrom4([4]byte{10, 0, 0, byte(i)})
		claim := "address " + m.name + " " + address.String()
		if m.fixed != 0 && m.fixed != byte(i) {
			continue
		}
		if holder, taken := inUse.Claims[claim]; taken && m.fixed != 0 {
			return attach.Record{}, cni.Errorf(cni.CodeTryAgainLater, "%w", &attach.ConflictError{What: claim, Holder: holder})
		} else if taken {
			continue
		}
		if m.chosen != nil {
			chosen := m.chosen
			m.chosen = nil
			chosen()
		}
		return attach.Record{
			Network: m.name + "." + at.Part, Claims: []string{claim}, Addresses: []netip.Prefix{netip.PrefixFrom(address, 24)},
		}, nil
	}
	return attach.Record{}, errors.New("no address is free")
}

func (m *memory) Connect(ctx context.Context, rec *attach.Record) (*types100.Result, error) {
	m.kernel.mu.Lock()
	m.kernel.made[rec.Key()], m.kernel.open[rec.Key()] = m.name, true
	m.kernel.mu.Unlock()
	if m.records != nil {
		rec.State = attach.Attached
		if err := m.records.Put(ctx, *rec); err != nil {
			return nil, err
		}
	}
	if err := m.call("connect", rec.Key()); err != nil {
		return nil, err
	}
	return &types100.Result{Interfaces: []*types100.Interface{{Name: rec.IfName, Mac: rec.Addresses[0].String()}}}, nil
}

func (m *memory) Close(_ context.Context, rec attach.Record) error {
	m.kernel.mu.Lock()
	delete(m.kernel.open, rec.Key())
	m.kernel.mu.Unlock()
	return m.call("close", rec.Key())
}

func (m *memory) Remove(_ context.Context, recs []attach.Record) map[attach.Key]error {
	m.mu.Lock()
	hang := m.hang
	m.mu.Unlock()
	if hang != nil {
		<-hang
	}
	failed := map[attach.Key]error{}
	for _, rec := range recs {
		if err := m.call("remove", rec.Key()); err != nil {
			failed[rec.Key()] = err
			continue
		}
		m.kernel.mu.Lock()
		if made := m.kernel.made[rec.Key()]; made != m.name && made != "" {
			failed[rec.Key()] = fmt.Errorf("it is of network %s", made)
		}
		delete(m.kernel.made, rec.Key())
		m.kernel.mu.Unlock()
	}
	return failed
}

func (m *memory) Check(_ context.Context, rec attach.Record) error { return m.call("check", rec.Key()) }

func (m *memory) Ready() error {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.notReady
}

// rig is a node with networks "red" and "blue".
type rig struct {
	*lifecycle.Handler
	t      *testing.T
	dir    string
	store  *attach.Store
	kernel *kernel
	red    *memory
	blue   *memory
	// handed, when closed, lets the networks remove attachments.
	handed chan struct{}
	stop   func()
	// placed is the network of each pod, by name; else red.
	placed map[string]placement.Decision
}

func newRig(t *testing.T) *rig {
	r := &rig{t: t, dir: filepath.Join(t.TempDir(), "attachments"), kernel: newKernel(), placed: map[string]placement.Decision{}}
	r.start()
	close(r.handed)
	t.Cleanup(func() { r.stop() })
	return r
}

func (r *rig) start() {
	r.t.Helper()
	var err error
	if r.store, err = attach.Open(r.dir); err != nil {
		r.t.Fatal(err)
	}
	r.handed = make(chan struct{})
	r.red, r.blue = &memory{name: "red", kernel: r.kernel, fail: map[string][]error{}}, &memory{name: "blue", kernel: r.kernel, fail: map[string][]error{}}
	r.Handler = lifecycle.New(r.store, lifecycle.Options{
		BootID: boot, Default: func() (string, error) { return "red", nil }, Waiting: func() string { return "waiting for the network" },
		Place: func(_ context.Context, req *cni.Request) (placement.Decision, error) {
			if d, placed := r.placed[req.Args.PodName]; placed {
				return d, nil
			}
			return placement.Decision{Network: "red"}, nil
		},
	})
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() {
		defer close(done)
		_ = r.Run(ctx)
	}()
	stopRed, stopBlue := r.Serve("red", r.red, r.handed), r.Serve("blue", r.blue, r.handed)
	r.stop = func() {
		cancel()
		<-done
		stopRed()
		stopBlue()
		if err := r.store.Close(); err != nil {
			r.t.Error(err)
		}
	}
}

func (r *rig) restart() {
	r.t.Helper()
	r.stop()
	r.start()
}

func request(command cni.Command, container string) *cni.Request {
	return &cni.Request{
		Command: command, ContainerID: container, IfName: "eth0", Netns: "/run/netns/" + container,
		Args: cni.Args{PodNamespace: "shop", PodName: container}, NetConf: &cni.NetConf{},
	}
}

func key(container string) attach.Key { return attach.Key{ContainerID: container, IfName: "eth0"} }

func (r *rig) add(container string) *types100.Result {
	r.t.Helper()
	result, err := r.Add(r.t.Context(), request(cni.CommandAdd, container))
	if err != nil {
		r.t.Fatalf("ADD of %s: %v", container, err)
	}
	return result
}

func (r *rig) del(container string) {
	r.t.Helper()
	if err := r.Del(r.t.Context(), request(cni.CommandDel, container)); err != nil {
		r.t.Fatalf("DEL of %s: %v", container, err)
	}
}

// gone waits until nothing is left of an attachment.
func (r *rig) gone(container string) {
	r.t.Helper()
	testwait.Until(r.t, "nothing is left of "+container, func() bool {
		_, err := r.store.Get(key(container))
		made, _ := r.kernel.has(key(container))
		return errors.Is(err, attach.ErrNotFound) && made == ""
	})
}

func (r *rig) want(container, network string, open bool) {
	r.t.Helper()
	if made, isOpen := r.kernel.has(key(container)); made != network || isOpen != open {
		r.t.Errorf("%s: made by %q, open %t; want %q, %t", container, made, isOpen, network, open)
	}
}

func wantCode(t *testing.T, err error, code cni.Code, part string) {
	t.Helper()
	var own *cni.Error
	if !errors.As(err, &own) || own.Code != code || !strings.Contains(err.Error(), part) {
		t.Errorf("error %v, want code %d and %q", err, code, part)
	}
}

// TestByPlacementThenByRecord: ADD uses the network of the placement; a pod whose placement changes later stays on the network of its
// record.
func TestByPlacementThenByRecord(t *testing.T) {
	r := newRig(t)
	r.placed["b"] = placement.Decision{Network: "blue", Part: "x"}
	r.add("a")
	first := r.add("b")
	r.want("a", "red", true)
	r.want("b", "blue", true)
	if rec, err := r.store.Get(key("b")); err != nil || rec.Network != "blue.x" || rec.State != attach.Attached || rec.PodName != "b" || rec.BootID != boot {
		t.Errorf("record %+v, %v", rec, err)
	}
	delete(r.placed, "b")
	if again := r.add("b"); !slices.EqualFunc(again.Interfaces, first.Interfaces, func(a, b *types100.Interface) bool { return *a == *b }) {
		t.Errorf("a repeated ADD: %v, then %v", first.Interfaces, again.Interfaces)
	}
	r.want("b", "blue", true)
	if err := r.Check(t.Context(), request(cni.CommandCheck, "b")); err != nil || !slices.Contains(r.blue.calls, "check b") {
		t.Errorf("CHECK: %v, calls %v", err, r.blue.calls)
	}
	r.del("b")
	r.gone("b")
	r.want("a", "red", true)
	if slices.ContainsFunc(r.red.calls, func(call string) bool { return strings.HasSuffix(call, " b") }) {
		t.Errorf("the other network was called: %v", r.red.calls)
	}
	r.del("b") // no attachment
	wantCode(t, r.Check(t.Context(), request(cni.CommandCheck, "b")), cni.CodeUnknownContainer, "is not on this node")
}

func TestRefusedInWords(t *testing.T) {
	r := newRig(t)
	r.placed["a"] = placement.Decision{Network: "blue", Refuse: "Subnet blue does not exist"}
	r.placed["b"] = placement.Decision{Network: "green"}
	_, err := r.Add(t.Context(), request(cni.CommandAdd, "a"))
	wantCode(t, err, cni.CodeRefused, "pod shop/a is not attached: Subnet blue does not exist")
	_, err = r.Add(t.Context(), request(cni.CommandAdd, "b"))
	wantCode(t, err, cni.CodeTryAgainLater, "network green is not running")
	r.blue.notReady = errors.New("its database is away")
	r.placed["c"] = placement.Decision{Network: "blue"}
	_, err = r.Add(t.Context(), request(cni.CommandAdd, "c"))
	wantCode(t, err, cni.CodeTryAgainLater, "its database is away")
	if list := r.store.List(); len(list) != 0 || len(r.kernel.made) != 0 {
		t.Errorf("left: %v, %v", list, r.kernel.made)
	}
}

// TestConflictPlansAgain: if another ADD takes a claim between choice and record, the network chooses again.
func TestConflictPlansAgain(t *testing.T) {
	r := newRig(t)
	r.red.chosen = func() {
		rec := attach.Record{
			Network: "red.", ContainerID: "other", IfName: "eth0", Netns: "/run/netns/other", BootID: boot, State: attach.Attached,
			Created: time.Now(), Claims: []string{"address red 10.0.0.2"},
		}
		if err := r.store.Put(t.Context(), rec); err != nil {
			t.Error(err)
		}
	}
	r.add("a")
	if rec, err := r.store.Get(key("a")); err != nil || rec.Addresses[0].Addr().String() != "10.0.0.3" {
		t.Errorf("record %+v, %v", rec, err)
	}
}

// TestFormerSandbox: a pod whose address another sandbox has gets it at once if that one is a former sandbox of the pod, which the runtime has
// not detached, or if it is being removed. Otherwise it waits.
func TestFormerSandbox(t *testing.T) {
	r := newRig(t)
	r.red.fixed = 7
	add := func(container, uid string) error {
		t.Helper()
		req := request(cni.CommandAdd, container)
		req.Args.PodUID = uid
		_, err := r.Add(t.Context(), req)
		return err
	}
	if err := add("a", "uid-1"); err != nil {
		t.Fatal(err)
	}
	wantCode(t, add("b", "uid-2"), cni.CodeTryAgainLater, "belongs to attachment")
	wantCode(t, add("b", ""), cni.CodeTryAgainLater, "belongs to attachment")
	r.want("a", "red", true)
	if err := add("c", "uid-1"); err != nil {
		t.Fatalf("the next sandbox of the pod: %v", err)
	}
	r.gone("a")
	r.want("c", "red", true)
	r.del("a") // late
	r.want("c", "red", true)
	r.del("c")
	if err := add("d", "uid-3"); err != nil { // whether or not c is removed by then
		t.Errorf("the pod after one that was detached: %v", err)
	}
	r.gone("c")
	r.want("d", "red", true)
}

// TestFailedAddIsUndone: nothing of a failed ADD remains, at once, or soon if the removal fails as well.
func TestFailedAddIsUndone(t *testing.T) {
	r := newRig(t)
	broken := errors.New("the kernel refuses")
	r.red.fail["connect"] = []error{broken}
	if _, err := r.Add(t.Context(), request(cni.CommandAdd, "a")); !errors.Is(err, broken) {
		t.Fatalf("ADD: %v", err)
	}
	r.want("a", "", false)
	if _, err := r.store.Get(key("a")); !errors.Is(err, attach.ErrNotFound) {
		t.Errorf("record: %v", err)
	}
	r.red.fail["connect"], r.red.fail["remove"] = []error{broken}, []error{broken, broken}
	if _, err := r.Add(t.Context(), request(cni.CommandAdd, "b")); !errors.Is(err, broken) {
		t.Fatalf("ADD: %v", err)
	}
	r.gone("b")
	r.add("a")
	r.add("b")
}

// TestMarkedByTheNetwork: a network may mark a record as attached. If its Connect fails nevertheless, the record is closing before anything
// is removed: an agent that starts meanwhile would otherwise open the attachment again.
func TestMarkedByTheNetwork(t *testing.T) {
	r := newRig(t)
	r.red.records = r.Records("red")
	r.add("a")
	if rec, err := r.store.Get(key("a")); err != nil || rec.State != attach.Attached {
		t.Errorf("record: %+v, %v", rec, err)
	}
	broken := errors.New("the bridge is full")
	r.red.fail["connect"], r.red.hang = []error{broken}, make(chan struct{})
	failed := make(chan error, 1)
	go func() {
		_, err := r.Add(t.Context(), request(cni.CommandAdd, "b"))
		failed <- err
	}()
	testwait.Until(t, "b is closed, and recorded so", func() bool {
		rec, err := r.store.Get(key("b"))
		_, open := r.kernel.has(key("b"))
		return err == nil && rec.State == attach.Closing && !open
	})
	close(r.red.hang)
	if err := <-failed; !errors.Is(err, broken) {
		t.Errorf("ADD: %v", err)
	}
	r.gone("b")
}

func TestPlanAgain(t *testing.T) {
	r := newRig(t)
	unusable := fmt.Errorf("port 3: %w", network.ErrPlanAgain)
	r.red.fail["connect"] = []error{unusable}
	r.add("a")
	r.red.fail["connect"] = []error{unusable, unusable}
	if _, err := r.Add(t.Context(), request(cni.CommandAdd, "b")); !errors.Is(err, network.ErrPlanAgain) {
		t.Fatalf("ADD: %v", err)
	}
	r.gone("b")
	r.want("a", "red", true)

	// The second plan fails: the first one's record is removed too.
	r.red.fail["connect"] = []error{unusable}
	r.red.fail["plan"] = []error{nil, errors.New("no address is free")}
	if _, err := r.Add(t.Context(), request(cni.CommandAdd, "c")); err == nil {
		t.Fatal("ADD without a plan")
	}
	r.gone("c")
}

// TestCollect: GC detaches interfaces of all networks in sandboxes that the runtime does not list.
func TestCollect(t *testing.T) {
	r := newRig(t)
	r.placed["b"], r.placed["d"] = placement.Decision{Network: "blue"}, placement.Decision{Network: "blue"}
	for _, container := range []string{"a", "b", "c", "d"} {
		r.add(container)
	}
	req := request(cni.CommandGC, "")
	req.NetConf.ValidAttachments = append(req.NetConf.ValidAttachments, cni.Attachment{ContainerID: "c", IfName: "eth0"}, cni.Attachment{ContainerID: "d", IfName: "eth0"})
	if err := r.GC(t.Context(), req); err != nil {
		t.Fatal(err)
	}
	r.gone("a")
	r.gone("b")
	r.want("c", "red", true)
	r.want("d", "blue", true)
}

// TestCollectKeepsOtherInterfaces: the runtime lists the attachments of one configuration. An interface that a listed sandbox has by another
// one, as with Multus, stays until the sandbox is not listed any more.
func TestCollectKeepsOtherInterfaces(t *testing.T) {
	r := newRig(t)
	r.add("a")
	second := request(cni.CommandAdd, "a")
	second.IfName = "net1"
	if _, err := r.Add(t.Context(), second); err != nil {
		t.Fatal(err)
	}
	other := attach.Key{ContainerID: "a", IfName: "net1"}
	gc := request(cni.CommandGC, "")
	gc.NetConf.ValidAttachments = []cni.Attachment{{ContainerID: "a", IfName: "eth0"}}
	if err := r.GC(t.Context(), gc); err != nil {
		t.Fatal(err)
	}
	rec, err := r.store.Get(other)
	if made, open := r.kernel.has(other); err != nil || rec.State != attach.Attached || made != "red" || !open {
		t.Errorf("the second interface of a listed sandbox: record %+v (%v), made by %q, open %t", rec, err, made, open)
	}
	gc.NetConf.ValidAttachments = []cni.Attachment{}
	if err := r.GC(t.Context(), gc); err != nil {
		t.Fatal(err)
	}
	r.gone("a")
	testwait.Until(t, "nothing is left of the second interface", func() bool {
		_, err := r.store.Get(other)
		return errors.Is(err, attach.ErrNotFound)
	})
}

// TestStatus: STATUS reports the default network's state, whatever the state of others.
func TestStatus(t *testing.T) {
	r := newRig(t)
	status := func() error { return r.Status(t.Context(), request(cni.CommandStatus, "")) }
	if err := status(); err != nil {
		t.Fatalf("STATUS: %v", err)
	}
	r.blue.notReady = errors.New("its database is away")
	if err := status(); err != nil {
		t.Errorf("STATUS while another network is not ready: %v", err)
	}
	r.red.notReady = errors.New("no subnet yet")
	wantCode(t, status(), cni.CodeNotAvailable, "network red: no subnet yet")
}

// TestRecords: a network writes records of its own attachments, and has interfaces without a record removed.
func TestRecords(t *testing.T) {
	r := newRig(t)
	r.add("a")
	rec, err := r.store.Get(key("a"))
	if err != nil {
		t.Fatal(err)
	}
	if err := r.Records("blue").Put(t.Context(), rec); err == nil {
		t.Error("network blue wrote a record of network red")
	}
	rec.Network = "blue."
	if err := r.Records("blue").Put(t.Context(), rec); err == nil {
		t.Error("network blue took over an attachment of network red")
	}
	r.kernel.mu.Lock()
	r.kernel.made[key("stray")] = "blue"
	r.kernel.mu.Unlock()
	r.Records("blue").Reap(attach.Record{Network: "blue", ContainerID: "stray", IfName: "eth0"})
	r.gone("stray")
}

// TestConcurrent: requests for one attachment run one after the other, and in the end nothing is left.
func TestConcurrent(t *testing.T) {
	r := newRig(t)
	r.placed["b"] = placement.Decision{Network: "blue"}
	var group sync.WaitGroup
	for range 8 {
		for _, container := range []string{"a", "b", "c"} {
			group.Go(func() {
				for range 20 {
					_, _ = r.Add(t.Context(), request(cni.CommandAdd, container))
					_ = r.Del(t.Context(), request(cni.CommandDel, container))
				}
			})
		}
	}
	group.Wait()
	for _, container := range []string{"a", "b", "c"} {
		r.del(container)
		r.gone(container)
	}
	if !maps.Equal(r.kernel.open, map[attach.Key]bool{}) || len(r.store.InUse().Claims) != 0 {
		t.Errorf("left: %v, %v", r.kernel.open, r.store.InUse().Claims)
	}
}

func TestNothingIsServedYet(t *testing.T) {
	store, err := attach.Open(filepath.Join(t.TempDir(), "attachments"))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = store.Close() }()
	h := lifecycle.New(store, lifecycle.Options{
		BootID: boot, Default: func() (string, error) { return "", nil }, Waiting: func() string { return "waiting for the network" },
		Place: func(context.Context, *cni.Request) (placement.Decision, error) {
			return placement.Decision{Network: "red"}, nil
		},
	})
	for command, call := range map[cni.Command]func() error{
		cni.CommandAdd:    func() error { _, err := h.Add(t.Context(), request(cni.CommandAdd, "a")); return err },
		cni.CommandDel:    func() error { return h.Del(t.Context(), request(cni.CommandDel, "a")) },
		cni.CommandCheck:  func() error { return h.Check(t.Context(), request(cni.CommandCheck, "a")) },
		cni.CommandStatus: func() error { return h.Status(t.Context(), request(cni.CommandStatus, "")) },
		cni.CommandGC:     func() error { return h.GC(t.Context(), request(cni.CommandGC, "")) },
	} {
		code := cni.CodeTryAgainLater
		if command == cni.CommandStatus {
			code = cni.CodeNotAvailable
		}
		wantCode(t, call(), code, "waiting for the network")
	}
}

// An unreadable record is kept until its attachment is deleted, and is then removed.
func TestDelRemovesABrokenRecord(t *testing.T) {
	r := newRig(t)
	r.add("a")
	names, err := filepath.Glob(filepath.Join(r.dir, "*.json"))
	if err != nil || len(names) != 1 {
		t.Fatal(names, err)
	}
	if err := os.WriteFile(names[0], []byte("{"), 0o600); err != nil {
		t.Fatal(err)
	}
	r.restart()
	close(r.handed)
	if broken := r.store.Broken(); len(broken) != 1 {
		t.Fatalf("broken: %v", broken)
	}
	r.del("a")
	if broken := r.store.Broken(); len(broken) != 0 {
		t.Errorf("after DEL: %v", broken)
	}
}
