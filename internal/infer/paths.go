package infer

import (
	"path"
	"regexp"
	"slices"
	"strings"
)

// absolutePath is a path of a file at the start of a text, or after something that can be in front
// of one. What follows a host name is not a path of a file.
var absolutePath = regexp.MustCompile(`(^|[\s'"(=])((?:/[^\s/'",;:()]+)+/?)`)

// WithoutPaths returns a text about a model as clients may see it: without the directories of
// the server. Of a path, it keeps what begins with the model's directory, or else the name of the
// file. The server's log has the whole paths.
func WithoutPaths(model, text string) string {
	return absolutePath.ReplaceAllStringFunc(text, func(found string) string {
		before, rest, _ := strings.Cut(found, "/")
		parts := strings.Split(strings.TrimSuffix(rest, "/"), "/")
		if i := slices.Index(parts, model); i >= 0 {
			return before + path.Join(parts[i:]...)
		}
		return before + parts[len(parts)-1]
	})
}
