package cni

import (
	"errors"
	"testing"
)

// Whatever program answers on the socket: the plugin returns either a result or a valid error of the specification.
func FuzzReadAnswer(f *testing.F) {
	for _, answer := range []string{
		"HTTP/1.0 200 OK\r\n\r\n" + `{"result":{"cniVersion":"1.0.0","ips":[{"address":"10.128.0.2/23"}]}}`,
		"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\n\r\n" + `{"error":{"code":11,"msg":"try again later"}}`,
		"HTTP/1.0 500 Internal Server Error\r\n\r\n" + `{"error":{"code":-1,"msg":7}}`,
		"HTTP/1.0 404 Not Found\r\n\r\n<html>", "HTTP/1.0 200 OK\r\n", "\r\n\r\n{}", "",
	} {
		f.Add([]byte(answer))
	}
	f.Fuzz(func(t *testing.T, answer []byte) {
		result, err := readAnswer("cni.sock", &Request{Command: CommandAdd}, answer)
		if (result == nil) == (err == nil) {
			t.Fatalf("result %v, error %v", result, err)
		}
		if known := new(Error); err != nil && !errors.As(err, &known) {
			t.Fatalf("an error that the runtime cannot read: %v", err)
		}
	})
}
