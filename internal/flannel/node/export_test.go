package node

// Conflist returns the runtime's configuration for a cni-conf.json.
func Conflist(text []byte) ([]byte, error) {
	c, err := parseConf(text)
	if err != nil {
		return nil, err
	}
	return c.conflist(nil)
}
