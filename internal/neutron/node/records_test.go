package node

import (
	"testing"

	"weft.dev/weft/internal/attach"
)

// Whatever a record has that the store accepts, DEL, GC and a restart reject it, or compile flows for a port that exists.
func FuzzPodOf(f *testing.F) {
	f.Add([]byte(`{"version":1,"network":"neutron.u","containerID":"c","ifName":"eth0","netns":"/proc/1/ns/net","state":"attached","created":"2026-11-30T12:00:00Z",
		"addresses":["10.244.0.5/16","fd00::5/64"],"gateway":["10.244.0.1"],"mac":"0a:58:0a:f4:00:05","details":{"port":"p","slot":3,"routes":[{}]}}`))
	f.Add([]byte(`{"version":1}`))
	f.Fuzz(func(t *testing.T, raw []byte) {
		rec, err := attach.ParseRecord(raw)
		if err != nil {
			return
		}
		pod, d, err := podOf(&rec)
		if err != nil {
			return
		}
		if len(pod.MAC) == 0 || pod.OFPort != pod.Patch+1 || len(pod.Addresses) != len(rec.Addresses) {
			t.Errorf("%+v of %+v", pod, rec)
		}
		if routes := routesOf(&rec, &d); len(routes) < len(d.Routes) {
			t.Errorf("routes %v of %+v", routes, d)
		}
	})
}
