package main

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/shoal-serving/shoal/client"
	"github.com/shoal-serving/shoal/internal/bench"
	"github.com/shoal-serving/shoal/internal/console"
	"github.com/shoal-serving/shoal/tensor"
)

// inferOptions are the flags of `shoal infer`.
type inferOptions struct {
	conn    serverFlags
	version string
	random  bool
	json    string
	npy     []string
	rows    int
	shapes  []string
	seed    uint64
	id      string
	classes uint
	output  string
}

// newInferCommand returns `shoal infer`.
func newInferCommand() *cobra.Command {
	var o inferOptions
	cmd := &cobra.Command{
		Use:   "infer MODEL",
		Short: "Send one request to a model, and print its outputs",
		Long: `Infer sends one request to a model of a running server, and prints the outputs and the latency. The inputs are random
values, or those of a JSON file or of numpy files.`,
		Example: `  shoal infer resnet50 --random
  shoal infer total --json request.json
  echo '{"x": [[1, 2, 3]]}' | shoal infer total --json -
  shoal infer resnet50 --npy image.npy
  shoal infer bert --npy input_ids=ids.npy --npy attention_mask=mask.npy`,
		Args: arguments(1, 1, fmt.Sprintf(needsModel, "infer")),
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := o.check(cmd.Flags()); err != nil {
				return misuse{err}
			}
			return o.conn.call(cmd.Context(), args[0], o.version, func(ctx context.Context, r *remote) error {
				return o.run(ctx, r.Client, args[0], cmd.InOrStdin(), cmd.OutOrStdout())
			})
		},
	}
	f := cmd.Flags()
	f.BoolVar(&o.random, "random", false, "send random values: numbers from 0 to 1, integers 0 or 1")
	f.StringVar(&o.json, "json", "", `JSON `+"`file`"+` with the inputs, as the body of a KServe v2 request or as {"NAME": [[1, 2]]}; - means stdin`)
	f.StringArrayVar(&o.npy, "npy", nil, "`[NAME=]file` of numpy.save with an input; may be repeated; NAME may be omitted if the model has one input")
	topic(f, "Inputs")
	f.IntVarP(&o.rows, "batch-size", "b", 1, "`rows` of a random request")
	f.StringArrayVar(&o.shapes, "shape", nil, "shape of a random input without its rows, as `NAME:d,d`; may be repeated")
	f.Uint64Var(&o.seed, "seed", 1, "`seed` of random values")
	topic(f, "Random inputs")
	f.StringVarP(&o.version, "model-version", "x", "", "`version` of the model; by default the server chooses")
	f.StringVar(&o.id, "request-id", "", "`id` of the request, for the log of the server")
	f.UintVar(&o.classes, "classes", 0, "return the `n` best classes of each row, with their labels if the model has any")
	choiceVarP(f, &o.output, "output", "o", []string{"text", "json"}, "text: the first values of each output; json: all values")
	topic(f, "Request")
	o.conn.define(f, time.Minute)
	cmd.ValidArgsFunction = o.conn.completeModels
	return cmd
}

func (o *inferOptions) check(flags *pflag.FlagSet) error {
	if err := exclusive(flags, "random", "json", "npy"); err != nil {
		return err
	}
	if !o.random && o.json == "" && len(o.npy) == 0 {
		return errors.New("no inputs given; use --random to try the model, or --json FILE or --npy FILE for real inputs")
	}
	if o.rows < 1 {
		return fmt.Errorf("--batch-size: %d is not valid: expected at least 1", o.rows)
	}
	_, err := parseShapes(o.shapes)
	return err
}

func (o *inferOptions) run(ctx context.Context, c *client.Client, name string, in io.Reader, out io.Writer) error {
	meta, err := c.Metadata(ctx, name, o.version)
	if err != nil {
		return err
	}
	req := &client.Request{Model: name, Version: o.version, Classes: o.classes}
	if err := o.fill(req, meta, in); err != nil {
		return fmt.Errorf("model %q: %w", name, err)
	}
	req.ID = cmp.Or(o.id, req.ID)
	if o.classes > 0 && len(req.Outputs) == 0 {
		for _, out := range meta.Outputs {
			req.Outputs = append(req.Outputs, out.Name)
		}
	}
	began := time.Now()
	resp, err := c.Infer(ctx, req)
	took := time.Since(began)
	if e, ok := errors.AsType[*client.Error](err); ok && errors.Is(e, client.Invalid) {
		return fmt.Errorf("the server rejected the request: %s; the model takes %s", strings.Join(strings.Fields(e.Error()), " "), signature(meta.Inputs, meta.Outputs))
	}
	if err != nil {
		return err
	}
	if o.output == "json" {
		return writeResponseJSON(out, resp)
	}
	return writeResponse(out, resp, took)
}

