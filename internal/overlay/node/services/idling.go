package services

import (
	"context"
	"fmt"
	"strconv"
	"strings"
	"sync"
	"time"

	"golang.org/x/time/rate"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"weft.dev/weft/internal/openflow"
	"weft.dev/weft/internal/overlay/pipeline/cookies"
	"weft.dev/weft/internal/service"
)

// reasonNeedPods is the reason of the event on which controllers of idled Services act.
const reasonNeedPods = "NeedPods"

const (
	// wakingTime is how long clients of a Service that is no longer idled wait for its first endpoint; then they are rejected. OpenShift SDN's
	// proxy held a connection for the same time.
	wakingTime = 120 * time.Second
	// needPodsRest is the interval within which a node does not repeat NeedPods for one idling of a Service.
	needPodsRest = 10 * time.Second
	// needPodsRate and needPodsBurst bound the NeedPods events of a node. An event beyond the limit is triggered again by the next packet.
	needPodsRate  = rate.Limit(10)
	needPodsBurst = 50
	// needPodsTimeout bounds one request to the API server.
	needPodsTimeout = 10 * time.Second
)

// idling tracks which Services are idled, and requests their pods when the switch reports a client.
type idling struct {
	limit *rate.Limiter
	asked chan idledService

	mu sync.Mutex
	// idled are the idled Services, by the cookie of their flows.
	idled map[uint64]*idledService
	// waking are the Services that were idled, with the time until which their clients wait for endpoints.
	waking map[types.NamespacedName]time.Time
}

// idledService is a Service that is idled.
type idledService struct {
	name types.NamespacedName
	uid  types.UID
	// at is the value of the annotation.
	at string
	// requested is when the pods were last requested.
	requested time.Time
}

func newIdling() *idling {
	return &idling{
		limit: rate.NewLimiter(needPodsRate, needPodsBurst), asked: make(chan idledService, needPodsBurst),
		idled: map[uint64]*idledService{}, waking: map[types.NamespacedName]time.Time{},
	}
}

func idlingCookie(name types.NamespacedName) uint64 {
	return cookies.Of(service.Owner(name.Namespace, name.Name))
}

// note records a Service's state. It reports whether the Service's clients wait for endpoints although it is no longer idled, and, if that
// has just begun, for how long they wait.
func (d *idling) note(object *corev1.Service, now time.Time) (waking bool, begins time.Duration) {
	name := types.NamespacedName{Namespace: object.Namespace, Name: object.Name}
	cookie := idlingCookie(name)
	at, idled := object.Annotations[service.AnnotationIdled]
	d.mu.Lock()
	defer d.mu.Unlock()
	was := d.idled[cookie]
	switch {
	case idled:
		delete(d.waking, name)
		if was == nil || was.uid != object.UID || was.at != at {
			d.idled[cookie] = &idledService{name: name, uid: object.UID, at: at}
		}
		return false, 0
	case was != nil && was.uid == object.UID:
		d.waking[name], begins = now.Add(wakingTime), wakingTime
	}
	delete(d.idled, cookie)
	until, waking := d.waking[name]
	if waking && !now.Before(until) {
		delete(d.waking, name)
		return false, 0
	}
	return waking, begins
}

// served ends the waiting for a Service that has endpoints.
func (d *idling) served(name types.NamespacedName) {
	d.mu.Lock()
	defer d.mu.Unlock()
	delete(d.waking, name)
}

// gone removes the state of a Service.
func (d *idling) gone(name types.NamespacedName) {
	d.mu.Lock()
	defer d.mu.Unlock()
	delete(d.waking, name)
	delete(d.idled, idlingCookie(name))
}

// packet handles a packet that the switch reports. It does not block.
func (d *idling) packet(in *openflow.PacketIn) {
	now := time.Now()
	d.mu.Lock()
	defer d.mu.Unlock()
	s := d.idled[in.Cookie]
	if s == nil || !s.requested.IsZero() && now.Sub(s.requested) < needPodsRest || !d.limit.Allow() {
		return
	}
	select {
	case d.asked <- *s:
		s.requested = now
	default:
	}
}

// wakeIdled creates the event NeedPods on each idled Service for which the switch reports a client.
func (s *Follower) wakeIdled(ctx context.Context) error {
	for {
		select {
		case <-ctx.Done():
			return nil
		case idled := <-s.idling.asked:
			if err := s.needPods(ctx, idled); err != nil {
				s.Log.Warn("event NeedPods not written; the next packet to the idled Service causes another", "service", idled.name.String(), "error", err)
			}
		}
	}
}

// needPods writes the event to which controllers of idled Services react. They select core/v1 events by their reason, and compare
// lastTimestamp with the annotation's time. (client-go's recorder of events.k8s.io/v1 leaves that field empty.)
func (s *Follower) needPods(ctx context.Context, idled idledService) error {
	ctx, cancel := context.WithTimeout(ctx, needPodsTimeout)
	defer cancel()
	_, err := s.Clients.CoreV1().Events(idled.name.Namespace).Create(ctx, needPodsEvent(idled, s.Node, time.Now()), metav1.CreateOptions{})
	if err != nil {
		return fmt.Errorf("event NeedPods on Service %s: %w", idled.name, err)
	}
	return nil
}

func needPodsEvent(s idledService, node string, now time.Time) *corev1.Event {
	const longest = 253 // for the name of an object
	number := "." + strconv.FormatInt(now.UnixNano(), 16)
	name := s.name.Name + "." + node
	if len(name) > longest-len(number) {
		name = strings.TrimRight(name[:longest-len(number)], ".-")
	}
	return &corev1.Event{
		ObjectMeta: metav1.ObjectMeta{Namespace: s.name.Namespace, Name: name + number},
		InvolvedObject: corev1.ObjectReference{
			Kind: "Service", APIVersion: "v1", Namespace: s.name.Namespace, Name: s.name.Name, UID: s.uid,
		},
		Reason: reasonNeedPods, Message: node + ": a client connects to the Service, which is idled since " + s.at, Type: corev1.EventTypeNormal,
		Source: corev1.EventSource{Component: "weft-agent", Host: node}, Count: 1,
		FirstTimestamp: metav1.NewTime(now), LastTimestamp: metav1.NewTime(now),
	}
}
