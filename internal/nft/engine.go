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

	"weft.dev/weft/internal/nft/nfnetlink"
	"weft.dev/weft/internal/reconcile"
)

// Options of an Engine.
type Options struct {
	// Netns is the path of the network namespace whose tables are programmed; "" is that of the caller of NewEngine.
	Netns string
	// Tables are Weft's tables, managed from the start: a table that exists and is not desired is read, and so found. Tables named in commits
	// are managed as well.
	Tables []Table
	// Unmanaged are chains within Tables whose rules another program or the administrator writes. They are created empty when they are
	// desired; from then on nothing in them is read, changed or removed, and a ChainRules item for one is rejected. Chains, sets and maps
	// whose name is that of the chain with a hyphen appended ("<chain>-...") are left alone as well. They are removed only with their table.
	// The zero value: the engine manages everything in Tables.
	Unmanaged []Chain
	// Apart are tables of Weft that other engines manage. A survey does not examine them, and no rule is added to their chains.
	Apart []Table
	// Foreign also reads the rules with Mark in the base chains of other tables; a commit of a ForeignJump turns it on.
	Foreign bool
}

// Engine programs nftables with nft(8). The methods of reconcile.Engine are not called concurrently; Monitor runs concurrently with them.
type Engine struct {
	netns   *os.File
	path    string
	foreign atomic.Bool
	shared  listings
	// unmanaged are the keys of Options.Unmanaged, apart those of Options.Apart. They do not change.
	unmanaged unmanaged
	apart     map[tableKey]bool

	mutex  sync.Mutex
	tables map[tableKey]bool // managed
	own    []*ownChange      // the most recent ones, the latest at the end

	// known is the kernel's state after the last Read or Commit; nil before the first.
	known   map[Key]Item
	records map[tableKey]map[string]record
	// builder builds transactions; nil before the first.
	builder knftables.Interface
}

// tableKey names a table.
type tableKey struct {
	family Family
	name   string
}

func (k Key) table() tableKey { return tableKey{k.Family, k.Table} }

var _ reconcile.Engine[Key, Item] = (*Engine)(nil)

// NewEngine returns an engine. It fails if there is no nft, or no such namespace. If nft does not work, each Read and Commit fails.
func NewEngine(options Options) (*Engine, error) {
	e := &Engine{
		tables: map[tableKey]bool{}, records: map[tableKey]map[string]record{}, unmanaged: newUnmanaged(options.Unmanaged),
		apart: map[tableKey]bool{},
	}
	e.foreign.Store(options.Foreign)
	for _, table := range options.Tables {
		e.tables[table.Key().table()] = true
	}
	for _, table := range options.Apart {
		e.apart[table.Key().table()] = true
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

// transaction returns an empty transaction. Before the first one, it reads nft's version.
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

// openNamespace opens the network namespace at path; "" is the calling thread's. It checks the path's file system first, so that it never
// opens a pipe or device.
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
	defer func() { _ = look.Close() }() // nothing was written
	var stat unix.Statfs_t
	if err := unix.Fstatfs(int(look.Fd()), &stat); err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	if stat.Type != unix.NSFS_MAGIC {
		return nil, fmt.Errorf("%s is not a network namespace", path)
	}
	return os.Open("/proc/thread-self/fd/" + strconv.Itoa(int(look.Fd())))
}

// Close releases the engine's resources. What is programmed stays.
func (e *Engine) Close() { _ = e.netns.Close() } // an error has no consequence

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

// inside runs work on a thread in the engine's namespace; processes that it starts are in it too.
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
		defer func() { _ = before.Close() }() // nothing was written
		// Entering a namespace needs CAP_SYS_ADMIN, even for the thread's current one: without this check, a daemon in the node's namespace would
		// need it too.
		if sameFile(before, e.netns) {
			done <- work()
			runtime.UnlockOSThread()
			return
		}
		if err = unix.Setns(int(e.netns.Fd()), unix.CLONE_NEWNET); err == nil {
			err = work()
		}
		// A thread that cannot return stays locked, and ends with this goroutine.
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

// run runs nft in the namespace, for reading. Changes are made by change.
func (e *Engine) run(ctx context.Context, args ...string) ([]byte, error) {
	return e.runNoted(ctx, func(int) {}, "", args...)
}

// runNoted runs nft in the namespace and calls started with its pid, under the mutex, before another goroutine can look for the pid.
func (e *Engine) runNoted(ctx context.Context, started func(pid int), input string, args ...string) ([]byte, error) {
	var out, words bytes.Buffer
	err := e.inside(func() error {
		command := exec.CommandContext(ctx, e.path, args...)
		command.Stdin, command.Stdout, command.Stderr = strings.NewReader(input), &out, &words
		command.Env = append(os.Environ(), "LC_ALL=C")
		// The lock is held until the pid is recorded: its events come after that.
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

// nftError is an error message of nft.
type nftError struct {
	words string
	line  int // of the input, from 1; 0 when unknown
	key   Key // of the item on that line, in a transaction
}

//nolint:gochecknoglobals // a constant pattern
var errorPattern = regexp.MustCompile(`(?m)^(?:/dev/stdin:(\d+):\d+-\d+: )?Error: (.*)$`)

// parseError parses nft's messages: "/dev/stdin:2:17-23: Error: words", the line, and carets under it.
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

// Unwrap lets errors.Is find ErrRefused, and ErrMissing if that is the reason.
func (e *nftError) Unwrap() []error {
	if strings.Contains(e.words, "No such file or directory") {
		return []error{ErrRefused, ErrMissing}
	}
	return []error{ErrRefused}
}

// Read implements reconcile.Engine. It lists everything concurrently: each listing is a process, and a start waits for all of them. The
// first Read also prepares the first commit, by a transaction that is only checked: the kernel takes tens of milliseconds to abort it.
func (e *Engine) Read(ctx context.Context) (map[Key]Item, error) {
	var all []nfnetlink.Table
	err := e.inside(func() (err error) {
		all, err = nfnetlink.Tables()
		return err
	})
	if err != nil {
		return nil, err
	}
	tables := slices.DeleteFunc(e.tablesInCare(), func(key tableKey) bool { // no process is started for a table that does not exist
		return !slices.ContainsFunc(all, func(t nfnetlink.Table) bool { return tableKey{familyOf(t.Family), t.Name} == key })
	})
	listings := make([]*listing, len(tables))
	foreign := map[Key]Item{}
	group, groupCtx := errgroup.WithContext(ctx)
	group.Go(func() error { _, err := e.transaction(); return err })
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

// list reads a table in both formats concurrently: JSON for the objects, text for the rules, their order and what JSON omits.
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

// textListing returns nft's arguments that list a table without counters' values and sets' elements, with numbers for names.
func textListing(table tableKey) []string {
	return []string{"-s", "-t", "-n", "list", "table", string(table.family), table.name}
}

// listText lists a table with textListing.
func (e *Engine) listText(ctx context.Context, table tableKey) (map[blockKey][]string, error) {
	text, err := e.run(ctx, textListing(table)...)
	if err != nil {
		return nil, err
	}
	return parseBlocks(string(text)), nil
}
