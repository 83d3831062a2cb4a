package kserve

import (
	"context"
	"errors"
	"strconv"

	"github.com/shoal-serving/shoal/internal/budget"
	"github.com/shoal-serving/shoal/internal/buf"
	"github.com/shoal-serving/shoal/internal/infer"
	"github.com/shoal-serving/shoal/tensor"
)

// A Request is an inference request received over HTTP, with the format of the response.
type Request struct {
	infer.Request

	// Shared are the tensors in shared memory, which have no data until the caller attaches
	// them; see [Regions.Attach].
	Shared SharedTensors

	binary        bool   // whether outputs are binary if the request lists none
	binaryOutputs []bool // the same for each of Outputs
}

// DecodeOptions are the properties of a request that are not in its body.
type DecodeOptions struct {
	Model   string
	Version string

	// JSONLength is the value of [JSONLengthHeader]. "" means that the header is missing and
	// the whole body is JSON; "0" that the whole body is the data of the model's only input.
	JSONLength string

	// Limits bound the request. The caller enforces the limit of the body's length.
	Limits Limits
}

// DecodeRequest decodes the body of an inference request. Tensors sent as binary data
// become views of body; the others are copied into new memory, by which charge grows before it is
// allocated. If it cannot, the error is [ErrOverBudget]. Nil means that there is no budget.
//
// A large document waits for a core, until ctx ends.
//
// The caller keeps its reference to body. If the error is nil, the caller also owns the
// reference to the request's Memory.
func DecodeRequest(ctx context.Context, body *buf.Buf, o DecodeOptions, charge *budget.Charge) (*Request, error) {
	length, err := jsonLength(o.JSONLength, len(body.B))
	if err != nil {
		return nil, err
	}
	if length == 0 && o.JSONLength != "" {
		return o.request().setRaw(body), nil
	}
	if o.JSONLength != "" {
		if req := o.lookupHeader(body, length); req != nil {
			return req, nil
		}
	}
	release, err := limitDocument(ctx, int64(length), largeDocument)
	if err != nil {
		return nil, err
	}
	defer release()
	limits := o.Limits.WithDefaults()
	memory := shortDocuments.Get().(*[]byte)
	defer shortDocuments.Put(memory)
	short, arrays := extractLongArrays((*memory)[:0], body.B[:length])
	if cap(short) <= maxShortDocument {
		*memory = short
	}
	if arrays != nil {
		// If this fails, decode the original document, so that errors have its offsets.
		if req, err := o.decodeShort(body, length, short, arrays, &limits, charge); err == nil || errors.Is(err, ErrOverBudget) {
			return req, err
		}
	}
	d := decoder{document: openDocument(body.B[:length], &limits), req: o.request(), rest: body.B[length:]}
	req, err := d.decode(body, charge)
	if err == nil && o.JSONLength != "" && len(d.pending) == 0 {
		o.storeHeader(body.B[:length], req)
	}
	return req, err
}

// maxShortDocument is the largest buffer that is returned to the pool.
const maxShortDocument = 64 << 10

func (o *DecodeOptions) request() *Request {
	return &Request{Request: infer.Request{Model: o.Model, Version: o.Version}}
}

var errLongArrays = errors.New("long arrays are left that are not the data of an input")

// decodeShort decodes a document without its long arrays. It fails unless each of them is
// the data of an input.
func (o *DecodeOptions) decodeShort(body *buf.Buf, length int, short []byte, arrays []longArray, limits *Limits, charge *budget.Charge) (*Request, error) {
	d := decoder{document: openDocument(short, limits), req: o.request(), rest: body.B[length:]}
	d.longArrays = arrays
	req, err := d.decode(body, charge)
	if err == nil && len(d.longArrays) > 0 {
		req.Memory.Release()
		d.discharge(charge)
		return nil, errLongArrays
	}
	return req, err
}

// decode decodes the document and closes it.
func (d *decoder) decode(body *buf.Buf, charge *budget.Charge) (*Request, error) {
	defer d.close()
	if err := d.request(); err != nil {
		return nil, err
	}
	if err := d.data(body, charge); err != nil {
		return nil, err
	}
	return d.req, nil
}

func jsonLength(header string, size int) (int, error) {
	if header == "" {
		return size, nil
	}
	n, err := strconv.Atoi(header)
	if err != nil || n < 0 || n > size {
		return 0, infer.Errorf(infer.Invalid, "inference header size should be in range (0, %d), got: %s", size, header)
	}
	return n, nil
}

