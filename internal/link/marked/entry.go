package marked

import (
	"errors"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	"weft.dev/weft/internal/link"
	"weft.dev/weft/internal/link/rtnetlink"
)

// pipelined reports whether a step is one request that can be sent with others: a route or a neighbour.
func (s *step) pipelined() bool {
	switch s.item.(type) {
	case *link.Neighbour, *link.Route:
		return true
	default:
		return false
	}
}

// device returns the name of the device that a pipelined step refers to, "" if it refers to none.
func (s *step) device() string {
	switch item := s.item.(type) {
	case *link.Neighbour:
		return item.Device
	case *link.Route:
		if !item.Blackhole {
			return item.Device
		}
	}
	return ""
}

// found is the index of a device, or the error if it has none.
type found struct {
	index int
	err   error
}

// commitEntries runs steps of routes and neighbours: one exchange with the kernel looks up the devices, another performs all steps. It
// stores errors by step; its own error is the socket's.
func (s *session) commitEntries(steps []*step, errs map[*step]error) error {
	devices, err := s.findAll(steps)
	if err != nil {
		return err
	}
	var sent []*step
	var requests []*nl.NetlinkRequest
	for _, what := range steps {
		device := devices[what.device()]
		if device.err != nil {
			errs[what] = device.err
			continue
		}
		if before := what.replaced(); before != nil {
			if err := s.one(before, unix.ESRCH); err != nil {
				errs[what] = err
				continue
			}
		}
		sent, requests = append(sent, what), append(requests, what.request(device.index))
	}
	if len(requests) == 0 {
		return nil
	}
	answers, err := s.conn.Do(requests...)
	if err != nil {
		return err
	}
	for i, what := range sent {
		err := answers[i].Err
		route, isRoute := what.item.(*link.Route)
		switch {
		case err == nil, what.remove && (errors.Is(err, unix.ENOENT) || errors.Is(err, unix.ESRCH)):
			continue
		case isRoute && !what.remove && what.before == nil && errors.Is(err, unix.EEXIST):
			err = s.takeRoute(route, devices[what.device()].index)
		}
		if err != nil {
			errs[what] = err
		}
	}
	return nil
}

// findAll looks up the devices of the steps.
func (s *session) findAll(steps []*step) (map[string]found, error) {
	devices := map[string]found{"": {}}
	var names []string
	var requests []*nl.NetlinkRequest
	for _, what := range steps {
		name := what.device()
		if _, seen := devices[name]; seen {
			continue
		}
		devices[name] = found{}
		names, requests = append(names, name), append(requests, rtnetlink.GetLink(name))
	}
	answers, err := s.conn.Do(requests...)
	if err != nil {
		return nil, err
	}
	for i, name := range names {
		dev, err := answers[i].Device(name)
		devices[name] = found{err: err}
		if err == nil {
			devices[name] = found{index: dev.Attrs().Index}
		}
	}
	return devices, nil
}

// replaced returns a request that first removes what the step's own request cannot replace, nil if there is none: IPv6 cannot replace a
// route that discards by one that does not, or the reverse.
func (s *step) replaced() *nl.NetlinkRequest {
	route, ok := s.item.(*link.Route)
	if !ok || s.remove {
		return nil
	}
	old, ok := s.before.(*link.Route)
	if !ok || old.Blackhole == route.Blackhole || !route.Dst.Addr().Is6() {
		return nil
	}
	return rtnetlink.DeleteRoute(*old, 0)
}

// request returns the request of a pipelined step, with its device given by index.
func (s *step) request(index int) *nl.NetlinkRequest {
	switch item := s.item.(type) {
	case *link.Neighbour:
		return neighbourRequest(item, index, s.remove)
	case *link.Route:
		switch {
		case s.remove:
			return rtnetlink.DeleteRoute(*item, index)
		case s.before != nil:
			return rtnetlink.SetRoute(*item, index)
		default:
			return rtnetlink.AddRoute(*item, index)
		}
	}
	return nil
}

// ndMsg is struct ndmsg of linux/neighbour.h.
type ndMsg struct{ netlink.Ndmsg }

// neighbourRequest sets or deletes a permanent neighbour.
func neighbourRequest(item *link.Neighbour, index int, remove bool) *nl.NetlinkRequest {
	kind, flags := unix.RTM_NEWNEIGH, unix.NLM_F_CREATE|unix.NLM_F_REPLACE
	if remove {
		kind, flags = unix.RTM_DELNEIGH, 0
	}
	request := nl.NewNetlinkRequest(kind, flags)
	request.AddData(&ndMsg{netlink.Ndmsg{
		Family: uint8(rtnetlink.Family(item.Address)), Index: uint32(index), State: netlink.NUD_PERMANENT,
	}})
	request.AddData(nl.NewRtAttr(netlink.NDA_DST, item.Address.AsSlice()))
	if !remove {
		request.AddData(nl.NewRtAttr(netlink.NDA_LLADDR, item.MAC))
	}
	return request
}
