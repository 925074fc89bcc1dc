package faults

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"syscall"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"weft.dev/weft/lab"
	"weft.dev/weft/test/probe"
	"weft.dev/weft/test/soak/apifront"
	"weft.dev/weft/test/soak/losses"
	"weft.dev/weft/test/soak/overlay/program"
)

// apiFaults are the faults of the API server, or of the path to it.
func apiFaults() []Fault {
	front := func(name string, seen bool, how apifront.Answer) Fault {
		return Fault{Name: name, Spares: losses.All, Kills: []string{"weft-controller"}, Do: func(ctx context.Context, s *Scene, n lab.Node) (string, error) {
			return s.behindFront(ctx, n, how, seen)
		}}
	}
	return []Fault{
		front("API server slow: a second for each request", true, func(w http.ResponseWriter, r *http.Request, next http.Handler) {
			select {
			case <-time.After(time.Second):
				next.ServeHTTP(w, r)
			case <-r.Context().Done():
			}
		}),
		front("API server fails every request (500)", false, func(w http.ResponseWriter, _ *http.Request, _ http.Handler) {
			status(w, metav1.StatusReasonInternalError, http.StatusInternalServerError)
		}),
		front("API server rejects every request as too many (429)", false, func(w http.ResponseWriter, _ *http.Request, _ http.Handler) {
			w.Header().Set("Retry-After", "1")
			status(w, metav1.StatusReasonTooManyRequests, http.StatusTooManyRequests)
		}),
		front("API server forbids everything (403)", false, func(w http.ResponseWriter, _ *http.Request, _ http.Handler) {
			status(w, metav1.StatusReasonForbidden, http.StatusForbidden)
		}),
		front("watches refused as expired (410)", false, func(w http.ResponseWriter, r *http.Request, next http.Handler) {
			if r.URL.Query().Get("watch") == "true" {
				status(w, metav1.StatusReasonExpired, http.StatusGone)
				return
			}
			next.ServeHTTP(w, r)
		}),
		front("watches that expire after half a second", true, func(w http.ResponseWriter, r *http.Request, next http.Handler) {
			if r.URL.Query().Get("watch") != "true" {
				next.ServeHTTP(w, r)
				return
			}
			short, cancel := context.WithTimeout(r.Context(), 500*time.Millisecond)
			defer cancel()
			next.ServeHTTP(w, r.WithContext(short))
		}),
		front("API server answers garbage", false, func(w http.ResponseWriter, _ *http.Request, _ http.Handler) {
			w.Header().Set("Content-Type", "application/json")
			_, _ = w.Write([]byte(`{"kind":"List","items":[{"metadata":{"name":`)) // truncated on purpose
		}),
		front("API server never answers", false, func(_ http.ResponseWriter, r *http.Request, _ http.Handler) {
			<-r.Context().Done()
		}),
		{Name: "connections to the API server cut repeatedly", Spares: losses.All, Kills: []string{"weft-controller"}, Do: cutOver},
		{Name: "agent restarted while the API server is slow", Spares: losses.All, Kills: []string{"weft-controller", "n1/weft-agent"}, Do: restartSlow},
		{Name: "agent restarted while the API server fails", Spares: losses.All, Kills: []string{"weft-controller", "n1/weft-agent"}, Do: restartFailing},
	}
}

// status writes an error in the API server's form.
func status(w http.ResponseWriter, reason metav1.StatusReason, code int32) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(int(code))
	_ = json.NewEncoder(w).Encode(metav1.Status{ // a client that has closed the connection needs no answer
		TypeMeta: metav1.TypeMeta{Kind: "Status", APIVersion: "v1"},
		Status:   metav1.StatusFailure, Reason: reason, Code: code, Message: "so the soak has it",
	})
}

// frontTime is the minimum duration of an API server's fault.
const frontTime = 4 * time.Second

