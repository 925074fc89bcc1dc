package lease

import (
	"encoding/base64"
	"encoding/json"
	"fmt"
)

func (d WireGuard) text() any {
	return wireguardText{base64.StdEncoding.EncodeToString(d.PublicKey[:]), d.Port}
}

func parseWireGuard(text string) (Data, error) {
	var t wireguardText
	if err := json.Unmarshal([]byte(text), &t); err != nil {
		return nil, fmt.Errorf(`%s is not of the form {"PublicKey":"<base64>","Port":51820}`, brief(text))
	}
	raw, err := base64.StdEncoding.DecodeString(t.PublicKey)
	if err != nil || len(raw) != len(WireGuard{}.PublicKey) {
		return nil, fmt.Errorf("PublicKey %q is not a key: 32 bytes in base64", t.PublicKey)
	}
	d := WireGuard{PublicKey: [32]byte(raw), Port: t.Port}
	if d.PublicKey == [32]byte{} {
		return nil, fmt.Errorf("PublicKey %q is all zero", t.PublicKey)
	}
	return d, nil
}
