package kserve

import (
	"math"
	"slices"

	"github.com/shoal-serving/shoal/internal/infer"
)

// A Logging tells what is logged, and changes it while the server runs.
type Logging interface {
	// ChangeLog changes what c names, all of it or nothing, and returns what is in
	// effect then. The zero LogChange changes nothing.
	ChangeLog(c LogChange) (LogSettings, error)
}

// LogSettings say what is logged, and where to.
type LogSettings struct {
	File                 string // "" means stderr
	Info, Warning, Error bool
	Verbose              uint32 // more than 0 logs every request
	Format               string
}

// A LogChange has what is to be changed, and nil for the rest.
type LogChange struct {
	Info, Warning, Error *bool
	Verbose              *uint32
	Format               *string
}

// The names of log settings, for both protocols.
const (
	LogFile    = "log_file"
	LogInfo    = "log_info"
	LogWarning = "log_warning"
	LogError   = "log_error"
	LogVerbose = "log_verbose_level"
	LogFormat  = "log_format"
)

// The formats of a log. The first three write the same text: two of them are
// Triton's, which ours has no need to tell apart.
var logFormats = []string{"text", "default", "ISO8601", "json"}

// With returns the settings after a change, or why they cannot be changed so.
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

// DecodeLogChange reads the body of an HTTP request that changes log settings. As
// in Triton, members that are not known are let pass.
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

// pointTo makes p point to the value that read reads.
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
