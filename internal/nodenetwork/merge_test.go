package nodenetwork

import (
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/google/go-cmp/cmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	weftv1 "weft.dev/weft/api/weft/v1"
)

func ready(status metav1.ConditionStatus, at int64, message string) metav1.Condition {
	c := metav1.Condition{Type: weftv1.NetworkReady, Status: status, Reason: "Test", Message: message}
	if at > 0 {
		c.LastTransitionTime = metav1.NewTime(time.Unix(at, 0))
	}
	return c
}

func section(name string, conditions ...metav1.Condition) weftv1.NodeNetworkSection {
	return weftv1.NodeNetworkSection{Name: name, Conditions: conditions}
}

// A section that is set replaces the reported one. A condition's time is that of its last change of status.
func TestMerge(t *testing.T) {
	now := metav1.NewTime(time.Unix(100, 5))
	all := func(string) bool { return true }
	for name, test := range map[string]struct {
		have  []weftv1.NodeNetworkSection
		set   weftv1.NodeNetworkSection
		stays func(string) bool
		want  []weftv1.NodeNetworkSection
	}{
		"first": {nil, section("vpc", ready("True", 0, "a")), all, []weftv1.NodeNetworkSection{section("vpc", ready("True", 100, "a"))}},
		"other words": {
			[]weftv1.NodeNetworkSection{section("vpc", ready("True", 7, "a"))},
			section("vpc", ready("True", 0, "b")), all,
			[]weftv1.NodeNetworkSection{section("vpc", ready("True", 7, "b"))},
		},
		"another status": {
			[]weftv1.NodeNetworkSection{section("vpc", ready("True", 7, "a"))},
			section("vpc", ready("False", 0, "a")), all,
			[]weftv1.NodeNetworkSection{section("vpc", ready("False", 100, "a"))},
		},
		"a time that is given": {
			[]weftv1.NodeNetworkSection{section("vpc", ready("True", 7, "a"))},
			section("vpc", ready("True", 9, "a")), all,
			[]weftv1.NodeNetworkSection{section("vpc", ready("True", 9, "a"))},
		},
		"others stay, in order": {
			[]weftv1.NodeNetworkSection{section("overlay"), section("zebra")},
			section("vpc"), all,
			[]weftv1.NodeNetworkSection{section("overlay"), section("vpc"), section("zebra")},
		},
		"networks that the node has no more": {
			[]weftv1.NodeNetworkSection{section("overlay"), section("zebra")},
			section("vpc"), func(name string) bool { return name == "overlay" },
			[]weftv1.NodeNetworkSection{section("overlay"), section("vpc")},
		},
	} {
		got := merge(test.have, map[string]weftv1.NodeNetworkSection{test.set.Name: test.set}, now, test.stays)
		if diff := cmp.Diff(test.want, got); diff != "" {
			t.Errorf("%s: %s", name, diff)
		}
	}
}

func TestMessagesAreBounded(t *testing.T) {
	if got := bounded(strings.Repeat("ä", 1000)); len(got) > maxMessage || !utf8.ValidString(got) || !strings.HasSuffix(got, "ä ...") {
		t.Errorf("%d bytes", len(got))
	}
	if got := bounded("short"); got != "short" {
		t.Error(got)
	}
}
