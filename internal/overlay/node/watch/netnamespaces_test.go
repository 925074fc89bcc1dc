package watch

import (
	"context"
	"errors"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	toolscache "k8s.io/client-go/tools/cache"
	fakesource "k8s.io/client-go/tools/cache/testing"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"

	networkv1 "weft.dev/weft/api/openshift/v1"
)

// watchedNetNamespaces is a cache with a real informer, which lists and watches a source in memory.
type watchedNetNamespaces struct {
	cache.Cache
	source  *fakesource.FakeControllerSource
	running toolscache.SharedIndexInformer
	stop    context.CancelFunc
	silent  bool // it lists nothing
}

func (w *watchedNetNamespaces) GetInformer(ctx context.Context, _ client.Object, _ ...cache.InformerGetOption) (cache.Informer, error) {
	if w.running == nil {
		w.running = toolscache.NewSharedIndexInformer(w.source, &networkv1.NetNamespace{}, 0, toolscache.Indexers{})
		ctx, w.stop = context.WithCancel(context.WithoutCancel(ctx))
		if !w.silent {
			go w.running.RunWithContext(ctx)
		}
	}
	return w.running, nil
}

func (w *watchedNetNamespaces) RemoveInformer(context.Context, client.Object) error {
	w.stop()
	w.running = nil
	return nil
}

// patience bounds the waits of tests.
const patience = 20 * time.Second

// listener receives the names that are reported.
type listener chan string

func (f listener) note(at Change) { f <- at.Key }

func (f listener) want(t *testing.T, names ...string) {
	t.Helper()
	for len(names) > 0 {
		select {
		case name := <-f:
			if !slices.Contains(names, name) {
				t.Fatalf("reported %s, want %s", name, names)
			}
			names = slices.DeleteFunc(names, func(n string) bool { return n == name })
		case <-time.After(patience):
			t.Fatalf("%s not reported", names)
		}
	}
}

// An agent that starts waits for the first list, and does not report that its node is out of step. Without a list, it does.
func TestBeginWaitsForTheFirstList(t *testing.T) {
	for _, silent := range []bool{false, true} {
		objects := &watchedNetNamespaces{source: fakesource.NewFakeControllerSource(), silent: silent}
		objects.source.Add(&networkv1.NetNamespace{ObjectMeta: metav1.ObjectMeta{Name: "a"}, NetName: "a"})
		f := NewFollower(New(objects, NewMarks()), func() {})
		if err := f.Begin(t.Context()); silent != errors.Is(err, ErrUnread) {
			t.Errorf("without a list %t: %v", silent, err)
		}
		if dirty, ok := f.take(); ok == silent || len(dirty) != map[bool]int{false: 1}[silent] {
			t.Errorf("without a list %t: taken are %v, %t", silent, dirty, ok)
		}
		if _, err := f.End(t.Context()); err != nil {
			t.Error(err)
		}
	}
}

// While a step is in progress, changes are noted, and the watch does not end. Without a watch, no step processes anything.
func TestEndWaitsForTheStep(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		objects := &watchedNetNamespaces{source: fakesource.NewFakeControllerSource()}
		defer objects.source.Shutdown()
		f := NewFollower(New(objects, NewMarks()), func() {})
		if err := f.Begin(t.Context()); err != nil {
			t.Fatal(err)
		}
		release, results := make(chan struct{}), make(chan error, 2)
		go func() {
			results <- f.Step(t.Context(), func(context.Context, map[string]struct{}) error {
				<-release
				return nil
			})
		}()
		synctest.Wait()
		f.Between(func() { t.Error("a step is in progress, and it is between two") })
		objects.source.Add(&networkv1.NetNamespace{ObjectMeta: metav1.ObjectMeta{Name: "a"}, NetName: "a"})
		synctest.Wait()
		select {
		case <-f.Wake():
		default:
			t.Error("a change waits for the step")
		}
		go func() {
			_, err := f.End(t.Context())
			results <- err
		}()
		synctest.Wait()
		if objects.running == nil {
			t.Error("the watch ended during a step")
		}
		close(release)
		for range 2 {
			if err := <-results; err != nil {
				t.Error(err)
			}
		}
		if objects.running != nil {
			t.Error("the watch has not ended")
		}
		if err := f.Step(t.Context(), func(context.Context, map[string]struct{}) error {
			t.Error("a step without a watch")
			return nil
		}); err != nil {
			t.Error(err)
		}
		between := false
		if f.Between(func() { between = true }); !between {
			t.Error("no step is in progress, and it is not between two")
		}
	})
}

