package identity

import (
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"strings"

	"github.com/shoal-serving/shoal/internal/access"
)

// ClaimsHeader has the claims of a token that a trusted proxy has verified: the payload of
// the token as it is, which is base64url-encoded JSON. Envoy's jwt_authn filter writes it
// (forward_payload_header).
const ClaimsHeader = "Shoal-Claims"

// maxClaims is the largest size of the claims of a token, encoded.
const maxClaims = 16 << 10

// claimsPrincipal returns the principal whom claims describe.
func (s *Settings) claimsPrincipal(names Claims, claims map[string]any) (*access.Principal, error) {
	name, _ := claim(claims, names.Name).(string)
	if name == "" {
		return nil, fmt.Errorf("the token has no claim %q", names.Name)
	}
	tenant := ""
	if names.Tenant != "" {
		tenant, _ = claim(claims, names.Tenant).(string)
	}
	subjects := []string{subjectUser + ":" + name}
	groups, _ := claim(claims, names.Groups).([]any)
	for _, g := range groups {
		if group, ok := g.(string); ok {
			subjects = append(subjects, subjectGroup+":"+group)
		}
	}
	return s.principal(subjectUser+":"+name, tenant, subjects...), nil
}

// claim returns the claim with a name, whose parts are separated by dots. A claim that has
// the whole name itself takes precedence, because names of claims are often URLs.
func claim(claims map[string]any, name string) any {
	if value, ok := claims[name]; ok {
		return value
	}
	first, rest, ok := strings.Cut(name, ".")
	if !ok {
		return nil
	}
	inner, _ := claims[first].(map[string]any)
	return claim(inner, rest)
}

// decodeClaims decodes the header of a trusted proxy.
func decodeClaims(header string) (map[string]any, error) {
	if len(header) > maxClaims {
		return nil, errors.New("the header " + ClaimsHeader + " is too long")
	}
	text, err := base64.RawURLEncoding.DecodeString(strings.TrimRight(header, "="))
	if err != nil {
		return nil, fmt.Errorf("the header %s is not base64url-encoded: %w", ClaimsHeader, err)
	}
	var claims map[string]any
	if err := json.Unmarshal(text, &claims); err != nil {
		return nil, fmt.Errorf("the header %s is not a JSON object: %w", ClaimsHeader, err)
	}
	return claims, nil
}
