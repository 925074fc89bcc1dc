package attach

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"weft.dev/weft/internal/cni"
)

func published(n int, ports ...cni.HostPort) Record {
	rec := sample(n)
	rec.HostPorts = ports
	return rec
}

func web() cni.HostPort { return cni.HostPort{Port: 8080, Protocol: "tcp", ContainerPort: 80} }

func extraPath(s *Store, rec Record) string {
	return filepath.Join(s.path+extraSuffix, fileName(rec.Key()))
}

func exists(t *testing.T, path string) bool {
	t.Helper()
	_, err := os.Lstat(path)
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		t.Fatal(err)
	}
	return err == nil
}

func TestStoreKeepsHostPorts(t *testing.T) {
	s := open(t, filepath.Join(t.TempDir(), "attachments"))
	at := cni.HostPort{Address: netip.MustParseAddr("192.0.2.1"), Port: 53, Protocol: "udp", ContainerPort: 5353}
	a, b, c, d := published(1, web(), at), sample(2), sample(3), sample(4)
	d.Bandwidth = cni.Bandwidth{Ingress: 10_000_000}
	put(t, s, d)
	c.Macvlan = &Macvlan{Parent: "eth1", MTU: 1500, Addresses: []netip.Addr{netip.MustParseAddr("192.0.2.1")}}
	put(t, s, c)
	put(t, s, a)
	put(t, s, b)
	a.State = Attached
	put(t, s, a)
	s = reopen(t, s)
	wantList(t, s, a, b, c, d)
	look, err := Look(s.path)
	if err != nil {
		t.Fatal(err)
	}
	wantList(t, look, a, b, c, d)
	if exists(t, extraPath(s, b)) {
		t.Error("a file for a pod without host ports")
	}
	if err := s.Delete(t.Context(), a.Key()); err != nil || exists(t, extraPath(s, a)) {
		t.Errorf("after Delete: %v, file %t", err, exists(t, extraPath(s, a)))
	}
	s = reopen(t, s)
	wantList(t, s, b, c, d)
	d.Bandwidth = cni.Bandwidth{Ingress: 10_000_000, Egress: 999}
	if err := s.Put(t.Context(), d); err == nil {
		t.Error("a limit below the minimum was written")
	}
	d.Bandwidth = cni.Bandwidth{}
	put(t, s, d)
	if exists(t, extraPath(s, d)) {
		t.Error("a file for a pod without limits")
	}
	wrong := sample(5)
	wrong.Macvlan = &Macvlan{Parent: "../eth1", MTU: 1500}
	if err := s.Put(t.Context(), wrong); err == nil {
		t.Error("a macvlan without a parent device was written")
	}
}

// An older agent without host ports reads, writes and removes the records. The next start of a newer agent removes the host ports that it
// left.
func TestHostPortsOutliveARollback(t *testing.T) {
	s := open(t, filepath.Join(t.TempDir(), "attachments"))
	a, b := published(1, web()), published(2, cni.HostPort{Port: 1, Protocol: "sctp", ContainerPort: 1})
	put(t, s, a)
	put(t, s, b)
	data, err := os.ReadFile(filepath.Join(s.path, fileName(a.Key())))
	if err != nil || strings.Contains(strings.ToLower(string(data)), "hostport") {
		t.Errorf("the record has host ports in it: %s, %v", data, err)
	}
	entries, err := os.ReadDir(s.path)
	if err != nil || len(entries) != 3 { // two records, and the folder of broken ones
		t.Errorf("files an older agent would set aside: %v, %v", entries, err)
	}
	if err := os.Remove(filepath.Join(s.path, fileName(b.Key()))); err != nil { // the older agent's DEL
		t.Fatal(err)
	}
	s = reopen(t, s)
	wantList(t, s, a)
	if exists(t, extraPath(s, b)) {
		t.Error("host ports of a deleted pod are left")
	}
}