// fill sets the inputs of the request, and what else its file has.
func (o *inferOptions) fill(req *client.Request, meta *client.Metadata, in io.Reader) (err error) {
	m := bench.Model{Name: meta.Name, MaxBatch: -1}
	for _, i := range meta.Inputs {
		m.Inputs = append(m.Inputs, bench.Input{Name: i.Name, Type: i.Type, Shape: i.Shape})
	}
	switch {
	case o.random:
		shapes, err := parseShapes(o.shapes)
		if err != nil {
			return err
		}
		req.Inputs, err = m.Fill(bench.Data{Rows: o.rows, Shapes: shapes, Random: true, Seed: o.seed, StringLength: 16})
		return err
	case o.json != "":
		text, err := readInput(o.json, in)
		if err != nil {
			return fmt.Errorf("--json: %w; check the path", err)
		}
		if req.Inputs, err = m.ReadRequest(text); err == nil && m.IsBody(text) {
			err = readBody(text, req)
		}
		if err != nil {
			return fmt.Errorf("%s: %w", o.json, err)
		}
		return nil
	}
	for _, arg := range o.npy {
		t, err := readInputNpy(arg, meta)
		if err != nil {
			return fmt.Errorf("--npy: %w", err)
		}
		req.Inputs = append(req.Inputs, t)
	}
	return nil
}

// readBody sets what the body of a KServe v2 request has beside its inputs.
func readBody(text []byte, req *client.Request) error {
	var body struct {
		ID         string         `json:"id"`
		Parameters map[string]any `json:"parameters"`
		Inputs     any            `json:"inputs"`
		Outputs    []struct {
			Name       string         `json:"name"`
			Parameters map[string]any `json:"parameters"`
		} `json:"outputs"`
	}
	d := json.NewDecoder(bytes.NewReader(text))
	d.UseNumber()
	d.DisallowUnknownFields()
	if err := d.Decode(&body); err != nil {
		return fmt.Errorf("%w; a request has id, parameters, inputs and outputs", err)
	}
	req.ID, req.Parameters = body.ID, body.Parameters
	for name, value := range body.Parameters {
		number, ok := value.(json.Number)
		if !ok {
			continue
		}
		if n, err := strconv.ParseInt(number.String(), 10, 64); err == nil {
			req.Parameters[name] = n
		} else if req.Parameters[name], err = number.Float64(); err != nil {
			return fmt.Errorf("parameter %q: %w", name, err)
		}
	}
	for _, out := range body.Outputs {
		req.Outputs = append(req.Outputs, out.Name)
		for name := range out.Parameters {
			if name != "binary_data" { // how the answer travels, which is not shown
				return fmt.Errorf("output %q has the parameter %q, which infer does not send; use --classes for classes", out.Name, name)
			}
		}
	}
	return nil
}

func readInput(file string, in io.Reader) ([]byte, error) {
	if file == "-" {
		return io.ReadAll(in)
	}
	return os.ReadFile(file)
}

// readInputNpy reads [NAME=]FILE as an input of a model. An array without the dimension of
// the rows is one row.
func readInputNpy(arg string, meta *client.Metadata) (client.Tensor, error) {
	name, file, named := strings.Cut(arg, "=")
	var names []string
	for _, i := range meta.Inputs {
		names = append(names, i.Name)
	}
	switch {
	case len(names) == 0:
		return client.Tensor{}, errors.New("the model has no inputs")
	case !named && len(names) == 1:
		name, file = names[0], arg
	case !named:
		return client.Tensor{}, fmt.Errorf("%s: which input is it? The model has %s; write %s=%s", arg, strings.Join(names, ", "), names[0], arg)
	case !slices.Contains(names, name):
		return client.Tensor{}, fmt.Errorf("the model has no input %q; it has %s", name, strings.Join(names, ", "))
	}
	t, err := readNpy(file)
	if err != nil {
		return t, err
	}
	t.Name = name
	want := meta.Inputs[slices.Index(names, name)]
	if t.Type != want.Type && want.Type != tensor.Invalid {
		return t, fmt.Errorf("%s has elements of type %v, but input %q takes %v; save a.astype(numpy.%s)", file, t.Type, name, want.Type, numpyName(want.Type))
	}
	t.Shape = bench.Input{Shape: want.Shape}.WithRows(t.Shape)
	return t, nil
}

// numpyName returns numpy's name of a type, such as float32.
func numpyName(t tensor.Type) string {
	text := strings.ToLower(t.String())
	if bits, ok := strings.CutPrefix(text, "fp"); ok {
		return "float" + bits
	}
	return text
}

