package openstack

import (
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strings"

	"github.com/gophercloud/gophercloud/v2"
)

// Error is an answer of OpenStack that rejects a request.
type Error struct {
	Status int    // of HTTP
	Type   string // Neutron's name of the error, such as IpAddressAlreadyAllocated; "" from other services
	Words  string // the service's message, in one line of at most 500 bytes
}

// Error returns the service's message.
func (e *Error) Error() string {
	if e.Type != "" {
		return fmt.Sprintf("OpenStack answers %d %s: %s", e.Status, e.Type, e.Words)
	}
	return fmt.Sprintf("OpenStack answers %d: %s", e.Status, e.Words)
}

// Explain replaces gophercloud's error for an unexpected status by an Error. It omits the request's address and body: bodies of requests
// contain secrets. Other errors stay as they are.
func Explain(err error) error {
	if refused, ok := errors.AsType[gophercloud.ErrUnexpectedResponseCode](err); ok {
		kind, words := said(refused.Body)
		if words == "" {
			words = http.StatusText(refused.Actual)
		}
		return &Error{Status: refused.Actual, Type: kind, Words: words}
	}
	if renewal, ok := errors.AsType[*gophercloud.ErrUnableToReauthenticate](err); ok {
		return fmt.Errorf("get a new token from Keystone: %w", Explain(renewal.ErrReauth))
	}
	return err
}

// maxWords limits, in bytes, how much of an answer is used.
const maxWords = 500

// said finds the message in an answer's body: in Neutron's, Octavia's or Keystone's form, or as plain text.
func said(body []byte) (kind, words string) {
	var form struct {
		NeutronError json.RawMessage `json:"NeutronError"`
		Fault        string          `json:"faultstring"`
		Keystone     struct {
			Message string `json:"message"`
		} `json:"error"`
	}
	if json.Unmarshal(body, &form) != nil {
		return "", line(string(body))
	}
	words = form.Fault + form.Keystone.Message
	var detailed struct{ Type, Message string }
	var plain string
	if json.Unmarshal(form.NeutronError, &detailed) == nil {
		kind, words = detailed.Type, detailed.Message
	} else if json.Unmarshal(form.NeutronError, &plain) == nil {
		words = plain
	}
	return line(kind), line(words)
}

// line turns a server's message into one line of printable text.
func line(text string) string {
	text = strings.Join(strings.FieldsFunc(text, func(r rune) bool { return r <= ' ' || r == 0x7f || r == 0xfffd }), " ")
	if len(text) > maxWords {
		text = strings.ToValidUTF8(text[:maxWords], "") + "..."
	}
	return text
}

// Is reports whether an error is an answer with that HTTP status. It also examines gophercloud's errors.
func Is(err error, status int) bool {
	if e, ok := errors.AsType[*Error](err); ok {
		return e.Status == status
	}
	return gophercloud.ResponseCodeIs(err, status)
}

// NotFound reports whether an error says that the object does not exist.
func NotFound(err error) bool { return Is(err, http.StatusNotFound) }

// Unauthorized reports whether OpenStack rejects the credentials, not only an expired token.
func Unauthorized(err error) bool { return Is(err, http.StatusUnauthorized) }

// Late reports whether OpenStack may still carry out a request that failed: the time for its answer was up, here or at a proxy.
func Late(err error) bool {
	return errors.Is(err, context.DeadlineExceeded) || Is(err, http.StatusGatewayTimeout)
}

// Away reports whether OpenStack did not answer, only with errors of its own, or that it is busy: what was requested is not known to be wrong.
func Away(err error) bool {
	if e, ok := errors.AsType[*Error](err); ok {
		return e.Status >= http.StatusInternalServerError && e.Status != http.StatusNotImplemented || e.Status == http.StatusTooManyRequests
	}
	if _, untrusted := errors.AsType[*tls.CertificateVerificationError](err); untrusted {
		return false
	}
	_, lost := errors.AsType[*url.Error](err)
	return lost || errors.Is(err, context.DeadlineExceeded) || errors.Is(err, io.ErrUnexpectedEOF)
}

// Unknown reports whether the outcome of a request is unknown: the connection failed, or the server did.
func Unknown(err error) bool {
	if err == nil {
		return false
	}
	if e, ok := errors.AsType[*Error](err); ok {
		return e.Status >= http.StatusInternalServerError
	}
	if refused, ok := errors.AsType[gophercloud.ErrUnexpectedResponseCode](err); ok {
		return refused.Actual >= http.StatusInternalServerError
	}
	return true
}
