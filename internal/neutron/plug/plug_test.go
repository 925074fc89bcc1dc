package plug_test

import (
	"context"
	"strings"
	"testing"

	"weft.dev/weft/internal/neutron/plug"
)

func TestUnknownPluginListsTheKnown(t *testing.T) {
	factory := func(context.Context, string) (plug.Plugin, error) { return nil, nil }
	_, err := plug.Registry{"ovs": factory, "second": factory}.Open(t.Context(), "linuxbridge", "br-int")
	if err == nil || !strings.Contains(err.Error(), `"linuxbridge"`) || !strings.Contains(err.Error(), "ovs, second") {
		t.Errorf("error %v names neither what was asked for nor what there is", err)
	}
}
