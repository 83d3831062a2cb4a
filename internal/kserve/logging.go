package kserve

import (
	"context"
	"math"
	"slices"

	"github.com/shoal-serving/shoal/internal/access"
	"github.com/shoal-serving/shoal/internal/infer"
)

// A Logging reports and changes the log settings of a running server.
type Logging interface {
	// ChangeLog applies c as a whole or not at all, and returns the resulting settings. The
	// zero LogChange changes nothing.
	ChangeLog(c LogChange) (LogSettings, error)
}

// ReadOnly returns a Logging that reports the settings of l, and rejects changes.
func ReadOnly(l Logging) Logging { return readOnly{l} }

type readOnly struct{ Logging }

func (r readOnly) ChangeLog(c LogChange) (LogSettings, error) {
	if c != (LogChange{}) {
		return LogSettings{}, ErrLogChange
	}
	return r.Logging.ChangeLog(c)
}

// ChangeLog changes the log settings for a caller that may. The zero LogChange only reads
// them. It returns ErrLogging if l is nil.
func ChangeLog(ctx context.Context, a Authorizer, l Logging, c LogChange) (s LogSettings, err error) {
	do := func() (err error) {
		if l == nil {
			return ErrLogging
		}
		s, err = l.ChangeLog(c)
		return err
	}
	if c != (LogChange{}) {
		err = a.Change(ctx, access.Change{Action: access.Configure, What: "change log settings"}, do)
	} else if err = a.Authorize(ctx, access.Observe, ""); err == nil {
		err = do()
	}
	return s, err
}

// LogSettings are the log settings of a server.
type LogSettings struct {
	File                 string // "" means stderr
	Info, Warning, Error bool
	Verbose              uint32 // greater than 0 logs every request
	Format               string
}

// A LogChange is a change of log settings. Fields that are nil stay unchanged.
type LogChange struct {
	Info, Warning, Error *bool
	Verbose              *uint32
	Format               *string
}

// Names of log settings, over HTTP and gRPC.
const (
	LogFile    = "log_file"
	LogInfo    = "log_info"
	LogWarning = "log_warning"
	LogError   = "log_error"
	LogVerbose = "log_verbose_level"
	LogFormat  = "log_format"
)

// logFormats are the valid log formats. The first three write the same text: default and
// ISO8601 are Triton's, and are accepted for compatibility.
var logFormats = []string{"text", "default", "ISO8601", "json"}

// With returns the settings after a change, or an error if the change is invalid.
func (s LogSettings) With(c LogChange) (LogSettings, error) {
	before := s
	for _, b := range []struct{ from, to *bool }{{c.Info, &s.Info}, {c.Warning, &s.Warning}, {c.Error, &s.Error}} {
		if b.from != nil {
			*b.to = *b.from
		}
	}
	if c.Verbose != nil {
		s.Verbose = *c.Verbose
	}
	if c.Format == nil {
		return s, nil
	}
	s.Format = *c.Format
	switch {
	case !slices.Contains(logFormats, s.Format):
		return before, infer.Errorf(infer.Invalid, "invalid argument for --log_format, got: %s, expected one of %q", s.Format, logFormats)
	case (s.Format == "json") != (before.Format == "json"):
		return before, infer.Errorf(infer.Unsupported, "log format can not be updated from %s to %s while the server runs; start it with --log-format=%[2]s", before.Format, s.Format)
	}
	return s, nil
}

// DecodeLogChange decodes the body of an HTTP request that changes log settings. As in
// Triton, unknown members are ignored.
func DecodeLogChange(body []byte, limits *Limits) (c LogChange, err error) {
	err = decodeMembers(body, limits, func(d *document, name string) error {
		switch name {
		case LogFile:
			return ErrLogFile
		case LogInfo:
			return pointTo(&c.Info, name, d.bool)
		case LogWarning:
			return pointTo(&c.Warning, name, d.bool)
		case LogError:
			return pointTo(&c.Error, name, d.bool)
		case LogVerbose:
			return pointTo(&c.Verbose, name, d.uint32)
		case LogFormat:
			return pointTo(&c.Format, name, d.string)
		}
		return d.skip()
	})
	return c, err
}

// pointTo makes p point to the value that read returns.
func pointTo[T any](p **T, field string, read func(field string) (T, error)) error {
	v, err := read(field)
	*p = &v
	return err
}

func (d *document) uint32(field string) (uint32, error) {
	n, err := d.uint(field)
	if err == nil && n > math.MaxUint32 {
		err = mistyped(field, "unsigned-integer")
	}
	return uint32(n), err
}
