package nfnetlink

import (
	"testing"

	"golang.org/x/sys/unix"
)

// ruleMessage is a rule of chain "c": a counter with this content, and a verdict.
func ruleMessage(handle, counted byte, verdict string) []byte {
	expression := func(name string, content ...byte) []byte {
		return nest(unix.NFTA_LIST_ELEM, text(unix.NFTA_EXPR_NAME, name), attribute(unix.NFTA_EXPR_DATA, content...))
	}
	return join([]byte{unix.NFPROTO_INET, 0, 0, 0}, text(unix.NFTA_RULE_CHAIN, "c"), attribute(unix.NFTA_RULE_HANDLE, handle),
		nest(unix.NFTA_RULE_EXPRESSIONS, expression(counter, counted), expression("immediate", []byte(verdict)...)))
}

func digestOf(t *testing.T, instance string, messages ...[]byte) string {
	t.Helper()
	digests := Digests{}
	for _, message := range messages {
		attrs, err := Attributes(message)
		if err != nil {
			t.Fatal(err)
		}
		if err := digests.add([]byte(instance), attrs); err != nil {
			t.Fatal(err)
		}
	}
	if digests.Any("c") != (len(messages) > 0) || digests.Any("other") {
		t.Errorf("rules in c: %t, in another chain: %t", digests.Any("c"), digests.Any("other"))
	}
	return digests.Of("c")
}

func TestDigests(t *testing.T) {
	one, two := ruleMessage(1, 0, "accept"), ruleMessage(2, 0, "drop")
	const instance = "boot, table 1"
	want := digestOf(t, instance, one, two)
	if len(want) != DigestSize {
		t.Errorf("digest %s has %d digits", want, len(want))
	}
	if have := digestOf(t, instance, ruleMessage(1, 7, "accept"), two); have != want {
		t.Error("a counter changes the digest")
	}
	for what, messages := range map[string][][]byte{
		"no rules": nil, "a rule is missing": {one}, "another order": {two, one}, "another content": {one, ruleMessage(2, 0, "accept")},
		"a rule like a former one": {one, ruleMessage(3, 0, "drop")}, "a rule twice": {one, two, two},
	} {
		if digestOf(t, instance, messages...) == want {
			t.Errorf("%s: the same digest", what)
		}
	}
	if digestOf(t, "boot, table 2", one, two) == want {
		t.Error("another table with the same rules: the same digest")
	}
}

func FuzzRule(f *testing.F) {
	f.Add(ruleMessage(1, 2, "accept"))
	f.Fuzz(func(_ *testing.T, message []byte) {
		if attrs, err := Attributes(message); err == nil {
			_ = Digests{}.add(nil, attrs)
		}
	})
}
