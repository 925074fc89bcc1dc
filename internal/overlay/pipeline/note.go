package pipeline

import (
	"encoding/binary"

	"weft.dev/weft/internal/openflow"
	"weft.dev/weft/internal/openflow/action"
	"weft.dev/weft/internal/overlay/pipeline/cookies"
	"weft.dev/weft/internal/overlay/pipeline/layout"
	"weft.dev/weft/internal/reconcile"
)

// Note returns the flow that carries the hash of all others. No packet reaches it. It is written last: if it is present, the state with
// that hash was complete.
func Note(hash reconcile.Hash) (openflow.Key, openflow.Entry) {
	var data []byte
	for _, word := range hash {
		data = binary.BigEndian.AppendUint64(data, word)
	}
	flow := &openflow.Flow{Table: layout.TableNote, Cookie: cookies.Of(OwnerState), Actions: action.Actions{action.Note(data)}}
	return flow.Key(), flow
}

// IsNote reports whether a key is that of Note, which is written last.
func IsNote(key openflow.Key) bool { return key.Group == 0 && key.Table == layout.TableNote }
