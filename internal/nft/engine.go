package nft

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"regexp"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"

	"golang.org/x/sync/errgroup"
	"golang.org/x/sys/unix"
	"sigs.k8s.io/knftables"

	"weft.dev/weft/internal/reconcile"
)

// Options of an Engine.
type Options struct {
	// Netns is the path of the network namespace whose tables are programmed; "" is the one the caller of NewEngine is in.
	Netns string
	// Tables are Weft's tables, in care from the start: one that exists and is not desired is read, and thereby found.
	// Tables named in commits are in care as well.
	Tables []Table
	// Unmanaged are chains within Tables whose rules are somebody else's. They are made when they are desired, empty, and
	// from then on nothing in them is read, changed or removed; a ChainRules item for one is refused. What somebody puts
	// beside them under their name and a hyphen ("<chain>-..."; chains, sets and maps) is left alone as well. They go only
	// with their table. The zero value: everything in Tables is the engine's.
	Unmanaged []Chain
	// Foreign also reads the rules that carry Mark in the base chains of other tables; a commit of a ForeignJump turns it on.
	Foreign bool
}

// Engine programs nftables by way of nft(8). The methods of reconcile.Engine are not called concurrently; Monitor runs
// beside them.
type Engine struct {
	netns   *os.File
	path    string
	foreign atomic.Bool
	shared  listings
	// unmanaged are the keys of Options.Unmanaged. It is not changed.
	unmanaged unmanaged

	mutex  sync.Mutex
	tables map[tableKey]bool // in care
	own    []*ownChange      // the last ones, the latest at the end

	// known is what stood in the kernel after the last Read or Commit; nil before the first.
	known   map[Key]Item
	records map[tableKey]map[string]record
	// builder makes transactions; nil before the first.
	builder knftables.Interface
}

// tableKey names a table.
type tableKey struct {
	family Family
	name   string
}

func (k Key) table() tableKey { return tableKey{k.Family, k.Table} }

var _ reconcile.Engine[Key, Item] = (*Engine)(nil)

// NewEngine returns an engine. It fails when there is no nft, or no such namespace. An nft that does not work fails each Read and Commit.
func NewEngine(options Options) (*Engine, error) {
	e := &Engine{
		tables: map[tableKey]bool{}, records: map[tableKey]map[string]record{}, unmanaged: newUnmanaged(options.Unmanaged),
	}
	e.foreign.Store(options.Foreign)
	for _, table := range options.Tables {
		e.tables[table.Key().table()] = true
	}
	var err error
	if e.netns, err = openNamespace(options.Netns); err != nil {
		return nil, fmt.Errorf("nft engine: network namespace: %w", err)
	}
	if e.path, err = exec.LookPath("nft"); err != nil {
		return nil, fmt.Errorf("nft engine: %w", errors.Join(err, e.netns.Close()))
	}
	return e, nil
}

// transaction returns an empty transaction. Before the first, it asks nft for its version.
func (e *Engine) transaction() (*knftables.Transaction, error) {
	if e.builder == nil {
		err := e.inside(func() (err error) {
			e.builder, err = knftables.New("", "", knftables.EmulateDestroy)
			return err
		})
		if err != nil {
			e.builder = nil
			return nil, fmt.Errorf("nft engine: %w", err)
		}
	}
	return e.builder.NewTransaction(), nil
}

// openNamespace opens the network namespace at path; "" is the calling thread's. The path is judged by its file system before
// it is opened, so that no pipe or device is.
func openNamespace(path string) (*os.File, error) {
	if path == "" {
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		return os.Open("/proc/thread-self/ns/net")
	}
	look, err := os.OpenFile(path, unix.O_PATH|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, err
	}
	defer func() { _ = look.Close() }() // it was only looked at
	var stat unix.Statfs_t
	if err := unix.Fstatfs(int(look.Fd()), &stat); err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	if stat.Type != unix.NSFS_MAGIC {
		return nil, fmt.Errorf("%s is not a network namespace", path)
	}
	return os.Open("/proc/thread-self/fd/" + strconv.Itoa(int(look.Fd())))
}

// Close releases what the engine holds open. Nothing programmed is changed.
func (e *Engine) Close() { _ = e.netns.Close() } // there is nothing to be done about it

func (e *Engine) tablesInCare() []tableKey {
	e.mutex.Lock()
	defer e.mutex.Unlock()
	return slices.SortedFunc(maps.Keys(e.tables), func(a, b tableKey) int {
		return strings.Compare(string(a.family)+" "+a.name, string(b.family)+" "+b.name)
	})
}

func (e *Engine) take(key tableKey) {
	e.mutex.Lock()
	defer e.mutex.Unlock()
	e.tables[key] = true
}

func (e *Engine) cares(key tableKey) bool {
	e.mutex.Lock()
	defer e.mutex.Unlock()
	return e.tables[key]
}

// inside runs work on a thread that is in the engine's namespace; processes that it starts are too.
func (e *Engine) inside(work func() error) error {
	done := make(chan error, 1)
	go func() {
		runtime.LockOSThread()
		before, err := os.Open("/proc/thread-self/ns/net")
		if err != nil {
			runtime.UnlockOSThread()
			done <- fmt.Errorf("opening the thread's network namespace: %w", err)
			return
		}
		defer func() { _ = before.Close() }() // it was only looked at
		// Entering a namespace takes CAP_SYS_ADMIN, also the one that the thread is in: a daemon of the node's own namespace works without.
		if sameFile(before, e.netns) {
			done <- work()
			runtime.UnlockOSThread()
			return
		}
		if err = unix.Setns(int(e.netns.Fd()), unix.CLONE_NEWNET); err == nil {
			err = work()
		}
		// A thread that cannot go back stays locked, and ends with this goroutine.
		if unix.Setns(int(before.Fd()), unix.CLONE_NEWNET) == nil {
			runtime.UnlockOSThread()
		}
		done <- err
	}()
	return <-done
}

