package kserve

import (
	"encoding/base64"
	"strconv"
	"strings"

	"github.com/shoal-serving/shoal/internal/catalog"
	"github.com/shoal-serving/shoal/internal/infer"
)

// Parameters of requests that load and unload models.
const (
	ConfigParameter           = "config"
	UnloadDependentsParameter = "unload_dependents"

	filePrefix = "file:"
)

// FileParameter returns the file path that a parameter name contains, if it has one.
func FileParameter(name string) (path string, ok bool) { return strings.CutPrefix(name, filePrefix) }

// UnknownLoadParameter returns the error for an unknown parameter of a load request.
func UnknownLoadParameter(name string) error {
	return infer.Errorf(infer.Invalid, "unknown parameter '%s'; valid are '%s', and '%s' with the path of a file", name, ConfigParameter, filePrefix)
}

// UnknownUnloadParameter returns the error for an unknown parameter of an unload request.
func UnknownUnloadParameter(name string) error {
	return infer.Errorf(infer.Invalid, "unknown parameter '%s'; valid is '%s'", name, UnloadDependentsParameter)
}

// DecodeIndex decodes the body of an HTTP request for the repository index. ready reports
// whether only ready models are requested; an empty body requests all. Like DecodeLoad and
// DecodeUnload, it expects limits with defaults set.
func DecodeIndex(body []byte, limits *Limits) (ready bool, err error) {
	err = decodeMembers(body, limits, func(d *document, name string) (err error) {
		if name != "ready" {
			return d.skip()
		}
		ready, err = d.bool("ready")
		return err
	})
	return ready, err
}

// DecodeLoad decodes the body of an HTTP request to load a model. It does not retain body.
func DecodeLoad(body []byte, limits *Limits) (o catalog.LoadOptions, err error) {
	err = decodeParameters(body, limits, func(d *document, name string) (err error) {
		path, isFile := FileParameter(name)
		switch {
		case name == ConfigParameter:
			var text []byte
			text, err = d.longString(name)
			o.Config = string(text)
		case isFile:
			var content []byte
			if content, err = d.base64(name); err == nil {
				err = o.AddFile(path, content)
			}
		default:
			err = UnknownLoadParameter(name)
		}
		return err
	})
	return o, err
}

// DecodeUnload decodes the body of an HTTP request to unload a model.
func DecodeUnload(body []byte, limits *Limits) (o catalog.UnloadOptions, err error) {
	err = decodeParameters(body, limits, func(d *document, name string) (err error) {
		if name != UnloadDependentsParameter {
			return UnknownUnloadParameter(name)
		}
		o.Dependents, err = d.bool(name)
		return err
	})
	return o, err
}

// decodeMembers calls each for every member of the object in body. An empty body has no
// members.
func decodeMembers(body []byte, limits *Limits, each func(d *document, name string) error) error {
	if len(body) == 0 {
		return nil
	}
	d := openDocument(body, limits)
	defer d.close()
	if err := d.members("request", func(name []byte) error { return each(&d, string(name)) }); err != nil {
		return err
	}
	return d.end()
}

// decodeParameters calls each for every parameter.
func decodeParameters(body []byte, limits *Limits, each func(d *document, name string) error) error {
	parameters := 0
	return decodeMembers(body, limits, func(d *document, name string) error {
		if name != "parameters" {
			return d.skip()
		}
		return d.members(name, func(name []byte) error {
			parameters++
			if err := limits.CheckParameters(parameters); err != nil {
				return err
			}
			return each(d, string(name))
		})
	})
}

// base64 reads a base64 string and returns the bytes in new memory.
func (d *document) base64(field string) ([]byte, error) {
	text, err := d.longString(field)
	if err != nil {
		return nil, err
	}
	content, err := base64.StdEncoding.AppendDecode(nil, text)
	if err != nil {
		return nil, unparsable(field, err.Error())
	}
	return content, nil
}

// VersionHeader is the header, or the key of gRPC metadata, with the version of the model for
// requests that name none. A proxy adds it to split traffic between versions.
const VersionHeader = "Shoal-Model-Version"

// EpochHeader is the header, or the key of gRPC metadata, with the epoch of a load or unload.
const EpochHeader = "Shoal-Epoch"

// LoadFailedHeader is the header of the answer to a load that says that the server cannot load the
// model. Statuses do not say that: 503 is also that of a server which stops or is busy.
const LoadFailedHeader = "Shoal-Load-Failed"

// LoadFailed reports whether the error of a load says that the server cannot load the model. Others
// refuse the request, whatever the model is.
func LoadFailed(err error) bool {
	switch infer.CodeOf(err) {
	case infer.Internal, infer.Invalid, infer.NotFound, infer.Unsupported, infer.Unavailable:
	default:
		return false
	}
	return err != nil && !infer.HasReason(err, infer.NotInMemory, infer.ShuttingDown)
}

// ParseEpoch reads the value of an [EpochHeader]; "" means that there is none.
func ParseEpoch(text string) (uint64, error) {
	if text == "" {
		return 0, nil
	}
	n, err := strconv.ParseUint(text, 10, 64)
	if err != nil || n == 0 {
		return 0, infer.Errorf(infer.Invalid, "%s: %q is not valid: expected a whole number greater than 0", EpochHeader, text)
	}
	return n, nil
}
