package marked_test

import (
	"testing"

	"weft.dev/weft/internal/link"
	"weft.dev/weft/internal/link/linktest"
	"weft.dev/weft/internal/link/marked"
	"weft.dev/weft/internal/reconcile"
)

func TestFakeConforms(t *testing.T) {
	linktest.Run(t, func(*testing.T) linktest.Subject {
		const other = "/run/netns/other"
		fake := marked.NewFake(link.Key{Kind: link.KindDevice, Name: linktest.Device}, link.Key{Netns: other, Kind: link.KindDevice, Name: "lo"})
		return linktest.Subject{
			Engine: fake, Other: other,
			Restart:      func() reconcile.Engine[link.Key, link.Item] { return fake },
			RemoveDevice: func() { fake.RemoveDevice("", linktest.Device) },
			AddDevice:    func() { fake.AddDevice("", linktest.Device) },
			RemoveOther:  func() { fake.RemoveNamespace(other) },
			Forget:       func(item link.Item) { fake.Forget(item.Key()) },
		}
	})
}