// sameFile reports whether two files are one, such as the files of one namespace.
func sameFile(a, b *os.File) bool {
	one, err := a.Stat()
	other, wrong := b.Stat()
	return err == nil && wrong == nil && os.SameFile(one, other)
}

// run asks nft in the namespace. What changes something goes by change.
func (e *Engine) run(ctx context.Context, args ...string) ([]byte, error) {
	return e.runNoted(ctx, func(int) {}, "", args...)
}

// runNoted runs nft in the namespace and has its pid noted, under the mutex, before anybody can look for it there.
func (e *Engine) runNoted(ctx context.Context, started func(pid int), input string, args ...string) ([]byte, error) {
	var out, words bytes.Buffer
	err := e.inside(func() error {
		command := exec.CommandContext(ctx, e.path, args...)
		command.Stdin, command.Stdout, command.Stderr = strings.NewReader(input), &out, &words
		command.Env = append(os.Environ(), "LC_ALL=C")
		// The lock is held until the process is known: its events come after that.
		e.mutex.Lock()
		err := command.Start()
		if err == nil {
			started(command.Process.Pid)
		}
		e.mutex.Unlock()
		if err != nil {
			return err
		}
		return command.Wait()
	})
	if err == nil {
		return out.Bytes(), nil
	}
	var exit *exec.ExitError
	if ctx.Err() == nil && errors.As(err, &exit) {
		return nil, parseError(words.String())
	}
	return nil, fmt.Errorf("running nft: %w", errors.Join(err, ctx.Err()))
}

// nftError is what nft said.
type nftError struct {
	words string
	line  int // of the input, from 1; 0 when unknown
	key   Key // of the item that the line is about, in a transaction
}

//nolint:gochecknoglobals // a constant pattern
var errorPattern = regexp.MustCompile(`(?m)^(?:/dev/stdin:(\d+):\d+-\d+: )?Error: (.*)$`)

// parseError reads nft's messages: "/dev/stdin:2:17-23: Error: words", the line, and carets under it.
func parseError(text string) *nftError {
	match := errorPattern.FindStringSubmatch(text)
	if match == nil {
		return &nftError{words: strings.TrimSpace(text)}
	}
	line, _ := strconv.Atoi(match[1])
	return &nftError{words: match[2], line: line}
}

// Error implements error.
func (e *nftError) Error() string { return "nft: " + e.words }

// Unwrap lets errors.Is find ErrRefused, and ErrMissing where that is why.
func (e *nftError) Unwrap() []error {
	if strings.Contains(e.words, "No such file or directory") {
		return []error{ErrRefused, ErrMissing}
	}
	return []error{ErrRefused}
}

// Read implements reconcile.Engine. It lists everything at the same time: each listing is a process, and a start waits for all of them.
func (e *Engine) Read(ctx context.Context) (map[Key]Item, error) {
	tables := e.tablesInCare()
	listings := make([]*listing, len(tables))
	foreign := map[Key]Item{}
	group, groupCtx := errgroup.WithContext(ctx)
	for i, table := range tables {
		group.Go(func() error {
			found, err := e.list(groupCtx, table)
			if errors.Is(err, ErrMissing) {
				return nil
			}
			if err != nil {
				return fmt.Errorf("reading table %s %s: %w", table.family, table.name, err)
			}
			listings[i] = found
			return nil
		})
	}
	if e.foreign.Load() {
		group.Go(func() error {
			if err := e.readForeign(groupCtx, foreign); err != nil {
				return fmt.Errorf("reading foreign chains: %w", err)
			}
			return nil
		})
	}
	if err := group.Wait(); err != nil {
		return nil, err
	}
	state := foreign
	records := map[tableKey]map[string]record{}
	for i, table := range tables {
		if listings[i] != nil {
			records[table] = listings[i].records()
			maps.Copy(state, e.unmanaged.leaveOut(listings[i].items()))
		}
	}
	e.known, e.records = maps.Clone(state), records
	return state, nil
}

// list reads a table both ways at the same time: JSON for the objects, text for the rules, their order and what JSON leaves out.
func (e *Engine) list(ctx context.Context, table tableKey) (*listing, error) {
	found := &listing{table: table}
	group, ctx := errgroup.WithContext(ctx)
	group.Go(func() error {
		structured, err := e.ask(ctx, "-j", "list", "table", string(table.family), table.name)
		if err == nil {
			found.objects, err = parseObjects(structured)
		}
		return err
	})
	group.Go(func() (err error) {
		var text []byte
		if text, err = e.ask(ctx, textListing(table)...); err == nil {
			found.blocks = parseBlocks(string(text))
		}
		return err
	})
	if err := group.Wait(); err != nil {
		return nil, err
	}
	return found, nil
}

// textListing asks for a table without counters' values and sets' elements, with numbers for names.
func textListing(table tableKey) []string {
	return []string{"-s", "-t", "-n", "list", "table", string(table.family), table.name}
}

// listText lists a table as textListing says.
func (e *Engine) listText(ctx context.Context, table tableKey) (map[blockKey][]string, error) {
	text, err := e.run(ctx, textListing(table)...)
	if err != nil {
		return nil, err
	}
	return parseBlocks(string(text)), nil
}
