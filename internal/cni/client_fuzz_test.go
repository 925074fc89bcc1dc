package cni

import (
	"bytes"
	"errors"
	"io"
	"net/http"
	"testing"
)

// Whatever answers on the socket: the plugin has a result or an error of the specification's, never both and never neither.
func FuzzReadAnswer(f *testing.F) {
	f.Add(200, []byte(`{"result":{"cniVersion":"1.0.0","ips":[{"address":"10.128.0.2/23"}]}}`))
	f.Add(200, []byte(`{"error":{"code":11,"msg":"try again later"}}`))
	f.Add(500, []byte(`{"error":{"code":-1,"msg":7}}`))
	f.Add(404, []byte(`<html>`))
	f.Fuzz(func(t *testing.T, status int, body []byte) {
		answer := &http.Response{StatusCode: status, Body: io.NopCloser(bytes.NewReader(body))}
		result, err := readAnswer("cni.sock", &Request{Command: CommandAdd}, answer)
		if (result == nil) == (err == nil) {
			t.Fatalf("result %v, error %v", result, err)
		}
		if known := new(Error); err != nil && !errors.As(err, &known) {
			t.Fatalf("an error that the runtime cannot read: %v", err)
		}
	})
}
