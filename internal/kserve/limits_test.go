package kserve

import (
	"fmt"
	"maps"
	"runtime"
	"slices"
	"strings"
	"testing"

	"github.com/shoal-serving/shoal/internal/buf"
	"github.com/shoal-serving/shoal/internal/infer"
)

// allocated returns the bytes that f allocates on the heap, including garbage.
func allocated(f func()) uint64 {
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	f()
	runtime.ReadMemStats(&after)
	return after.TotalAlloc - before.TotalAlloc
}

// The body itself is not counted, so the total may be twice its size.
func TestNoDocumentTakesMuchMoreMemoryThanItsBytes(t *testing.T) {
	const size = 1 << 20
	fill := func(each func(i int) string) string {
		var b strings.Builder
		for i := 0; b.Len() < size; i++ {
			b.WriteString(each(i))
			b.WriteByte(',')
		}
		return strings.TrimSuffix(b.String(), ",")
	}
	same := func(s string) string { return fill(func(int) string { return s }) }
	members := fill(func(i int) string { return fmt.Sprintf(`"%x":0`, i) })
	long := strings.Repeat("x", size)
	for name, doc := range map[string]string{
		"members":             `{` + members + `,"inputs":[]}`,
		"members of members":  `{"x":{` + members + `},"inputs":[]}`,
		"members of data":     `{"inputs":[{"name":"A","shape":[1],"datatype":"INT8","data":[{` + members + `}]}]}`,
		"parameters":          `{"parameters":{` + members + `},"inputs":[]}`,
		"inputs":              `{"inputs":[` + same(`{"name":"","shape":[],"datatype":"INT8","data":[1]}`) + `]}`,
		"empty inputs":        `{"inputs":[` + same(`{}`) + `]}`,
		"outputs":             `{"inputs":[],"outputs":[` + same(`{"name":""}`) + `]}`,
		"dims":                `{"inputs":[{"name":"A","shape":[` + same("1") + `],"datatype":"INT8","data":[1]}]}`,
		"small numbers":       `{"inputs":[{"name":"A","shape":[` + fmt.Sprint(size/2) + `],"datatype":"INT64","data":[` + same("1") + `]}]}`,
		"empty strings":       `{"inputs":[{"name":"A","shape":[` + fmt.Sprint(size/3) + `],"datatype":"BYTES","data":[` + same(`""`) + `]}]}`,
		"depth":               `{"x":` + strings.Repeat("[", size),
		"depth of data":       `{"inputs":[{"data":` + strings.Repeat("[", size),
		"a long id":           `{"id":"` + long + `","inputs":[]}`,
		"a long, escaped id":  `{"id":"\n` + long + `","inputs":[]}`,
		"a long name":         `{"` + long + `":0,"inputs":[]}`,
		"a long name, deeper": `{"x":{"` + long + `":y},"inputs":[]}`,
		"a long number":       `{"parameters":{"priority":` + strings.Repeat("1", size) + `},"inputs":[]}`,
		"a long type":         `{"inputs":[{"name":"A","shape":[1],"datatype":"` + long + `","data":[1]}]}`,
	} {
		b := buf.Wrap([]byte(doc), nil)
		var err error
		took := allocated(func() {
			var req *Request
			if req, err = DecodeRequest(t.Context(), b, DecodeOptions{Limits: Limits{Body: size, Decoded: size}}, nil); err == nil {
				req.Memory.Release()
			}
		})
		b.Release()
		if took > size+size/4 {
			t.Errorf("%s: %d bytes of memory for %d of the document; %.200v", name, took, len(doc), err)
		}
		if err != nil && len(err.Error()) > 1000 {
			t.Errorf("%s: the answer has %d bytes", name, len(err.Error()))
		}
	}
}

