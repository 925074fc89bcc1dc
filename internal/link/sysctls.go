package link

// SysctlEntry maps a field of Sysctls to its file.
type SysctlEntry struct {
	Name   string
	Family string // ipv4 or ipv6
	Get    func(*Sysctls) *Toggle
}

//nolint:gochecknoglobals // a constant table
var sysctlTable = []SysctlEntry{
	{"disable_ipv6", "ipv6", func(s *Sysctls) *Toggle { return &s.DisableIPv6 }},
	{"accept_ra", "ipv6", func(s *Sysctls) *Toggle { return &s.AcceptRA }},
	{"accept_dad", "ipv6", func(s *Sysctls) *Toggle { return &s.AcceptDAD }},
	{"forwarding", "ipv4", func(s *Sysctls) *Toggle { return &s.Forwarding4 }},
	{"forwarding", "ipv6", func(s *Sysctls) *Toggle { return &s.Forwarding6 }},
	{"route_localnet", "ipv4", func(s *Sysctls) *Toggle { return &s.RouteLocalnet }},
	{"proxy_arp", "ipv4", func(s *Sysctls) *Toggle { return &s.ProxyARP }},
	{"send_redirects", "ipv4", func(s *Sysctls) *Toggle { return &s.SendRedirects }},
	{"rp_filter", "ipv4", func(s *Sysctls) *Toggle { return &s.RPFilter }},
	{"arp_notify", "ipv4", func(s *Sysctls) *Toggle { return &s.ARPNotify }},
	{"ndisc_notify", "ipv6", func(s *Sysctls) *Toggle { return &s.NDiscNotify }},
}

// SysctlEntries returns all settings of a device.
func SysctlEntries() []SysctlEntry { return sysctlTable }
