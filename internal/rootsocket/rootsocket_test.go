package rootsocket

import (
	"errors"
	"io"
	"net"
	"os"
	"path/filepath"
	"testing"
)

func noRefusal(error) []byte { return nil }

// says connects, sends a word, and returns the response.
func says(t *testing.T, path string) string {
	t.Helper()
	conn, err := new(net.Dialer).DialContext(t.Context(), "unix", path)
	if err != nil {
		return err.Error()
	}
	defer conn.Close() //nolint:errcheck // the answer was read
	answer, err := io.ReadAll(conn)
	if err != nil {
		return err.Error()
	}
	return string(answer)
}

// A socket whose file or folder is removed, moved or replaced is created again, and serves; open connections stay. A file that is not a
// socket is not removed, and reported.
func TestRenew(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "sub")
	path := filepath.Join(dir, "s")
	l, err := Listen(path, uint32(os.Geteuid()), noRefusal) //nolint:gosec // Uids fit.
	if err != nil {
		t.Fatal(err)
	}
	first := make(chan net.Conn, 1)
	served := make(chan error, 1)
	go func() {
		for n := 0; ; n++ {
			conn, err := l.Accept()
			if err != nil {
				served <- err
				return
			}
			if n == 0 {
				first <- conn
				continue
			}
			_, _ = conn.Write([]byte("here"))
			_ = conn.Close()
		}
	}()
	held, err := new(net.Dialer).DialContext(t.Context(), "unix", path)
	if err != nil {
		t.Fatal(err)
	}
	conn := <-first // a connection that is not accepted yet is lost with the former socket
	if renewed, err := l.Renew(); err != nil || renewed {
		t.Errorf("nothing was done to it: %v, %v", renewed, err)
	}
	for name, damage := range map[string]func() error{
		"removed": func() error { return os.Remove(path) },
		"moved":   func() error { return os.Rename(path, path+"-aside") },
		"replaced": func() error {
			other, err := net.ListenUnix("unix", &net.UnixAddr{Name: path + "-other", Net: "unix"})
			if err != nil {
				return err
			}
			other.SetUnlinkOnClose(false)
			return errors.Join(other.Close(), os.Rename(path+"-other", path))
		},
		"folder": func() error { return os.RemoveAll(dir) },
	} {
		if err := damage(); err != nil {
			t.Fatal(name, err)
		}
		if renewed, err := l.Renew(); err != nil || !renewed {
			t.Errorf("%s: %v, %v", name, renewed, err)
		}
		if got := says(t, path); got != "here" {
			t.Errorf("%s: %q", name, got)
		}
		if info, err := os.Lstat(path); err != nil || info.Mode().Perm() != 0o600 {
			t.Errorf("%s: %v, %v", name, info, err)
		}
	}
	if _, err := conn.Write([]byte("still")); err != nil {
		t.Error(err)
	}
	if err := conn.Close(); err != nil {
		t.Error(err)
	}
	if got, err := io.ReadAll(held); err != nil || string(got) != "still" {
		t.Errorf("the connection from before: %q, %v", got, err)
	}
	if err := errors.Join(os.Remove(path), os.WriteFile(path, []byte("mine"), 0o600)); err != nil {
		t.Fatal(err)
	}
	if _, err := l.Renew(); err == nil {
		t.Error("a file that is no socket was replaced")
	}
	if err := l.Close(); err != nil {
		t.Error(err)
	}
	if err := <-served; !errors.Is(err, net.ErrClosed) {
		t.Error(err)
	}
	if have, err := os.ReadFile(path); err != nil || string(have) != "mine" {
		t.Errorf("the file that is no socket: %q, %v", have, err)
	}
}
