package ruleset

import (
	"crypto/sha256"
	"encoding/json"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"weft.dev/weft/internal/nft"
	"weft.dev/weft/internal/nft/nfnetlink"
)

func TestListingOfEverything(t *testing.T) {
	text, err := os.ReadFile(filepath.Join("testdata", "everything.json"))
	if err != nil {
		t.Fatal(err)
	}
	objects, err := parseObjects(text)
	if err != nil {
		t.Fatal(err)
	}
	plain, err := os.ReadFile(filepath.Join("testdata", "everything.nft"))
	if err != nil {
		t.Fatal(err)
	}
	list := &listing{table: tableKey{"inet", "wt"}, objects: objects, blocks: parseBlocks(string(plain)), kernel: kernelTable{
		rules: nfnetlink.Digests{"c1": sha256.New()}, dynamic: map[string]bool{"dy": true}, devices: map[string]string{"ing": "lo"},
	}}
	var lines []string
	for _, item := range list.items() {
		lines = append(lines, item.String())
	}
	slices.Sort(lines)
	golden, err := os.ReadFile(filepath.Join("testdata", "everything.golden"))
	if err != nil {
		t.Fatal(err)
	}
	var got []byte
	for _, line := range lines {
		got = append(got, line...)
		got = append(got, '\n')
	}
	if os.Getenv("UPDATE_GOLDEN") != "" {
		if err := os.WriteFile(filepath.Join("testdata", "everything.golden"), got, 0o600); err != nil {
			t.Fatal(err)
		}
		return
	}
	if string(got) != string(golden) {
		t.Errorf("got\n%s\nwant\n%s", got, golden)
	}
}

// Without /etc/protocols, as in an image that lacks it, nft prints protocols as numbers: they are the same elements.
func TestListingOfProtocolNumbers(t *testing.T) {
	for listed, want := range map[string]string{
		`[{"concat": [6, 8090]}, {"elem": {"val": {"concat": [17, 53]}, "comment": "o"}}]`: "tcp . 8090, udp . 53",
		`[{"concat": ["sctp", 6]}, {"concat": [132, 17]}, {"concat": [58, 1]}]`:            "sctp . 6, sctp . 17, ipv6-icmp . 1",
		`[{"concat": [253, 6]}]`: "253 . 6",
	} {
		set := setObject{Family: "inet", Table: "wt", Name: "s", Type: json.RawMessage(`["inet_proto", "inet_service"]`), Elem: json.RawMessage(listed)}
		var got []string
		new(listing).addElements(set, nil, false, func(item nft.Item) { got = append(got, strings.Join(item.(*nft.Element).Match, " . ")) })
		if text := strings.Join(got, ", "); text != want {
			t.Errorf("%s is read as %s, not %s", listed, text, want)
		}
	}
}

func FuzzListing(f *testing.F) {
	for _, name := range []string{"everything", "iptables"} {
		structured, err := os.ReadFile(filepath.Join("testdata", name+".json"))
		if err != nil {
			f.Fatal(err)
		}
		text, err := os.ReadFile(filepath.Join("testdata", name+".nft"))
		if err != nil {
			f.Fatal(err)
		}
		f.Add(structured, string(text))
	}
	f.Fuzz(func(t *testing.T, structured []byte, text string) {
		objects, err := parseObjects(structured)
		if err != nil {
			return
		}
		list := &listing{table: tableKey{"inet", "wt"}, objects: objects, blocks: parseBlocks(text)}
		for key, item := range list.items() {
			if item.Key() != key || item.String() == "" {
				t.Errorf("%v under %v", item, key)
			}
		}
		table := newForeignListing(objects)
		table.addWords(text)
		for _, base := range objects.chains {
			kind := nft.Traffic{Family: nft.FamilyIPv4, Hook: base.Hook, InDevice: "tun0"}
			base.meets(kind)
			search := &dropSearch{
				table: table, base: base, kind: kind, survey: &nft.Survey{Watched: map[nft.Key]bool{}}, walked: map[string]walked{},
			}
			search.look()
			markedRules(table.rules[base.Name])
		}
	})
}

func FuzzValue(f *testing.F) {
	for _, seed := range []string{
		`"10.0.0.1"`, `5`, `null`, `{"prefix":{"addr":"10.0.0.0","len":8}}`, `{"range":["a","b"]}`, `{"jump":{"target":"c"}}`,
		`{"drop":null}`, `{"jump":null}`, `{"concat":[1,"a"]}`,
	} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(_ *testing.T, raw []byte) { values(json.RawMessage(raw)) })
}

// A chain whose record a former release has written is written again, and does not count as changed by another program.
func TestRecordOfFormerRelease(t *testing.T) {
	digest := strings.Repeat("0", nfnetlink.DigestSize)
	for comment, altered := range map[string]bool{"desired " + digest + " listed " + digest: false, "other words": true} {
		l := &listing{table: tableKey{"inet", "wt"}, kernel: kernelTable{rules: nfnetlink.Digests{"c": sha256.New()}}, objects: &objects{
			chains: []chainObject{{Family: "inet", Table: "wt", Name: "c"}},
			sets:   []setObject{{Name: nft.StateSet, elements: []*nft.Element{{Match: []string{recordKey("c")}, Owner: comment}}}},
		}}
		rules, ok := l.items()[l.table.object(nft.KindRules, "c")].(*nft.ChainRules)
		if !ok || rules.Altered() != altered || l.altered() != altered || rules.Equal(&nft.ChainRules{Family: "inet", Table: "wt", Chain: "c"}) {
			t.Errorf("record %q: the rules are %v", comment, rules)
		}
	}
}
