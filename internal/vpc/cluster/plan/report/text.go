package report

import (
	"strings"
	"unicode/utf8"
)

// Bounded returns a text of at most the given number of bytes that the API server stores unchanged: without invalid characters, which it
// would replace. It holds no memory of a longer text.
func Bounded(text string, most int) string {
	if len(text) <= most && utf8.ValidString(text) {
		return text
	}
	const cut = "..."
	text = strings.ToValidUTF8(text, "?")
	if len(text) <= most {
		return text
	}
	end := most - len(cut)
	for !utf8.RuneStart(text[end]) {
		end--
	}
	return text[:end] + cut
}