// TestHostPortsOfLaterForms: an agent that has host ports only at IPv4 addresses reads the rest of the file, such as the network's details, and
// keeps the ports that it does not have.
func TestHostPortsOfLaterForms(t *testing.T) {
	s := open(t, filepath.Join(t.TempDir(), "attachments"))
	at := func(address string, port uint16) cni.HostPort {
		return cni.HostPort{Address: netip.MustParseAddr(address), Port: port, Protocol: "tcp", ContainerPort: 80}
	}
	all := []cni.HostPort{web(), at("192.0.2.1", 81), at("2001:db8::1", 82), at("0.0.0.0", 83), at("::", 84)}
	rec, later := published(1, all...), published(2, at("::", 8080))
	rec.Details = json.RawMessage(`{"bridge":"cni0"}`)
	put(t, s, rec)
	if err := s.Put(t.Context(), later); err == nil {
		t.Error("a port of another pod was written")
	}
	data, err := os.ReadFile(extraPath(s, rec))
	if err != nil {
		t.Fatal(err)
	}
	var earlier struct {
		HostPorts []cni.HostPort `json:"hostPorts"`
	}
	if err := json.Unmarshal(data, &earlier); err != nil || !slices.Equal(earlier.HostPorts, all[:2]) {
		t.Errorf("an earlier agent reads %v, %v", earlier.HostPorts, err)
	}
	// The form of a file for a short while: all ports in one list.
	together, err := json.Marshal(all)
	if err != nil {
		t.Fatal(err)
	}
	old := fmt.Appendf(nil, `{"version":1,"containerID":%q,"ifName":%q,"hostPorts":%s,"details":{"bridge":"cni0"}}`, rec.ContainerID, rec.IfName, together)
	for _, content := range [][]byte{data, old} {
		if err := os.WriteFile(extraPath(s, rec), content, 0o600); err != nil {
			t.Fatal(err)
		}
		s = reopen(t, s)
		wantList(t, s, rec)
	}
	rec.HostPorts = all[4:]
	put(t, s, rec)
	wantList(t, reopen(t, s), rec)
}

func TestHostPortIsOnePods(t *testing.T) {
	s := open(t, filepath.Join(t.TempDir(), "attachments"))
	a := published(1, web())
	put(t, s, a)
	b := published(2, cni.HostPort{Port: 9, Protocol: "tcp", ContainerPort: 9}, cni.HostPort{Address: netip.MustParseAddr("192.0.2.1"), Port: 8080, Protocol: "tcp", ContainerPort: 80})
	var taken *HostPortError
	if err := s.Put(t.Context(), b); !errors.As(err, &taken) || taken.Holder != a.Key() || taken.Pod != "shop/web-1" || taken.Port.Port != 8080 {
		t.Errorf("taken: %v", err)
	}
	if _, err := s.Get(b.Key()); !errors.Is(err, ErrNotFound) || exists(t, extraPath(s, b)) {
		t.Errorf("what was refused is there: %v", err)
	}
	udp := published(3, cni.HostPort{Port: 8080, Protocol: "udp", ContainerPort: 80})
	put(t, s, udp)
	a.State = Closing // its rules are removed
	put(t, s, a)
	put(t, s, b)
	other := published(4, web())
	other.BootID = "another-boot"
	put(t, s, other)
	wantList(t, reopen(t, s), a, b, udp, other)
}

