//go:build e2e

package e2e

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"maps"
	"math"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/shoal-serving/shoal/internal/engine"
	"github.com/shoal-serving/shoal/internal/engine/onnx"
	"github.com/shoal-serving/shoal/internal/engine/onnx/onnxtest"
	"github.com/shoal-serving/shoal/internal/modelconfig"
	"github.com/shoal-serving/shoal/tensor"
	"github.com/shoal-serving/shoal/test/servertest"
)

// A sameModel is one of the engine's test models with a configuration; "" means
// that there is no file.
type sameModel struct{ model, config string }

const shared = " dynamic_batching { max_queue_delay_microseconds: 5000 } "

var sameModels = map[string]sameModel{
	"types":         {"types", "max_batch_size: 8" + shared},
	"types_spelled": {"types_spelled", "max_batch_size: 8" + shared},
	"strings":       {"strings", "max_batch_size: 8" + shared},
	"add_sub":       {"add_sub", "max_batch_size: 8" + shared},
	"nonzero":       {"nonzero", ""},
	"scalar": {"scalar", `
		input { name: "x" data_type: TYPE_FP32 dims: 1 }
		output { name: "y" data_type: TYPE_FP32 dims: 1 }`},
	"rows": {"rows", `
		max_batch_size: 8
		input { name: "x" data_type: TYPE_FP32 dims: [ 1, 1 ] reshape { } }
		output { name: "y" data_type: TYPE_FP32 dims: [ 1 ] reshape { } }` + shared},
	"reshape": {"mlp", `
		max_batch_size: 8
		input { name: "x" data_type: TYPE_FP32 dims: [ 4, 8 ] reshape { shape: 32 } }
		output { name: "y" data_type: TYPE_FP32 dims: [ 2, 2 ] reshape { shape: 4 } }` + shared},
	"ragged": {"ragged", `
		max_batch_size: 8
		input { name: "x" data_type: TYPE_FP32 dims: -1 allow_ragged_batch: true }
		output [ { name: "sum" data_type: TYPE_FP32 dims: 1 }, { name: "rest" data_type: TYPE_FP32 dims: -1 } ]
		batch_input { kind: BATCH_ACCUMULATED_ELEMENT_COUNT target_name: "ends" data_type: TYPE_INT32 source_input: "x" }
		batch_output { target_name: "rest" kind: BATCH_SCATTER_WITH_INPUT_SHAPE source_input: "x" }` + shared},
	"batch_inputs": {"batch_inputs", `
		max_batch_size: 8
		input { name: "x" data_type: TYPE_FP32 dims: [ -1, -1 ] allow_ragged_batch: true }
		output [
			{ name: "count" data_type: TYPE_FP32 dims: 1 }, { name: "ends" data_type: TYPE_INT32 dims: 1 },
			{ name: "begin" data_type: TYPE_INT32 dims: 1 }, { name: "most" data_type: TYPE_INT64 dims: 1 },
			{ name: "shape" data_type: TYPE_INT32 dims: -1 }, { name: "flat" data_type: TYPE_INT32 dims: -1 }
		]
		batch_input [
			{ kind: BATCH_ELEMENT_COUNT target_name: "COUNT" data_type: TYPE_FP32 source_input: "x" },
			{ kind: BATCH_ACCUMULATED_ELEMENT_COUNT target_name: "ENDS" data_type: TYPE_INT32 source_input: "x" },
			{ kind: BATCH_ACCUMULATED_ELEMENT_COUNT_WITH_ZERO target_name: "BOUNDS" data_type: TYPE_INT32 source_input: "x" },
			{ kind: BATCH_MAX_ELEMENT_COUNT_AS_SHAPE target_name: "MOST" data_type: TYPE_FP32 source_input: "x" },
			{ kind: BATCH_ITEM_SHAPE target_name: "SHAPE" data_type: TYPE_INT32 source_input: "x" },
			{ kind: BATCH_ITEM_SHAPE_FLATTEN target_name: "FLAT" data_type: TYPE_INT32 source_input: "x" }
		]` + shared},
}

