package identity

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"net/url"
	"slices"
	"strings"

	"go.yaml.in/yaml/v3"

	"github.com/shoal-serving/shoal/internal/access"
)

// Settings are the content of an access file: which issuers and proxies may
// name callers, and what callers may do.
type Settings struct {
	// Version is the version of the format: 1.
	Version int `yaml:"version"`
	// Issuers are OpenID Connect issuers whose tokens are accepted.
	Issuers []Issuer `yaml:"issuers"`
	// Proxies are identities of client certificates: the common name, a DNS name or a URI. Their
	// holders may say for whom they call, in the header [ClaimsHeader].
	Proxies []string `yaml:"proxies"`
	// ProxyClaims says which claims of that header have the name, the tenant and the groups.
	ProxyClaims Claims `yaml:"proxy_claims"`
	// Grants give roles to those whom a token, a certificate or a proxy names.
	Grants []SubjectGrant `yaml:"grants"`
	// Tenants are the limits of tenants, by name. "*" is for tenants that are not listed.
	Tenants map[string]access.Limits `yaml:"tenants"`
}

// Claims are names of claims. A claim in an object is written with dots, such as
// realm_access.roles.
type Claims struct {
	Name   string `yaml:"name"`   // default sub
	Tenant string `yaml:"tenant"` // "" means that the grants name the tenant
	Groups string `yaml:"groups"` // default groups
}

// An Issuer is an OpenID Connect issuer.
type Issuer struct {
	URL        string   `yaml:"url"`
	Audience   string   `yaml:"audience"`
	Algorithms []string `yaml:"algorithms"` // default RS256 and ES256
	CA         string   `yaml:"ca"`         // file of certificates to trust instead of the system's
	Claims     Claims   `yaml:"claims"`
}

// A SubjectGrant gives a grant to subjects: "user:NAME" is the name claim of a token,
// "group:NAME" one of its groups, "certificate:NAME" an identity of a certificate, and "*"
// every caller that is authenticated by one of these.
type SubjectGrant struct {
	access.Grant `yaml:",inline"`

	To     []string `yaml:"to"`
	Tenant string   `yaml:"tenant"` // of those whose token names none
}

// algorithms are the signatures that an issuer may use. Symmetric ones are not among them,
// and neither is none.
var algorithms = []string{"RS256", "RS384", "RS512", "PS256", "PS384", "PS512", "ES256", "ES384", "ES512", "EdDSA"}

// ParseSettings reads an access file. Unknown fields are errors: a misspelt one must not
// open a server.
func ParseSettings(name string, text []byte) (*Settings, error) {
	d := yaml.NewDecoder(bytes.NewReader(text))
	d.KnownFields(true)
	var s Settings
	if err := d.Decode(&s); err != nil && !errors.Is(err, io.EOF) {
		return nil, fmt.Errorf("%s: %w", name, err)
	}
	if err := s.complete(); err != nil {
		return nil, fmt.Errorf("%s: %w", name, err)
	}
	return &s, nil
}

// complete checks the settings and sets the defaults.
func (s *Settings) complete() error {
	if s.Version != 1 {
		return fmt.Errorf("found version %d, expected version: 1", s.Version)
	}
	s.ProxyClaims = s.ProxyClaims.withDefaults()
	seen := map[string]bool{}
	for i := range s.Issuers {
		issuer := &s.Issuers[i]
		if err := issuer.complete(); err != nil {
			return fmt.Errorf("issuers[%d]: %w", i, err)
		}
		if seen[issuer.URL] {
			return fmt.Errorf("issuers[%d]: %s is listed twice", i, issuer.URL)
		}
		seen[issuer.URL] = true
	}
	for i, g := range s.Grants {
		if err := g.validate(); err != nil {
			return fmt.Errorf("grants[%d]: %w", i, err)
		}
	}
	return access.ValidateTenants(s.Tenants)
}

func (c Claims) withDefaults() Claims {
	if c.Name == "" {
		c.Name = "sub"
	}
	if c.Groups == "" {
		c.Groups = "groups"
	}
	return c
}

func (i *Issuer) complete() error {
	u, err := url.Parse(i.URL)
	switch {
	case err != nil:
		return err
	case u.Scheme != "https" && (u.Scheme != "http" || !IsLoopback(u.Hostname())):
		return fmt.Errorf("url: found %q, expected an https address; http is accepted for this machine only", i.URL)
	case i.Audience == "":
		return errors.New("audience is missing: a token for another service must not be accepted here")
	}
	if len(i.Algorithms) == 0 {
		i.Algorithms = []string{"RS256", "ES256"}
	}
	for _, a := range i.Algorithms {
		if !slices.Contains(algorithms, a) {
			return fmt.Errorf("algorithms: found %q, expected some of %s", a, strings.Join(algorithms, ", "))
		}
	}
	i.Claims = i.Claims.withDefaults()
	return nil
}

func (g SubjectGrant) validate() error {
	if len(g.To) == 0 {
		return errors.New("to is missing: name users, groups or certificates, such as group:ml-team")
	}
	for _, to := range g.To {
		kind, name, ok := strings.Cut(to, ":")
		if to != "*" && (!ok || name == "" || !slices.Contains([]string{subjectUser, subjectGroup, subjectCertificate}, kind)) {
			return fmt.Errorf("to: found %q, expected user:NAME, group:NAME, certificate:NAME or *", to)
		}
	}
	return g.Validate()
}

// Kinds of subjects.
const (
	subjectUser        = "user"
	subjectGroup       = "group"
	subjectCertificate = "certificate"
)

// principal returns the rights of someone with the given subjects, such as "user:ann" and
// "group:ml-team".
func (s *Settings) principal(name, tenant string, subjects ...string) *access.Principal {
	p := &access.Principal{Name: name, Tenant: tenant}
	for _, g := range s.Grants {
		if slices.ContainsFunc(g.To, func(to string) bool { return to == "*" || slices.Contains(subjects, to) }) {
			p.Grants = append(p.Grants, g.Grant)
			if p.Tenant == "" {
				p.Tenant = g.Tenant
			}
		}
	}
	return p
}
