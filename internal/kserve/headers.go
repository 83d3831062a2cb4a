package kserve

import (
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"

	"github.com/shoal-serving/shoal/internal/infer"
)

// A HeaderPattern selects headers of requests, which models get as parameters. A nil pattern
// selects none.
type HeaderPattern struct{ re *regexp.Regexp }

// ParseHeaderPattern returns the pattern for a regular expression. As in Triton, a name
// matches if a part of it does, in upper or lower case; (?-i) at the start makes case matter.
func ParseHeaderPattern(text string) (*HeaderPattern, error) {
	re, err := regexp.Compile("(?i)" + text)
	if err != nil {
		return nil, fmt.Errorf("%q is not a regular expression: %w", text, err)
	}
	return &HeaderPattern{re}, nil
}

// Forward adds the selected headers to the parameters of req, as strings. Their names are in
// lower case, over gRPC and over HTTP, where they arrive in any case. A header replaces a
// parameter with its name, so that a client cannot contradict a header that a proxy sets. Of
// several values of a header the last counts, as in Triton.
func (p *HeaderPattern) Forward(req *infer.Request, headers map[string][]string) {
	if p == nil {
		return
	}
	owned := false
	for _, header := range slices.Sorted(maps.Keys(headers)) {
		name, values := strings.ToLower(header), headers[header]
		if len(values) == 0 || strings.HasPrefix(name, ":") || !p.re.MatchString(name) {
			continue // names with a colon belong to HTTP/2 itself
		}
		if !owned {
			// Requests with the same JSON part share theirs.
			req.Parameters, owned = slices.Clone(req.Parameters), true
		}
		req.Parameters = slices.DeleteFunc(req.Parameters, func(have infer.Parameter) bool { return have.Name == name })
		value := strings.ToValidUTF8(values[len(values)-1], "\uFFFD")
		req.Parameters = append(req.Parameters, infer.Parameter{Name: name, Value: value})
	}
}

// FirstValue returns the first value of a header, or "" if it has none. With the constants of
// this project and others in HTTP's canonical form it is what http.Header.Get returns, which
// makes its name canonical each time: that took one of fourteen instructions of a request.
func FirstValue(values []string) string {
	if len(values) == 0 {
		return ""
	}
	return values[0]
}