// Each follower of NetNamespaces is notified of all objects and of their changes until it unfollows, independently of other followers. The
// watch ends with the last follower, and starts again with the next.
func TestNetNamespacesHaveFollowers(t *testing.T) {
	objects := &watchedNetNamespaces{source: fakesource.NewFakeControllerSource()}
	named := func(name string) *networkv1.NetNamespace {
		return &networkv1.NetNamespace{ObjectMeta: metav1.ObjectMeta{Name: name}, NetName: name}
	}
	objects.source.Add(named("a"))
	w := &NetNamespaces{cache: objects}
	one, two := make(listener, 10), make(listener, 10)
	first, err := w.Follow(t.Context(), one.note, nil)
	if err != nil {
		t.Fatal(err)
	}
	one.want(t, "a")
	second, err := w.Follow(t.Context(), two.note, nil)
	if err != nil {
		t.Fatal(err)
	}
	two.want(t, "a")
	objects.source.Add(named("b"))
	one.want(t, "b")
	two.want(t, "b")
	if err := w.Unfollow(t.Context(), first); err != nil {
		t.Fatal(err)
	}
	objects.source.Delete(named("b"))
	two.want(t, "b")
	if len(one) > 0 {
		t.Errorf("a follower that has ended gets %s", <-one)
	}
	if objects.running == nil {
		t.Error("the watch ended with the first of two")
	}
	if err := w.Unfollow(t.Context(), second); err != nil {
		t.Fatal(err)
	}
	if objects.running != nil {
		t.Error("the watch runs without a follower")
	}
	objects.source.Add(named("c"))
	third, err := w.Follow(t.Context(), one.note, nil)
	if err != nil {
		t.Fatal(err)
	}
	one.want(t, "a", "c")
	if err := w.Unfollow(t.Context(), third); err != nil {
		t.Fatal(err)
	}
}

// Followers are notified of changes of what a NetNamespace requests, and not of changes of its status.
func TestNetNamespaceFollowersGetTheirNamespaces(t *testing.T) {
	objects := &watchedNetNamespaces{source: fakesource.NewFakeControllerSource()}
	object := networkv1.NetNamespace{ObjectMeta: metav1.ObjectMeta{Name: "a", UID: "1"}, NetName: "a", NetID: 10}
	objects.source.Add(object.DeepCopy())
	w := &NetNamespaces{cache: objects}
	reported := make(listener, 10)
	passed := make(listener, 10)
	registration, err := w.Follow(t.Context(), reported.note, passed.note)
	if err != nil {
		t.Fatal(err)
	}
	reported.want(t, "a")
	for _, change := range []func(*networkv1.NetNamespace){
		func(nn *networkv1.NetNamespace) { nn.NetID = 11 },
		func(nn *networkv1.NetNamespace) { nn.NetName = "b" },
		func(nn *networkv1.NetNamespace) { nn.EgressIPs = []string{"192.0.2.100"} },
		func(nn *networkv1.NetNamespace) {
			nn.Annotations = map[string]string{"netnamespace.network.openshift.io/multicast-enabled": "true"}
		},
		func(nn *networkv1.NetNamespace) { nn.UID = "2" },
	} {
		object.Status.Conditions = append(object.Status.Conditions, metav1.Condition{Type: networkv1.ConditionEgressIPsInUse})
		objects.source.Modify(object.DeepCopy())
		change(&object)
		objects.source.Modify(object.DeepCopy())
		reported.want(t, "a")
	}
	objects.source.Delete(object.DeepCopy())
	reported.want(t, "a")
	if len(reported) > 0 {
		t.Errorf("a change of the status was reported %d times", len(reported))
	}
	passed.want(t, "a")
	if err := w.Unfollow(t.Context(), registration); err != nil {
		t.Fatal(err)
	}
}