// behindFront adds a host while the API server answers with how, and adds and deletes pods. If seen, the host's flows must be programmed
// during the fault; else as soon as it is over.
func (s *Scene) behindFront(ctx context.Context, n lab.Node, how apifront.Answer, seen bool) (note string, err error) {
	f, err := apifront.Open(ctx, s.Cluster, how)
	if err != nil {
		return "", err
	}
	over := time.After(frontTime)
	open := true
	defer func() {
		if open {
			err = errors.Join(err, f.Close(ctx))
		}
	}()
	hosts, err := s.guestComes(ctx)
	if err != nil {
		return "", err
	}
	defer func() { err = errors.Join(err, guestGoes(ctx, hosts)) }()
	if err := s.Cast.Fresh(ctx, n.Name, "behind"); err != nil {
		return "", err
	}
	if seen {
		if err := s.guestSeen(ctx, n); err != nil {
			return "", err
		}
	}
	select {
	case <-over:
	case <-ctx.Done():
	}
	open = false
	if err := f.Close(ctx); err != nil {
		return "", err
	}
	begun := time.Now()
	if err := s.guestSeen(ctx, n); err != nil {
		return "", err
	}
	return "engines in step " + time.Since(begun).Round(time.Millisecond).String() + " after the fault was over", nil
}

// cutOver closes all connections ten times per second.
func cutOver(ctx context.Context, s *Scene, n lab.Node) (note string, err error) {
	f, err := apifront.Open(ctx, s.Cluster, func(w http.ResponseWriter, r *http.Request, next http.Handler) { next.ServeHTTP(w, r) })
	if err != nil {
		return "", err
	}
	defer func() { err = errors.Join(err, f.Close(ctx)) }()
	cuts := 0
	for range int(frontTime / (100 * time.Millisecond)) {
		<-time.After(100 * time.Millisecond)
		f.Cut()
		cuts++
	}
	return fmt.Sprintf("%d times", cuts), s.Cast.Fresh(ctx, n.Name, "cut")
}

// restartSlow restarts an agent while each request takes a second.
func restartSlow(ctx context.Context, s *Scene, n lab.Node) (note string, err error) {
	f, err := apifront.Open(ctx, s.Cluster, func(w http.ResponseWriter, r *http.Request, next http.Handler) {
		<-time.After(time.Second)
		next.ServeHTTP(w, r)
	})
	if err != nil {
		return "", err
	}
	defer func() { err = errors.Join(err, f.Close(ctx)) }()
	begun := time.Now()
	old, err := probe.Signal(ctx, s.Cluster, program.Agent(n), syscall.SIGKILL)
	if err != nil {
		return "", err
	}
	err = program.AwaitAgent(ctx, s.Cluster, n, old)
	return "served after " + time.Since(begun).Round(time.Millisecond).String(), err
}

// restartFailing restarts an agent while the API server fails: the agent changes nothing, and refuses ADD.
func restartFailing(ctx context.Context, s *Scene, n lab.Node) (note string, err error) {
	want, err := probe.SettledState(ctx, n)
	if err != nil {
		return "", err
	}
	f, err := apifront.Open(ctx, s.Cluster, func(w http.ResponseWriter, _ *http.Request, _ http.Handler) {
		status(w, metav1.StatusReasonInternalError, http.StatusInternalServerError)
	})
	if err != nil {
		return "", err
	}
	defer func() { err = errors.Join(err, f.Close(ctx)) }()
	if err := probe.Kill(ctx, s.Cluster, program.Agent(n), syscall.SIGKILL); err != nil {
		return "", err
	}
	over := time.After(frontTime)
	for range 5 {
		p, err := s.Cluster.AddPod(ctx, lab.PodSpec{Node: n.Name, Name: "early", NoObject: true})
		if failure, known := probe.AsFailure(err); !known || failure.Code != probe.CodeTryAgain {
			return "", fmt.Errorf("ADD while the agent has no connection to the API server: %w, want code %d", err, probe.CodeTryAgain)
		}
		note = err.Error()
		if err := probe.Detach(ctx, p); err != nil {
			return "", err
		}
	}
	select {
	case <-over:
	case <-ctx.Done():
	}
	return note, probe.StateOf(ctx, n).Differs(want)
}