// writeResponse writes a line for each output, with as many values as fit, and the latency.
func writeResponse(w io.Writer, resp *client.Response, took time.Duration) error {
	paint, width := console.PaletteOf(w), console.Width(w)
	var out strings.Builder
	for i := range resp.Outputs {
		t := &resp.Outputs[i]
		head := fmt.Sprintf("%s %v%s = ", t.Name, t.Type, tensor.ShapeText(t.Shape))
		values, err := valuesOf(t)
		if err != nil {
			return err
		}
		out.WriteString(paint.Paint(console.Bold, head) + someValues(values, width-console.Columns(head)) + "\n")
	}
	out.WriteString(paint.Paint(console.Dim, fmt.Sprintf("%s, version %s, in %s", resp.Model, resp.Version, shortDuration(took))) + "\n")
	_, err := io.WriteString(w, out.String())
	return err
}

// someValues returns as many values as fit in width columns, and at least one.
func someValues(values []any, width int) string {
	text := "["
	for i, v := range values {
		one := fmt.Sprint(v)
		if f, ok := v.(float64); ok {
			one = strconv.FormatFloat(f, 'g', 5, 64)
		} else if s, ok := v.(string); ok {
			one = strconv.Quote(s)
		}
		if i > 0 {
			one = ", " + one
		}
		if i > 0 && console.Columns(text+one)+len(", …]") > width {
			return text + ", …]"
		}
		text += one
	}
	return text + "]"
}

// valuesOf returns the elements of a tensor, row by row, as values of JSON.
func valuesOf(t *client.Tensor) ([]any, error) {
	switch t.Type {
	case tensor.Bool:
		return anys[bool](t)
	case tensor.Uint8:
		return anys[uint8](t)
	case tensor.Uint16:
		return anys[uint16](t)
	case tensor.FP16, tensor.BF16: // which Go does not have
		if err := t.Check(); err != nil {
			return nil, err
		}
		all := make([]any, len(t.Data)/t.Type.Size())
		for i := range all {
			all[i] = tensor.Float(t.Type, t.Data[i*t.Type.Size():])
		}
		return all, nil
	case tensor.Uint32:
		return anys[uint32](t)
	case tensor.Uint64:
		return anys[uint64](t)
	case tensor.Int8:
		return anys[int8](t)
	case tensor.Int16:
		return anys[int16](t)
	case tensor.Int32:
		return anys[int32](t)
	case tensor.Int64:
		return anys[int64](t)
	case tensor.FP64:
		return anys[float64](t)
	case tensor.FP32:
		values, err := client.Values[float32](t)
		all := make([]any, len(values))
		for i, v := range values {
			all[i], _ = strconv.ParseFloat(strconv.FormatFloat(float64(v), 'g', -1, 32), 64) // the shortest number
		}
		return all, err
	case tensor.Bytes:
		values, err := client.Strings(t)
		return toAny(values), err
	}
	return nil, fmt.Errorf("output %q has a type that cannot be shown", t.Name)
}

func anys[T tensor.Number](t *client.Tensor) ([]any, error) {
	values, err := client.Values[T](t)
	return toAny(values), err
}

func toAny[T any](values []T) []any {
	all := make([]any, len(values))
	for i, v := range values {
		all[i] = v
	}
	return all
}

// writeResponseJSON writes the body of a KServe v2 response. NaN and infinities, which JSON
// does not have, are strings.
func writeResponseJSON(w io.Writer, resp *client.Response) error {
	type output struct {
		Name     string  `json:"name"`
		Datatype string  `json:"datatype"`
		Shape    []int64 `json:"shape"`
		Data     []any   `json:"data"`
	}
	doc := struct {
		Model   string   `json:"model_name"`
		Version string   `json:"model_version"`
		ID      string   `json:"id,omitempty"`
		Outputs []output `json:"outputs"`
	}{resp.Model, resp.Version, resp.ID, []output{}}
	for i := range resp.Outputs {
		t := &resp.Outputs[i]
		values, err := valuesOf(t)
		if err != nil {
			return err
		}
		for i, v := range values {
			if f, ok := v.(float64); ok && (math.IsNaN(f) || math.IsInf(f, 0)) {
				values[i] = strconv.FormatFloat(f, 'g', -1, 64)
			}
		}
		doc.Outputs = append(doc.Outputs, output{t.Name, t.Type.String(), t.Shape, values})
	}
	text, err := json.Marshal(doc)
	if err != nil {
		return err
	}
	_, err = fmt.Fprintf(w, "%s\n", text)
	return err
}

// shortDuration formats a duration in ms if it is below a second, and otherwise in s. What rounds to
// a second is one: three digits of its milliseconds would be 1e+03.
func shortDuration(d time.Duration) string {
	if d >= time.Second-time.Millisecond/2 {
		return strconv.FormatFloat(d.Seconds(), 'f', 2, 64) + " s"
	}
	return strconv.FormatFloat(float64(d)/float64(time.Millisecond), 'g', 3, 64) + " ms"
}
