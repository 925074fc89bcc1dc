package cniserver

import (
	"encoding/json"
	"errors"

	"weft.dev/weft/internal/cni"
	"weft.dev/weft/internal/rootsocket"
)

// Listen makes the socket at path for connections of the user uid (rootsocket.Listen). It answers other users with an error that the
// plugin can parse.
func Listen(path string, uid uint32) (*rootsocket.Listener, error) {
	return rootsocket.Listen(path, uid, refusal)
}

func refusal(reason error) []byte {
	failure := cni.AsError(reason)
	if forbidden := new(rootsocket.ForbiddenError); errors.As(reason, &forbidden) {
		failure = cni.Errorf(cni.CodeForbidden, "%w", reason)
	}
	body, err := json.Marshal(cni.Response{Error: failure})
	if err != nil {
		return []byte("{}") // an Error always encodes to JSON; the client treats this as an invalid answer
	}
	return body
}