func TestBrokenHostPorts(t *testing.T) {
	s := open(t, filepath.Join(t.TempDir(), "attachments"))
	a, b := published(1, web()), published(2, cni.HostPort{Port: 2, Protocol: "tcp", ContainerPort: 2})
	put(t, s, a)
	put(t, s, b)
	for _, content := range []string{
		"", "{", "[]", `{"version":1}`, `{"version":1,"containerID":"x","ifName":"eth0","hostPorts":[]}`,
		strings.Repeat("x", MaxRecord+1),
	} {
		if err := os.WriteFile(extraPath(s, a), []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
		s = reopen(t, s)
		bare := a
		bare.HostPorts = nil
		wantList(t, s, bare, b)
		if broken := s.Broken(); len(broken) != 1 || broken[0].Path != extraPath(s, a) {
			t.Errorf("%.20q: broken: %v", content, broken)
		}
	}
	if err := s.Delete(t.Context(), a.Key()); err != nil || exists(t, extraPath(s, a)) {
		t.Errorf("after Delete: %v", err)
	}
	if s = reopen(t, s); len(s.Broken()) != 0 {
		t.Errorf("broken: %v", s.Broken())
	}
}

// Foreign files in the directory do not keep the agent from starting.
func TestForeignBesideRecords(t *testing.T) {
	s := open(t, filepath.Join(t.TempDir(), "attachments"))
	a := published(1, web())
	put(t, s, a)
	foreign := filepath.Join(s.path+extraSuffix, "foreign")
	if err := os.MkdirAll(filepath.Join(foreign, "full"), 0o700); err != nil {
		t.Fatal(err)
	}
	s = reopen(t, s)
	wantList(t, s, a)
	if broken := s.Broken(); len(broken) != 1 || broken[0].Path != foreign {
		t.Errorf("broken: %v", broken)
	}
}

// Whichever step fails or is the last, no host ports remain without a record, and no record without its host ports.
func TestHostPortsFault(t *testing.T) {
	for _, crash := range []bool{false, true} {
		for at := 0; ; at++ {
			s := open(t, filepath.Join(t.TempDir(), "attachments"))
			d := &faultyDisk{disk: s.extra.disk, at: at, half: 10, crash: crash}
			s.extra.disk = d
			rec := published(1, web())
			err := s.Put(t.Context(), rec)
			if err == nil {
				err = s.Delete(t.Context(), rec.Key())
			}
			if d.steps <= at {
				if err != nil {
					t.Fatal(err)
				}
				break
			}
			if !errors.Is(err, errInjected) {
				t.Errorf("step %d: the fault is not reported: %v", at, err)
			}
			if _, getErr := s.Get(rec.Key()); !errors.Is(getErr, ErrNotFound) {
				t.Errorf("step %d: %v", at, getErr)
			}
			s.extra.disk = d.disk
			if !crash {
				if err := s.Delete(t.Context(), rec.Key()); err != nil || exists(t, extraPath(s, rec)) {
					t.Errorf("step %d: deleted again: %v", at, err)
				}
			}
			s = reopen(t, s)
			if left, _ := os.ReadDir(s.path + extraSuffix); len(left) > 0 || len(s.List()) > 0 {
				t.Errorf("step %d: left: %v, %v", at, left, s.List())
			}
		}
	}
}

func FuzzParseExtra(f *testing.F) {
	key := sampleKey(1)
	good, err := json.Marshal(extraFile{Version: Version, ContainerID: key.ContainerID, IfName: key.IfName, HostPorts: []cni.HostPort{web()}})
	if err != nil {
		f.Fatal(err)
	}
	f.Add(good)
	f.Add([]byte(`{"version":1,"containerID":"cc-b1","ifName":"eth0","macvlan":{"parent":"eth0","mtu":1500,"addresses":["192.0.2.1"]}}`))
	f.Add([]byte(`{"version":1,"containerID":"cc-b1","ifName":"eth0","bandwidth":{"ingress":1000,"egress":1}}`))
	f.Add([]byte(`{"version":1,"hostPorts":[{"hostIP":"::1","hostPort":0}]}`))
	f.Fuzz(func(t *testing.T, data []byte) {
		extra, err := parseExtra(data, key)
		if err == nil && (!cni.ValidHostPorts(extra.HostPorts) || !extra.Macvlan.valid() || !extra.Bandwidth.Valid()) || err != nil && !errors.Is(err, errContent) {
			t.Fatalf("%+v, %v", extra, err)
		}
	})
}