// setRaw makes the whole body the data of the only input. Its name, type and shape follow
// from the model's configuration.
func (r *Request) setRaw(body *buf.Buf) *Request {
	body.Retain()
	r.Memory = body
	r.Inputs = []tensor.Tensor{{Data: body.B}}
	r.binary = true
	return r
}

// A decoder decodes one request.
type decoder struct {
	document
	req     *Request
	rest    []byte // binary data not yet assigned to an input
	classes Classes

	parameters int // of the request and its tensors so far

	pending []pending
	size    int64 // total bytes of the pending inputs
}

// discharge gives back what data has charged.
func (d *decoder) discharge(charge *budget.Charge) {
	if charge != nil && len(d.pending) > 0 {
		charge.Shrink(int64(buf.Capacity(int(d.size))))
	}
}

// pending is an input whose data is JSON. The data is decoded after the rest of the
// document, because only then is the total amount of memory known.
type pending struct {
	input    int // index
	text     []byte
	offset   int64 // of text in the document
	elements int64
	single   bool  // text is one element, not an array
	at, size int64 // where its data goes in memory
}

// append appends the data to dst in the encoding of a tensor.
func (p *pending) append(dst []byte, t tensor.Type, limits *Limits) ([]byte, error) {
	if p.single {
		return appendSingle(dst, t, p.text, p.offset, limits)
	}
	return appendData(dst, t, p.elements, p.text, p.offset, limits)
}

// request decodes the JSON part of the body.
func (d *decoder) request() error {
	hasInputs := false
	err := d.members("request", func(name []byte) (err error) {
		switch string(name) {
		case "id":
			d.req.ID, err = d.string("id")
		case "parameters":
			err = d.eachParameter(d.parameter)
		case "inputs":
			hasInputs = true
			err = d.elements("inputs", d.input)
		case "outputs":
			err = d.elements("outputs", d.output)
		default:
			err = d.skip()
		}
		return err
	})
	switch {
	case err != nil:
		return err
	case !hasInputs:
		return missing("inputs")
	case len(d.rest) > 0:
		return infer.Errorf(infer.Invalid, "unexpected additional input data for model '%s'", d.req.Model)
	}
	return d.end()
}

// eachParameter calls each for the parameters of a request or of a tensor.
func (d *decoder) eachParameter(each func(name []byte) error) error {
	return d.members("parameters", func(name []byte) error {
		d.parameters++
		if err := d.limits.CheckParameters(d.parameters); err != nil {
			return err
		}
		return each(name)
	})
}

// parameter decodes a parameter of the request.
func (d *decoder) parameter(name []byte) (err error) {
	if string(name) == "binary_data_output" { // exists only over HTTP
		d.req.binary, err = d.bool("binary_data_output")
		return err
	}
	field := string(name)
	return SetParameter(&d.req.Request, field, func(kind ParameterKind) (any, error) { return d.parameterValue(kind, field) })
}

func (d *decoder) parameterValue(kind ParameterKind, name string) (any, error) {
	found := d.json.PeekKind()
	switch {
	case kind == ReservedParameter:
		return nil, infer.Errorf(infer.Invalid, "parameter keys starting with 'triton_' are reserved for Triton usage and should not be specified.")
	case kind == UintParameter || kind == SequenceParameter && found != '"':
		return d.uint(name)
	case kind == BoolParameter || found == 't' || found == 'f':
		return d.bool(name)
	case found == '"':
		return d.string(name)
	case found == '0':
		return d.number()
	}
	return nil, d.skip() // values that cannot be parameters are ignored
}

// data decodes the pending inputs into memory, and sets the request's Memory.
func (d *decoder) data(body *buf.Buf, charge *budget.Charge) error {
	if len(d.pending) == 0 {
		body.Retain()
		d.req.Memory = body
		return nil
	}
	if charge != nil && !charge.Grow(int64(buf.Capacity(int(d.size)))) {
		return ErrOverBudget
	}
	memory := buf.Get(int(d.size))
	for _, p := range d.pending {
		in := &d.req.Inputs[p.input]
		var err error
		if in.Data, err = p.append(memory.B[p.at:p.at:p.at+p.size], in.Type, d.limits); err != nil {
			memory.Release()
			d.discharge(charge)
			return withCountHint(err, in, &p)
		}
	}
	d.req.Memory = memory
	if len(d.pending) < len(d.req.Inputs) {
		body.Retain()
		d.req.Memory = buf.Wrap(memory.B, func() {
			memory.Release()
			body.Release()
		})
	}
	return nil
}
