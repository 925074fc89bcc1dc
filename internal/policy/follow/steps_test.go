package follow

import (
	"context"
	"errors"
	"maps"
	"reflect"
	"slices"
	"strings"
	"testing"
	"testing/synctest"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	toolscache "k8s.io/client-go/tools/cache"
	fakesource "k8s.io/client-go/tools/cache/testing"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"

	"weft.dev/weft/internal/policy"
	"weft.dev/weft/internal/policy/enforcer"
)

// watched is a cache with real informers, which list and watch sources in memory. Its reads are of a client with the same objects.
type watched struct {
	cache.Cache
	from    client.Client
	sources map[reflect.Type]*fakesource.FakeControllerSource
	stops   map[reflect.Type]context.CancelFunc
	running map[reflect.Type]toolscache.SharedIndexInformer
	// refuse is the error of all reads; nil: they succeed.
	refuse error
}

func newWatched(t *testing.T, objects ...client.Object) *watched {
	t.Helper()
	w := &watched{
		from: fake.NewClientBuilder().Build(), sources: map[reflect.Type]*fakesource.FakeControllerSource{},
		stops: map[reflect.Type]context.CancelFunc{}, running: map[reflect.Type]toolscache.SharedIndexInformer{},
	}
	for _, kind := range Kinds() {
		w.sources[reflect.TypeOf(kind)] = fakesource.NewFakeControllerSource()
	}
	for _, object := range objects {
		w.add(t, object)
	}
	return w
}

func (w *watched) add(t *testing.T, object client.Object) {
	t.Helper()
	if err := w.from.Create(t.Context(), object); err != nil {
		t.Fatal(err)
	}
	w.sources[reflect.TypeOf(object)].Add(object)
}

// end ends what the test has left running.
func (w *watched) end() {
	for _, stop := range w.stops {
		stop()
	}
	for _, source := range w.sources {
		source.Shutdown()
	}
}

func (w *watched) GetInformer(ctx context.Context, kind client.Object, _ ...cache.InformerGetOption) (cache.Informer, error) {
	of := reflect.TypeOf(kind)
	if w.running[of] == nil {
		ctx, stop := context.WithCancel(context.WithoutCancel(ctx))
		w.running[of], w.stops[of] = toolscache.NewSharedIndexInformer(w.sources[of], kind, 0, toolscache.Indexers{}), stop
		go w.running[of].RunWithContext(ctx)
	}
	return w.running[of], nil
}

func (w *watched) RemoveInformer(_ context.Context, kind client.Object) error {
	of := reflect.TypeOf(kind)
	w.stops[of]()
	delete(w.running, of)
	return nil
}

func (w *watched) Get(ctx context.Context, key client.ObjectKey, into client.Object, _ ...client.GetOption) error {
	if w.refuse != nil {
		return w.refuse
	}
	return w.from.Get(ctx, key, into)
}

// taker is a network that takes changes, and answers each when the test allows it.
type taker struct {
	taken  []string
	answer chan error
}

func (n *taker) update(ctx context.Context, change enforcer.Change) error {
	var names []string
	for key := range change.Pods {
		names = append(names, key.String())
	}
	names = append(names, slices.Collect(maps.Keys(change.Namespaces))...)
	for key := range change.Policies {
		names = append(names, key.String())
	}
	slices.Sort(names)
	if change.Reset {
		names = append([]string{"all:"}, names...)
	}
	n.taken = append(n.taken, strings.Join(names, " "))
	select {
	case err := <-n.answer:
		return err
	case <-ctx.Done():
		return ctx.Err()
	}
}

// begin calls do in the background, and returns once it waits or has ended.
func begin(do func() error) <-chan error {
	done := make(chan error, 1)
	go func() { done <- do() }()
	synctest.Wait()
	return done
}

func ended(t *testing.T, what string, done <-chan error, want error) {
	t.Helper()
	synctest.Wait()
	select {
	case err := <-done:
		if !errors.Is(err, want) {
			t.Errorf("%s: %v, want %v", what, err, want)
		}
	default:
		t.Fatalf("%s waits", what)
	}
}