// sameRepository writes the models to a repository.
func sameRepository(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	for name, m := range sameModels {
		version := filepath.Join(dir, name, "1")
		file, err := os.ReadFile(onnxtest.Model(m.model))
		err = errors.Join(err, os.MkdirAll(version, 0o755), os.WriteFile(filepath.Join(version, "model.onnx"), file, 0o644))
		if m.config != "" {
			err = errors.Join(err, os.WriteFile(filepath.Join(dir, name, "config.pbtxt"), []byte(m.config), 0o644))
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

// A direct engine is the server's, called in the test's own process, without
// anything between.
type direct struct {
	t   *testing.T
	dir string
	eng *onnx.Engine

	instances map[string]engine.Instance
}

func newDirect(t *testing.T, dir string) *direct {
	d := &direct{t: t, dir: dir, eng: onnx.New(onnx.Options{Library: onnxtest.Library(t)}), instances: map[string]engine.Instance{}}
	t.Cleanup(func() {
		if err := d.eng.Close(); err != nil {
			t.Error(err)
		}
	})
	return d
}

func (d *direct) open(model string) engine.Instance {
	d.t.Helper()
	if inst := d.instances[model]; inst != nil {
		return inst
	}
	cfg, err := modelconfig.Parse("config.pbtxt", []byte(sameModels[model].config))
	if err != nil {
		d.t.Fatal(err)
	}
	m, err := d.eng.Load(d.t.Context(), engine.Source{Config: cfg, Version: 1, Dir: filepath.Join(d.dir, model, "1")})
	if err != nil {
		d.t.Fatal(err)
	}
	inst, err := m.Instance(d.t.Context())
	if err != nil {
		d.t.Fatal(err)
	}
	d.t.Cleanup(func() {
		if err := errors.Join(inst.Close(), m.Close()); err != nil {
			d.t.Error(err)
		}
	})
	d.instances[model] = inst
	return inst
}

// run returns what the engine makes of in.
func (d *direct) run(model string, in []tensor.Tensor) []tensor.Tensor {
	d.t.Helper()
	var out engine.Outputs
	if err := d.open(model).Run(d.t.Context(), in, &out); err != nil {
		d.t.Fatalf("%s: %v", model, err)
	}
	defer out.Memory.Release()
	var all []tensor.Tensor
	for _, t := range out.Tensors {
		t.Shape, t.Data = slices.Clone(t.Shape), bytes.Clone(t.Data)
		all = append(all, t)
	}
	return all
}

// A question is a request, and what the engine is given for it.
type question struct {
	name, model string
	in          []tensor.Tensor
	given       []tensor.Tensor // nil means in
	shapes      [][]int64       // of the answer, where they are not those of the engine
	without     []string        // carriers that cannot carry it
}

// answer returns what the server shall answer.
func (d *direct) answer(q question) []tensor.Tensor {
	given := q.given
	if given == nil {
		given = q.in
	}
	out := d.run(q.model, given)
	for i := range q.shapes {
		out[i].Shape = q.shapes[i]
	}
	return out
}

// differs says how two answers differ, bit for bit; "" means that they do not.
func differs(got, want []tensor.Tensor) string {
	if len(got) != len(want) {
		return fmt.Sprintf("%d outputs, want %d", len(got), len(want))
	}
	for i, w := range want {
		g := got[i]
		if g.Name != w.Name || g.Type != w.Type || !slices.Equal(g.Shape, w.Shape) || !bytes.Equal(g.Data, w.Data) {
			return fmt.Sprintf("output %s is %v %v\n%x\nthe engine's is %s %v %v\n%x", g.Name, g.Type, g.Shape, g.Data, w.Name, w.Type, w.Shape, w.Data)
		}
	}
	return ""
}

// TestAnswersAreTheEnginesBitForBit asks in every way that the protocols have.
func TestAnswersAreTheEnginesBitForBit(t *testing.T) {
	onnxtest.Library(t)
	dir := sameRepository(t)
	s, d := servertest.Start(t, dir), newDirect(t, dir)
	spelled, raw := carriers(s)
	carriers := maps.Clone(spelled)
	maps.Copy(carriers, raw)
	for _, q := range questions() {
		want := d.answer(q)
		for name, send := range carriers {
			if slices.Contains(q.without, name) {
				continue
			}
			t.Run(q.name+"/"+name, func(t *testing.T) {
				got, err := send(t.Context(), q.model, q.in)
				if err != nil {
					t.Fatal(err)
				}
				if d := differs(got, want); d != "" {
					t.Error(d)
				}
			})
		}
	}
}

func questions() []question {
	random := rand.New(rand.NewPCG(1, 2))
	noJSON := []string{"HTTP with JSON"}
	noSpelling := []string{"HTTP with JSON", "gRPC with contents"}
	all := []question{
		{name: "every type, any bits", model: "types", in: anyTypes(random, 3, 12, false), without: noSpelling},
		{name: "every type that is spelled", model: "types_spelled", in: anyTypes(random, 3, 12, true)},
		{name: "what JSON has no spelling for", model: "types_spelled", in: dropHalves(anyTypes(random, 2, 12, false)), without: noJSON},
		{name: "every type, of no size", model: "types", in: anyTypes(random, 2, 0, false), without: noSpelling},
		{name: "of no size, spelled", model: "types_spelled", in: anyTypes(random, 2, 0, true)},
		{name: "text", model: "strings", in: []tensor.Tensor{text("in", "", "a\x00b", "\x00", "Grüße, 世界 🐟", `"\/`, strings.Repeat("long", 5000))}},
		{name: "broken text", model: "strings", in: []tensor.Tensor{text("in", "\xff", "a\x00\xc3", "\xed\xa0\x80", "\xc0\x80")}, without: noJSON},
		{name: "an output of unknown shape", model: "nonzero", in: []tensor.Tensor{numbersOf("x", []int64{2, 3}, 0, 1, 0, -1, 0, 5)}},
		{name: "an output of no size", model: "nonzero", in: []tensor.Tensor{numbersOf("x", []int64{2, 2}, 0, 0, 0, 0)}},
		{name: "an input and an output of no size", model: "nonzero", in: []tensor.Tensor{numbersOf("x", []int64{0, 4})}},
		{name: "no dimensions in the model", model: "scalar", in: []tensor.Tensor{numbersOf("x", []int64{1}, 0.1)}},
	}
	x := someNumbers(random, 3*32)
	all = append(
		all, question{
			name: "rows of no dimensions", model: "rows", shapes: [][]int64{{3, 1}},
			in: []tensor.Tensor{numbersOf("x", []int64{3, 1, 1}, x[:3]...)}, given: []tensor.Tensor{numbersOf("x", []int64{3}, x[:3]...)},
		}, question{
			name: "another shape", model: "reshape", shapes: [][]int64{{3, 2, 2}},
			in: []tensor.Tensor{numbersOf("x", []int64{3, 4, 8}, x...)}, given: []tensor.Tensor{numbersOf("x", []int64{3, 32}, x...)},
		},
		askRagged(x[:7]), askRagged(nil), askBatchInputs(2, 3),
	)
	return all
}

// askRagged is about the numbers of one request.
func askRagged(x []float32) question {
	n := int64(len(x))
	return question{
		name: fmt.Sprintf("ragged, %d elements", n), model: "ragged", shapes: [][]int64{{1, 1}, {1, n}},
		in:    []tensor.Tensor{numbersOf("x", []int64{1, n}, x...)},
		given: []tensor.Tensor{numbersOf("x", []int64{n}, x...), integers("ends", []int64{1}, int32(n))},
	}
}

// askBatchInputs asks what the model is told of a request of one row, of this shape.
func askBatchInputs(height, width int64) question {
	n := height * width
	x := make([]float32, n)
	return question{
		name: "every kind of batch input", model: "batch_inputs",
		in: []tensor.Tensor{numbersOf("x", []int64{1, height, width}, x...)},
		given: []tensor.Tensor{
			numbersOf("x", []int64{n}, x...), numbersOf("COUNT", []int64{1}, float32(n)), integers("ENDS", []int64{1}, int32(n)),
			integers("BOUNDS", []int64{2}, 0, int32(n)), numbersOf("MOST", []int64{n}, x...),
			integers("SHAPE", []int64{1, 2}, int32(height), int32(width)), integers("FLAT", []int64{2}, int32(height), int32(width)),
		},
	}
}

func numbersOf(name string, shape []int64, values ...float32) tensor.Tensor {
	return tensor.Tensor{Name: name, Type: tensor.FP32, Shape: shape, Data: tensor.Data(values)}
}

func integers(name string, shape []int64, values ...int32) tensor.Tensor {
	return tensor.Tensor{Name: name, Type: tensor.Int32, Shape: shape, Data: tensor.Data(values)}
}

func text(name string, values ...string) tensor.Tensor {
	t := tensor.Tensor{Name: name, Type: tensor.Bytes, Shape: []int64{int64(len(values)), 1}}
	for _, s := range values {
		t.Data = tensor.AppendString(t.Data, s)
	}
	return t
}

// someNumbers returns numbers whose sum depends on the order of adding them.
func someNumbers(random *rand.Rand, n int) []float32 {
	all := make([]float32, n)
	for i := range all {
		all[i] = float32(random.NormFloat64() * math.Exp(5*random.NormFloat64()))
	}
	return all
}

// anyTypes returns an input of each type: the ends of its range, and any bits. If
// it is to be spelled, half floats are left out, and what JSON cannot write.
func anyTypes(random *rand.Rand, rows, columns int, spelled bool) (all []tensor.Tensor) {
	for typ := tensor.Bool; typ <= tensor.BF16; typ++ {
		t := tensor.Tensor{Name: "in_" + typ.String(), Type: typ, Shape: []int64{int64(rows), int64(columns)}}
		for i := range rows * columns {
			t.Data = appendAny(t.Data, random, typ, i, spelled)
		}
		all = append(all, t)
	}
	if spelled {
		return dropHalves(all)
	}
	return all
}

func dropHalves(all []tensor.Tensor) []tensor.Tensor {
	return slices.DeleteFunc(all, func(t tensor.Tensor) bool { return t.Type == tensor.FP16 || t.Type == tensor.BF16 })
}

// appendAny appends an element: one of the telling ones first, then any.
func appendAny(data []byte, random *rand.Rand, typ tensor.Type, i int, spelled bool) []byte {
	switch typ {
	case tensor.Bool:
		return append(data, byte(random.IntN(2)))
	case tensor.Bytes:
		s := make([]byte, random.IntN(20))
		for k := range s {
			s[k] = byte(random.Uint32())
		}
		if spelled {
			s = []byte(strings.ToValidUTF8(string(s), "é"))
		}
		return tensor.AppendString(data, s)
	}
	bits := 8 * typ.Size()
	telling := []uint64{0, 1, 1 << (bits - 1), 1<<(bits-1) - 1, math.MaxUint64} // of integers: the ends of both ranges
	element := random.Uint64()
	if i < len(telling) {
		element = telling[i]
	}
	if spelled && typ == tensor.FP32 && !finite(float64(math.Float32frombits(uint32(element)))) {
		element = uint64(math.Float32bits(-math.MaxFloat32))
	}
	if spelled && typ == tensor.FP64 && !finite(math.Float64frombits(element)) {
		element = math.Float64bits(-math.MaxFloat64)
	}
	return append(data, binary.LittleEndian.AppendUint64(nil, element)[:typ.Size()]...)
}

func finite(x float64) bool { return !math.IsNaN(x) && !math.IsInf(x, 0) }

// TestAnswersOfABatchAreThoseOfTheRequestAlone lets clients of all carriers ask at
// once, with models that compute each row by itself. Whoever is answered with other
// bits than alone was given somebody else's rows, or a model that is not made for it.
func TestAnswersOfABatchAreThoseOfTheRequestAlone(t *testing.T) {
	onnxtest.Library(t)
	dir := sameRepository(t)
	s, d := servertest.Start(t, dir), newDirect(t, dir)
	spelled, raw := carriers(s)
	carriers := slices.Concat(slices.Collect(maps.Values(spelled)), slices.Collect(maps.Values(raw)))
	const clients, rounds = 16, 6
	var wg sync.WaitGroup
	for client := range clients {
		random := rand.New(rand.NewPCG(3, uint64(client)))
		var mine []question
		var answers [][]tensor.Tensor
		for range rounds {
			for _, q := range []question{
				{model: "types_spelled", in: anyTypes(random, 1+random.IntN(3), 4, true)},
				{model: "strings", in: []tensor.Tensor{text("in", fmt.Sprint("client ", client), "\x00")}},
				{model: "add_sub", in: []tensor.Tensor{
					numbersOf("INPUT0", []int64{1, 16}, someNumbers(random, 16)...), numbersOf("INPUT1", []int64{1, 16}, someNumbers(random, 16)...),
				}},
				askRagged(someNumbers(random, random.IntN(3000))),
			} {
				mine, answers = append(mine, q), append(answers, d.answer(q))
			}
		}
		send := carriers[client%len(carriers)]
		wg.Go(func() {
			for i, q := range mine {
				got, err := send(t.Context(), q.model, q.in)
				if err != nil {
					t.Errorf("%s: %v", q.model, err)
				} else if d := differs(got, answers[i]); d != "" {
					t.Errorf("%s in a batch: %s", q.model, d)
				}
			}
		})
	}
	wg.Wait()
}

// TestRequestsOfDifferentSizesShareABatch asks a model that answers with what it is
// told of its batch.
func TestRequestsOfDifferentSizesShareABatch(t *testing.T) {
	onnxtest.Library(t)
	s := servertest.Start(t, sameRepository(t))
	_, raw := carriers(s)
	var together atomic.Int32
	var wg sync.WaitGroup
	for client := range 8 {
		send := raw[slices.Sorted(maps.Keys(raw))[client%len(raw)]]
		q := askBatchInputs(int64(1+client), 3)
		wg.Go(func() {
			for range 10 {
				out, err := send(t.Context(), q.model, q.in)
				if err != nil {
					t.Error(err)
					return
				}
				n := int32(3 * (1 + client))
				count, ends, begin, most := elements[float32](&out[0])[0], elements[int32](&out[1])[0], elements[int32](&out[2])[0], elements[int64](&out[3])[0]
				if count != float32(n) || ends-begin != n || most < int64(n) || most > 24 {
					t.Errorf("%d elements: count %v, from %d to %d, largest %d", n, count, begin, ends, most)
				}
				for _, shape := range out[4:] {
					if got := elements[int32](&shape); !slices.Equal(got, []int32{int32(1 + client), 3}) {
						t.Errorf("%s is %v, want %v", shape.Name, got, []int32{int32(1 + client), 3})
					}
				}
				if begin > 0 {
					together.Add(1)
				}
			}
		})
	}
	wg.Wait()
	if together.Load() == 0 {
		t.Error("80 requests of 8 clients ran alone, each of them")
	}
	t.Logf("%d of 80 requests were behind another in their batch", together.Load())
}
