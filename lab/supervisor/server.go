package supervisor

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"time"

	"weft.dev/weft/lab/plan"
	"weft.dev/weft/lab/report"
)

// serve answers on the lab's socket. The returned function waits a short time for running answers.
func (s *Supervisor) serve(ctx context.Context) (func(), error) {
	_ = os.Remove(s.lab.Socket())
	l, err := new(net.ListenConfig).Listen(ctx, "unix", s.lab.Socket())
	if err != nil {
		return nil, fmt.Errorf("answer on %s: %w", s.lab.Socket(), err)
	}
	if err := os.Chmod(s.lab.Socket(), 0o600); err != nil {
		return nil, fmt.Errorf("guard %s: %w", s.lab.Socket(), err)
	}
	mux := http.NewServeMux()
	mux.HandleFunc("GET /status", s.answerStatus)
	mux.HandleFunc("GET /events", s.answerEvents)
	mux.HandleFunc("POST /down", s.answerDown)
	srv := &http.Server{Handler: mux, ReadHeaderTimeout: 5 * time.Second}
	go func() {
		if err := srv.Serve(l); !errors.Is(err, http.ErrServerClosed) {
			s.log.Error("the lab's socket is closed", "err", err)
		}
	}()
	return func() {
		ctx, cancel := context.WithTimeout(context.Background(), time.Second)
		defer cancel()
		_ = srv.Shutdown(ctx)
	}, nil
}

func (s *Supervisor) answerStatus(w http.ResponseWriter, _ *http.Request) {
	w.Header().Set("Content-Type", "application/json")
	_ = json.NewEncoder(w).Encode(s.status())
}

// answerEvents streams the events of the start as lines of JSON, until the start is over.
func (s *Supervisor) answerEvents(w http.ResponseWriter, r *http.Request) {
	enc := json.NewEncoder(w)
	_ = s.journal.follow(r.Context(), func(e report.Event) error {
		if err := enc.Encode(e); err != nil {
			return err
		}
		return http.NewResponseController(w).Flush()
	})
}

// answerDown answers when everything has ended.
func (s *Supervisor) answerDown(w http.ResponseWriter, r *http.Request) {
	s.downOnce.Do(func() { close(s.down) })
	select {
	case <-s.ended:
		w.WriteHeader(http.StatusNoContent)
	case <-r.Context().Done():
	}
}

func (s *Supervisor) status() report.Status {
	s.mu.Lock()
	defer s.mu.Unlock()
	l := s.lab
	st := report.Status{
		Name: l.Name, Phase: s.phase, Config: l.Config, Datapath: s.datapath, Kubeconfig: l.Kubeconfig(),
		API:    fmt.Sprintf("https://%s:%d", s.entry.APIHost(), l.APIPort),
		HostIP: s.entry.HostIP().String(), Outside: reporterURL(l.Outside),
		Supervisor: os.Getpid(), Programs: s.group.List(), LogDir: l.Path("log"),
		OutsideNS: s.spaces.netPath(partOutside), ControlNS: s.spaces.netPath(partControl), UnderlayNS: s.spaces.netPath(partUnderlay),
	}
	if l.HasExternal() {
		st.ExternalNS, st.External = s.spaces.netPath(partExternal), reporterURL(l.External)
	}
	if s.failed != nil {
		st.Error = s.failed.Error()
	}
	for part, into := range map[string]*report.Space{partExternal: &st.ExternalSpace, partOpenStack: &st.OpenStackSpace} {
		sp := s.spaces.of(part)
		*into = report.Space{Name: sp.Name, Holder: sp.Pid}
	}
	for _, n := range l.AllNodes() {
		sp := s.spaces.of(n.Name)
		st.Nodes = append(st.Nodes, report.Node{
			Name: n.Name, IP: n.IP.String(), Netns: s.spaces.netPath(n.Name), Space: sp.Name, Holder: sp.Pid, RunDir: n.RunDir, Dir: n.Dir,
		})
	}
	return st
}

func reporterURL(at plan.Segment) string { return "http://" + at.Reporter().String() + "/" }
