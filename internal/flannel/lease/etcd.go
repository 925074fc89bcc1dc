package lease

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"strconv"
	"strings"
)

// FormatKey returns the last part of an etcd key: <IPv4>-<length>, and &<IPv6>-<length> after it. Without an IPv4 subnet the first part is
// 0.0.0.0-0, as in flannel.
func FormatKey(subnet, subnet6 netip.Prefix) string {
	key := "0.0.0.0-0"
	if subnet.IsValid() {
		key = subnet.Addr().String() + "-" + strconv.Itoa(subnet.Bits())
	}
	if subnet6.IsValid() {
		key += "&" + subnet6.Addr().String() + "-" + strconv.Itoa(subnet6.Bits())
	}
	return key
}

// ParseKey returns the subnets in the last part of an etcd key.
func ParseKey(key string) (subnet, subnet6 netip.Prefix, err error) {
	first, second, dual := strings.Cut(key, "&")
	if subnet, err = keyPrefix(first, true); err != nil {
		return netip.Prefix{}, netip.Prefix{}, fmt.Errorf("key %s: %w", brief(key), err)
	}
	if subnet.Bits() == 0 { // means: no IPv4
		subnet = netip.Prefix{}
	}
	if dual {
		if subnet6, err = keyPrefix(second, false); err != nil {
			return netip.Prefix{}, netip.Prefix{}, fmt.Errorf("key %s: %w", brief(key), err)
		}
	}
	if !subnet.IsValid() && !subnet6.IsValid() {
		return netip.Prefix{}, netip.Prefix{}, fmt.Errorf("key %s names no subnet", brief(key))
	}
	return subnet, subnet6, nil
}

func keyPrefix(text string, v4 bool) (netip.Prefix, error) {
	address, length, found := strings.Cut(text, "-")
	addr, err := netip.ParseAddr(address)
	bits, bitsErr := strconv.ParseUint(length, 10, 8)
	if !found || err != nil || bitsErr != nil || addr.Is4() != v4 || addr.Is4In6() || addr.Zone() != "" || int(bits) >= addr.BitLen() {
		return netip.Prefix{}, fmt.Errorf("%q is not of the form 10.5.53.0-24 or 10.5.53.0-24&2001:db8:42:1::-64", text)
	}
	p := netip.PrefixFrom(addr, int(bits))
	if p != p.Masked() {
		return netip.Prefix{}, fmt.Errorf("%s is not the first address of a /%d; %s is", addr, bits, p.Masked().Addr())
	}
	return p, nil
}

// etcdValue is the JSON of a lease in etcd.
type etcdValue struct {
	PublicIP      string
	PublicIPv6    *string
	BackendType   string          `json:",omitempty"`
	BackendData   json.RawMessage `json:",omitempty"`
	BackendV6Data json.RawMessage `json:",omitempty"`
}

// FormatValue returns the value of a lease's etcd key as flannel writes it. Without IPv4, PublicIP is 0.0.0.0.
func FormatValue(l *Lease) string {
	v := etcdValue{PublicIP: "0.0.0.0", BackendType: l.Backend}
	if l.PublicIP.IsValid() {
		v.PublicIP = l.PublicIP.String()
	}
	if l.PublicIP6.IsValid() {
		text := l.PublicIP6.String()
		v.PublicIPv6 = &text
	}
	if l.Data != nil {
		v.BackendData = json.RawMessage(Marshal(l.Data))
	}
	if l.Data6 != nil {
		v.BackendV6Data = json.RawMessage(Marshal(l.Data6))
	}
	text, err := json.Marshal(v)
	if err != nil { // the raw parts are JSON already
		return "{}"
	}
	return string(text)
}

// FromEtcd returns the lease of an etcd key's last part and its value. An invalid family is left out, and the error names the problem. The
// public addresses are those in the value, also if the rest is invalid: a node finds its own key by them.
func FromEtcd(key, value string, families Families) (l Lease, public [2]netip.Addr, err error) {
	var v etcdValue
	malformed := json.Unmarshal([]byte(value), &v)
	if malformed == nil {
		public = v.public()
	}
	l, err = v.lease(key, malformed, families)
	return l, public, err
}

// lease returns the lease of a key's last part with the value, which is malformed with that error.
func (v *etcdValue) lease(key string, malformed error, families Families) (Lease, error) {
	subnet, subnet6, err := ParseKey(key)
	if err != nil {
		return Lease{}, err
	}
	if malformed != nil {
		return Lease{}, fmt.Errorf(`value of %s is not of the form {"PublicIP":"192.0.2.1","PublicIPv6":null,"BackendType":"vxlan","BackendData":{...}}: %w`, key, malformed)
	}
	l := Lease{Backend: strings.ToLower(v.BackendType)}
	var errs []error
	for _, v4 := range []bool{true, false} {
		f, public, data, names := family{subnet: subnet}, v.PublicIP, v.BackendData, [2]string{"PublicIP", "BackendData"}
		if !v4 {
			f, public, data, names = family{subnet: subnet6}, "", v.BackendV6Data, [2]string{"PublicIPv6", "BackendV6Data"}
			if v.PublicIPv6 != nil {
				public = *v.PublicIPv6
			}
		}
		if !f.subnet.IsValid() || (v4 && !families.V4) || (!v4 && !families.V6) {
			continue
		}
		if f.publicIP, err = checkPublicIP(public, v4); err != nil {
			errs = append(errs, fmt.Errorf("value of %s: %s: %w", key, names[0], err))
			continue
		}
		if f.data, err = parseData(l.Backend, string(data)); err != nil {
			errs = append(errs, fmt.Errorf("value of %s: %s: %w", key, names[1], err))
			continue
		}
		l.setFamily(v4, f)
	}
	return l, errors.Join(errs...)
}

// public returns the valid addresses of the value.
func (v *etcdValue) public() (out [2]netip.Addr) {
	if addr, err := checkPublicIP(v.PublicIP, true); err == nil {
		out[0] = addr
	}
	if v.PublicIPv6 != nil {
		if addr, err := checkPublicIP(*v.PublicIPv6, false); err == nil {
			out[1] = addr
		}
	}
	return out
}
