package pages

import (
	"testing"

	"github.com/google/go-cmp/cmp"
)

const page = `# A page

<!-- run: quickstart -->

    kubectl get nodes
    kubectl apply -f - <<END
    kind: Namespace

    metadata: {name: shop}
    END

Text, and a list:

    - of no commands

<!-- not run: needs a registry -->

    make image

<!-- run: quickstart n1,n2 -->

    $ nft list tables
    table inet weft
    $ ovs-ofctl show br0
    ovs-ofctl: no such bridge

    kubectl get pods

` + "```sh\nweft status\n```\n"

// Blocks that begin with commands are found, with the page's comment about them.
func TestRead(t *testing.T) {
	want := []Block{
		{Page: "page.md", Line: 5, Lab: "quickstart", Text: "kubectl get nodes\nkubectl apply -f - <<END\nkind: Namespace\n\nmetadata: {name: shop}\nEND\n"},
		{Page: "page.md", Line: 18, Reason: "needs a registry", Text: "make image\n"},
		{Page: "page.md", Line: 22, Lab: "quickstart", Nodes: []string{"n1", "n2"}, Text: "nft list tables\novs-ofctl show br0\n"},
		{Page: "page.md", Line: 30, Text: "weft status\n"},
	}
	if diff := cmp.Diff(want, Read("page.md", page)); diff != "" {
		t.Error(diff)
	}
}