func named(name string) metav1.ObjectMeta { return metav1.ObjectMeta{Namespace: "shop", Name: name} }

// While the network hangs, changes are noted and read, and callers that do not need its answer do not wait for it. The watches end after it.
func TestStepThatHangs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		objects := newWatched(t, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "shop"}}, &networkingv1.NetworkPolicy{ObjectMeta: named("deny")})
		defer objects.end()
		p, network := New(objects, nil), &taker{answer: make(chan error)}
		step := func(ctx context.Context) func() error {
			return func() error { return p.Step(ctx, network.update) }
		}
		if err := p.Step(t.Context(), network.update); err != nil || len(network.taken) > 0 {
			t.Errorf("before Enter, a step: %v, %q", err, network.taken)
		}
		if err := p.Enter(t.Context()); err != nil {
			t.Fatal(err)
		}
		<-p.Wake()
		hanging := begin(step(t.Context()))
		objects.add(t, &corev1.Pod{ObjectMeta: named("web")})
		synctest.Wait()
		select {
		case <-p.Wake():
		default:
			t.Error("a change waits for the step")
		}
		ended(t, "Enter", begin(func() error { return p.Enter(t.Context()) }), nil)
		if p.Policy(t.Context(), policy.Key{Namespace: "shop", Name: "deny"}) == nil {
			t.Error("the policy is not read")
		}
		impatient, giveUp := context.WithCancel(t.Context())
		second, third := begin(step(impatient)), begin(step(t.Context()))
		giveUp()
		ended(t, "a step whose caller gives up", second, context.Canceled)
		network.answer <- nil
		ended(t, "the first step", hanging, nil)
		forgetting := begin(func() error {
			p.Forget()
			return nil
		})
		ended(t, "Forget", forgetting, nil)
		leaving := begin(func() error { return p.Leave(t.Context()) })
		if len(objects.running) != len(Kinds()) {
			t.Error("watches ended during a step")
		}
		refused := errors.New("not in effect")
		network.answer <- refused
		ended(t, "a step that is refused", third, refused)
		ended(t, "Leave", leaving, nil)
		if len(objects.running) > 0 {
			t.Error("watches have not ended")
		}
		if err := p.Step(t.Context(), network.update); err != nil {
			t.Error(err)
		}
		if want := []string{"all: shop shop/deny", "shop/web"}; !slices.Equal(network.taken, want) {
			t.Errorf("the network took %q, want %q", network.taken, want)
		}
	})
}

// The network gets all objects whenever it has discarded its own, and after a step that could not read them.
func TestNetworkGetsAllObjects(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		objects := newWatched(t, &corev1.Pod{ObjectMeta: named("db")}, &corev1.Pod{ObjectMeta: named("web")})
		defer objects.end()
		p, network := New(objects, nil), &taker{answer: make(chan error, 10)}
		step := func() {
			t.Helper()
			network.answer <- nil
			if err := p.Enter(t.Context()); err != nil {
				t.Fatal(err)
			}
			if err := p.Step(t.Context(), network.update); err != nil {
				t.Error(err)
			}
		}
		if err := p.Enter(t.Context()); err != nil {
			t.Fatal(err)
		}
		objects.refuse = errors.New("not readable")
		if err := p.Step(t.Context(), network.update); !errors.Is(err, objects.refuse) {
			t.Error(err)
		}
		objects.refuse = nil
		step()
		p.Forget()
		if err := p.Leave(t.Context()); err != nil {
			t.Fatal(err)
		}
		step()
		p.Forget() // and the network fails to enter the other mode
		step()
		step()
		if want := []string{"all: shop/db shop/web", "all: shop/db shop/web", "all: shop/db shop/web", ""}; !slices.Equal(network.taken, want) {
			t.Errorf("the network took %q, want %q", network.taken, want)
		}
	})
}
