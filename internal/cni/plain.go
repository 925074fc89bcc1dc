package cni

import (
	"slices"
	"strconv"
	"strings"
)

// Plain is a network configuration that is passed on as it is: it has nothing that the plugin has to look into. It is parsed without package
// json, whose first use takes a process longer than all else that the plugin does.
type Plain struct {
	// Version is cniVersion, and Socket and Records have their defaults.
	Version, Socket, Records, Ports string

	config []byte
}

// maxPlain is the maximum size of a plain configuration, in bytes.
const maxPlain = 16 << 10

// ParsePlain returns a valid configuration in the plain form that runtimes write: an object whose fields for the plugin are strings without
// escapes. ok is false for any other, for ParseNetConf: with other fields, with annotations, and for one that is not valid. The values of the
// fields that are not the plugin's are not validated.
func ParsePlain(config []byte) (conf Plain, ok bool) {
	conf = Plain{Socket: DefaultSocket, Records: DefaultRecords, config: config}
	if len(config) > maxPlain {
		return conf, false
	}
	var name string
	var seen []string
	ok = members(config, func(key, value string) bool {
		var field *string
		switch key {
		case "cniVersion":
			field = &conf.Version
		case "name":
			field = &name
		case "socket":
			field = &conf.Socket
		case "records":
			field = &conf.Records
		case "ports":
			field = &conf.Ports
		case "type", "delegate", "ipam", "capabilities", "dataDir", "subnetFile", "mtu":
		case "runtimeConfig":
			if strings.Contains(value, annotationsKey) { // there may be more than the agent accepts: see WithoutAnnotations
				return false
			}
		default:
			return false
		}
		if slices.Contains(seen, key) {
			return false
		}
		seen = append(seen, key)
		if field == nil {
			return true
		}
		*field, ok = plainString(value)
		return ok
	})
	ok = ok && IsIdentifier(name) && isCleanPath(conf.Socket) && len(conf.Socket) <= maxSocketPath && isCleanPath(conf.Records)
	return conf, ok && (conf.Ports == "" || isCleanPath(conf.Ports))
}

// members calls visit for the members of a JSON object, with the text of their values. It returns false if data is not one object whose keys
// have no escapes, or when visit does. The values are not validated, but they end where JSON says.
func members(data []byte, visit func(key, value string) bool) bool {
	s := scanner{text: string(data)}
	if !s.take('{') {
		return false
	}
	for {
		key, ok := plainString(s.value())
		if !ok || !s.take(':') {
			return false
		}
		value := s.value()
		if value == "" || !visit(key, value) {
			return false
		}
		if s.take(',') {
			continue
		}
		return s.take('}') && s.rest() == ""
	}
}

// scanner reads JSON text.
type scanner struct{ text string }

// rest returns what is left, after white space.
func (s *scanner) rest() string {
	for s.text != "" && (s.text[0] == ' ' || s.text[0] == '\n' || s.text[0] == '\t' || s.text[0] == '\r') {
		s.text = s.text[1:]
	}
	return s.text
}

// take skips one character, if it is next.
func (s *scanner) take(c byte) bool {
	rest := s.rest()
	if rest == "" || rest[0] != c {
		return false
	}
	s.text = rest[1:]
	return true
}

// value returns the text of the next value; empty if it does not end.
func (s *scanner) value() string {
	rest := s.rest()
	end := valueEnd(rest)
	s.text = rest[end:]
	return rest[:end]
}

// valueEnd returns the length of the value with which text begins; 0 if it does not end, or its brackets are not in pairs.
func valueEnd(text string) int {
	var open []byte // the brackets that close what is open
	quoted := false
	for i := 0; i < len(text); i++ {
		c := text[i]
		switch {
		case quoted && c == '\\':
			i++
			continue
		case c < ' ' && quoted:
			return 0
		case c == '"':
			quoted = !quoted
			if !quoted && len(open) == 0 {
				return i + 1
			}
		case quoted:
		case c == '{', c == '[':
			open = append(open, c+2) // in ASCII, the closing bracket
		case (c == '}' || c == ']') && len(open) > 0:
			if open[len(open)-1] != c {
				return 0
			}
			if open = open[:len(open)-1]; len(open) == 0 {
				return i + 1
			}
		case len(open) == 0 && (c == ',' || c == '}' || c == ':' || c <= ' '):
			return i
		}
	}
	return 0
}

// plainString returns the content of a JSON string in ASCII without escapes.
func plainString(value string) (text string, ok bool) {
	if len(value) < 2 || value[0] != '"' || value[len(value)-1] != '"' {
		return "", false
	}
	text = value[1 : len(value)-1]
	return text, isPlain(text)
}

// isPlain reports whether a text is its own form in JSON.
func isPlain(text string) bool {
	for i := range len(text) {
		if c := text[i]; c < ' ' || c > '~' || c == '"' || c == '\\' {
			return false
		}
	}
	return true
}

// Encode returns the request with this configuration as JSON; ok is false if the request is not valid, or not plain. Its Config is not read.
func (p *Plain) Encode(req *Request) (body []byte, ok bool) {
	if req.validateAttachment() != nil || req.Args.validate() != nil || !isPlain(req.Netns+req.IfName+req.Path) {
		return nil, false
	}
	body = make([]byte, 0, len(p.config)+len(req.Netns)+len(req.Path)+1024)
	body = append(body, `{"command":"`...)
	body = append(body, req.Command...)
	for _, field := range [][2]string{{"containerID", req.ContainerID}, {"netns", req.Netns}, {"ifName", req.IfName}, {"path", req.Path}} {
		body = appendField(append(body, `",`...), field[0], field[1])
	}
	body = append(body, `","args":{`...)
	for _, arg := range [][2]string{
		{"podNamespace", req.Args.PodNamespace}, {"podName", req.Args.PodName}, {"podUID", req.Args.PodUID}, {"infraContainerID", req.Args.InfraContainerID},
	} {
		if body[len(body)-1] != '{' {
			body = append(body, `",`...)
		}
		body = appendField(body, arg[0], arg[1])
	}
	body = append(body, `"},"config":`...)
	body = append(body, p.config...)
	return append(body, '}'), true
}

// appendField appends a field with a plain value, but for the quote at its end.
func appendField(body []byte, name, value string) []byte {
	body = append(strconv.AppendQuote(body, name), `:"`...)
	return append(body, value...)
}