// Duplicate names are a mistake, or an attack on a program that reads the other value.
// Duplicates of unknown names are ignored.
func TestAMemberThatIsReadComesOnce(t *testing.T) {
	const in = `{"name":"A","shape":[1],"datatype":"INT8","data":[1]`
	docs := map[string]string{
		"id":                      `{"id":"1","id":"2","inputs":[]}`,
		"escaped":                 `{"id":"1","\u0069d":"2","inputs":[]}`,
		"inputs":                  `{"inputs":[],"inputs":[]}`,
		"outputs":                 `{"inputs":[],"outputs":[],"outputs":[]}`,
		"parameters":              `{"inputs":[],"parameters":{},"parameters":{}}`,
		"priority":                `{"inputs":[],"parameters":{"priority":1,"priority":1}}`,
		"timeout":                 `{"inputs":[],"parameters":{"timeout":1,"timeout":1}}`,
		"sequence_id":             `{"inputs":[],"parameters":{"sequence_id":1,"sequence_id":1}}`,
		"sequence_start":          `{"inputs":[],"parameters":{"sequence_start":true,"sequence_start":true}}`,
		"sequence_end":            `{"inputs":[],"parameters":{"sequence_end":true,"sequence_end":true}}`,
		"binary_data_output":      `{"inputs":[],"parameters":{"binary_data_output":true,"binary_data_output":true}}`,
		"name":                    `{"inputs":[` + in + `,"name":"B"}]}`,
		"shape":                   `{"inputs":[` + in + `,"shape":[1]}]}`,
		"datatype":                `{"inputs":[` + in + `,"datatype":"INT8"}]}`,
		"data":                    `{"inputs":[` + in + `,"data":[1]}]}`,
		"binary_data_size":        `{"inputs":[{"parameters":{"binary_data_size":0,"binary_data_size":0}}]}`,
		"shared_memory_region":    `{"inputs":[{"parameters":{"shared_memory_region":"","shared_memory_region":""}}]}`,
		"shared_memory_offset":    `{"inputs":[{"parameters":{"shared_memory_offset":0,"shared_memory_offset":0}}]}`,
		"shared_memory_byte_size": `{"inputs":[{"parameters":{"shared_memory_byte_size":0,"shared_memory_byte_size":0}}]}`,
		"key":                     `{"key":"","key":"","inputs":[]}`,
		"offset":                  `{"offset":0,"offset":0,"inputs":[]}`,
		"byte_size":               `{"byte_size":0,"byte_size":0,"inputs":[]}`,
		"binary_data":             `{"inputs":[],"outputs":[{"parameters":{"binary_data":true,"binary_data":true}}]}`,
		"classification":          `{"inputs":[],"outputs":[{"parameters":{"classification":0,"classification":0}}]}`,
		"ready":                   `{"ready":true,"ready":true,"inputs":[]}`,
		"config":                  `{"inputs":[],"parameters":{"config":"","config":""}}`,
		"unload_dependents":       `{"inputs":[],"parameters":{"unload_dependents":true,"unload_dependents":true}}`,
	}
	for _, setting := range []string{
		"log_file", "log_info", "log_warning", "log_error", "log_verbose_level", "log_format",
		"trace_level", "trace_rate", "trace_count", "log_frequency", "trace_file", "trace_mode",
	} {
		docs[setting] = fmt.Sprintf(`{"%s":null,"%[1]s":null,"inputs":[]}`, setting)
	}
	for name, doc := range docs {
		b, o := body(doc, "")
		_, err := DecodeRequest(t.Context(), b, o, nil)
		b.Release()
		if infer.CodeOf(err) != infer.Invalid || !strings.HasSuffix(err.Error(), "comes twice") {
			t.Errorf("%s: %v", name, err)
		}
	}
	if len(knownMembers) != 38 {
		t.Errorf("known names are %v: is there a line above for each?", slices.Sorted(maps.Keys(knownMembers)))
	}
	const load = `{"parameters":{"file:1/a":"","file:1/a":""}}`
	if _, err := DecodeLoad([]byte(load), &defaults); infer.CodeOf(err) != infer.Invalid {
		t.Errorf("a file twice: %v", err)
	}
	decode(t, `{"x":1,"x":2,"parameters":{"y":1,"y":1},"inputs":[]}`)
}

// The size of a model's file is not limited, only the number of files.
func TestLoadsAreLimitedInTheirParametersAlone(t *testing.T) {
	limits := Limits{Parameters: 3, Text: 10}.WithDefaults()
	for n, ok := range map[int]bool{3: true, 4: false} {
		var files []string
		for i := range n {
			files = append(files, fmt.Sprintf(`"file:1/%d":"%s"`, i, strings.Repeat("AAAA", 10)))
		}
		o, err := DecodeLoad([]byte(`{"parameters":{`+strings.Join(files, ",")+`}}`), &limits)
		if (err == nil) != ok || ok && len(o.Files) != n {
			t.Errorf("%d files: %d, %v", n, len(o.Files), err)
		}
	}
}
