package kservehttp_test

import (
	"bytes"
	"compress/gzip"
	"compress/zlib"
	"encoding/binary"
	"fmt"
	"io"
	"math"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"testing"

	"github.com/shoal-serving/shoal/internal/buf"
	"github.com/shoal-serving/shoal/internal/kserve"
	"github.com/shoal-serving/shoal/internal/kserve/kservehttp"
	"github.com/shoal-serving/shoal/internal/kserve/kservetest"
)

const anyPath = "/v2/models/alltypes/infer"

// repeat returns n results of f, separated by commas.
func repeat(n int, f func(i int) string) string {
	parts := make([]string, n)
	for i := range parts {
		parts[i] = f(i)
	}
	return strings.Join(parts, ",")
}

func input(shape, datatype, rest string) string {
	return `{"name":"IN","shape":[` + shape + `],"datatype":"` + datatype + `",` + rest + `}`
}

func withInputs(inputs string) string { return `{"inputs":[` + inputs + `]}` }

func ones(n int) string { return repeat(n, func(int) string { return "1" }) }

func TestEachLimitIsExactAndTold(t *testing.T) {
	const limit = 7
	for _, c := range []struct {
		name   string
		limits kserve.Limits
		told   string
		over   int64              // the value in the error, if it is not limit+1
		doc    func(n int) string // is at the limit for n = limit
		data   func(n int) []byte // binary data after it
	}{
		{name: "inputs", limits: kserve.Limits{Inputs: limit}, told: "inputs", doc: func(n int) string {
			return withInputs(repeat(n, func(int) string { return input("1", "UINT8", `"data":[1]`) }))
		}},
		{name: "outputs", limits: kserve.Limits{Outputs: limit}, told: "outputs", doc: func(n int) string {
			return `{"inputs":[],"outputs":[` + repeat(n, func(i int) string { return fmt.Sprintf(`{"name":"O%d"}`, i) }) + `]}`
		}},
		{name: "dims", limits: kserve.Limits{Dims: limit}, told: "dimensions", doc: func(n int) string {
			return withInputs(input(ones(n), "UINT8", `"data":[1]`))
		}},
		{name: "parameters", limits: kserve.Limits{Parameters: limit}, told: "parameters", doc: func(n int) string {
			return `{"inputs":[],"parameters":{` + repeat(n, func(i int) string { return fmt.Sprintf(`"p%d":1`, i) }) + `}}`
		}},
		{name: "parameters of tensors", limits: kserve.Limits{Parameters: limit}, told: "parameters", doc: func(n int) string {
			return withInputs(repeat(n, func(int) string { return input("1", "UINT8", `"data":[1],"parameters":{"p":1}`) }))
		}},
		{name: "depth of what is not read", limits: kserve.Limits{Depth: limit}, told: "JSON depth", doc: func(n int) string {
			return `{"inputs":[],"x":` + strings.Repeat("[", n-1) + strings.Repeat("]", n-1) + `}`
		}},
		{name: "depth of data", limits: kserve.Limits{Depth: limit}, told: "JSON depth", doc: func(n int) string {
			return withInputs(input("1", "UINT8", `"data":`+strings.Repeat("[", n-3)+"1"+strings.Repeat("]", n-3)))
		}},
		{name: "string in JSON", limits: kserve.Limits{String: limit}, told: "bytes of a string", doc: func(n int) string {
			return withInputs(input("2", "BYTES", `"data":["a","`+strings.Repeat("x", n)+`"]`))
		}},
		{name: "string in binary data", limits: kserve.Limits{String: limit}, told: "bytes of a string", doc: func(n int) string {
			return withInputs(input("2", "BYTES", fmt.Sprintf(`"parameters":{"binary_data_size":%d}`, 9+n)))
		}, data: func(n int) []byte {
			return append(binary.LittleEndian.AppendUint32([]byte("\x01\x00\x00\x00a"), uint32(n)), make([]byte, n)...)
		}},
		{name: "id", limits: kserve.Limits{Text: 16}, told: "bytes of a text", over: 17, doc: func(n int) string {
			return `{"id":"` + strings.Repeat("x", n+9) + `","inputs":[]}`
		}},
		{name: "id with escapes", limits: kserve.Limits{Text: 16}, told: "bytes of a text", over: 17, doc: func(n int) string {
			return `{"id":"` + strings.Repeat(`\u0041`, n+9) + `","inputs":[]}`
		}},
		{name: "name of an input", limits: kserve.Limits{Text: 16}, told: "bytes of a text", over: 17, doc: func(n int) string {
			return withInputs(`{"name":"` + strings.Repeat("x", n+9) + `","shape":[1],"datatype":"UINT8","data":[1]}`)
		}},
		{name: "tensors in memory", limits: kserve.Limits{Decoded: 8 * limit}, told: "decoded bytes", over: 8 * (limit + 1), doc: func(n int) string {
			return withInputs(input(strconv.Itoa(n), "INT64", `"data":[`+ones(n)+`]`))
		}},
	} {
		t.Run(c.name, func(t *testing.T) {
			_, server := newServer(t, kservehttp.Options{Limits: c.limits})
			ask := func(n int) answer {
				doc, header, data := c.doc(n), http.Header{}, []byte(nil)
				if c.data != nil {
					data = c.data(n)
					header.Set(kserve.JSONLengthHeader, strconv.Itoa(len(doc)))
				}
				return do(t, server, http.MethodPost, anyPath, header, strings.NewReader(doc+string(data)))
			}
			if a := ask(limit); a.status != http.StatusOK {
				t.Errorf("at the limit: status %d, %s", a.status, a.body)
			}
			want := fmt.Sprintf("limit of %s exceeded: found at least %d, allowed are ", c.told, max(c.over, limit+1))
			if a := ask(limit + 1); a.status != http.StatusBadRequest || !strings.Contains(a.body, want) {
				t.Errorf("beyond it: status %d, %s, want 400 with %s", a.status, a.body, want)
			}
		})
	}
}

func TestTheDefaultsAreThoseOfTheDocuments(t *testing.T) {
	want := kserve.Limits{
		Body: 64 << 20, Decoded: 64 << 20, Ratio: 100, Header: 32 << 10, Depth: 64,
		Inputs: 256, Outputs: 256, Dims: 8, Parameters: 4096, String: 16 << 20, Text: 64 << 10,
	}
	if got := (kserve.Limits{}).WithDefaults(); got != want {
		t.Errorf("%+v, want %+v", got, want)
	}
	set := kserve.Limits{Body: 1, Decoded: 2, Ratio: 3, Header: 4, Depth: 5, Inputs: 6, Outputs: 7, Dims: 8, Parameters: 9, String: 10, Text: 11}
	if got := set.WithDefaults(); got != set {
		t.Errorf("%+v, want %+v", got, set)
	}
}

func TestALimitMayBeAsHighAsNumbersGo(t *testing.T) {
	most := kserve.Limits{Body: math.MaxInt64, Decoded: math.MaxInt64, Ratio: math.MaxInt64, String: math.MaxInt64}
	_, server := newServer(t, kservehttp.Options{Limits: most})
	for _, encoding := range []string{"gzip", "identity"} {
		body := []byte(inferBody)
		if encoding == "gzip" {
			body = compressed(t, encoding, inferBody)
		}
		a := do(t, server, http.MethodPost, inferPath, http.Header{"Content-Encoding": {encoding}}, io.MultiReader(bytes.NewReader(body)))
		if a.status != http.StatusOK {
			t.Errorf("%s: status %d, %s", encoding, a.status, a.body)
		}
	}
}

func TestARawBodyIsLimitedIfItIsAString(t *testing.T) {
	for kind, want := range map[string]int{"STRING": http.StatusBadRequest, "UINT8": http.StatusOK} {
		backend := kservetest.New(t, `name: "raw" input { name: "INPUT" data_type: TYPE_`+kind+` dims: -1 }`)
		server := httptest.NewServer(kservehttp.New(backend, backend, backend, kservehttp.Options{Limits: kserve.Limits{String: 10}}))
		for size, want := range map[int]int{10: http.StatusOK, 11: want} {
			header := http.Header{kserve.JSONLengthHeader: {"0"}}
			a := do(t, server, http.MethodPost, "/v2/models/raw/infer", header, bytes.NewReader(make([]byte, size)))
			if a.status != want {
				t.Errorf("%s, %d bytes: status %d, %s, want %d", kind, size, a.status, a.body, want)
			}
		}
		server.Close()
	}
}

func TestNamesThatNoModelCanHaveAreUnknown(t *testing.T) {
	_, server := newServer(t, kservehttp.Options{})
	for path, want := range map[string]string{
		"a%2f..b":                  "a/..b",
		"a%00":                     "a\\u0000",
		"-rf":                      "-rf",
		"a%20b":                    "a b",
		strings.Repeat("a", 129):   strings.Repeat("a", 128),
		strings.Repeat("a", 10000): strings.Repeat("a", 128),
	} {
		for _, route := range []struct{ method, suffix string }{
			{http.MethodGet, ""}, {http.MethodGet, "/ready"}, {http.MethodPost, "/infer"}, {http.MethodPost, "/versions/1/infer"},
		} {
			a := do(t, server, route.method, "/v2/models/"+path+route.suffix, nil, strings.NewReader(inferBody))
			text := `{"error":"Request for unknown model: '` + want + `' is not found"}`
			if a.status != http.StatusNotFound || a.body != text {
				t.Errorf("%s %.20s%s: status %d, %.200s", route.method, path, route.suffix, a.status, a.body)
			}
		}
	}
}

// compressed returns text, compressed as a client does.
func compressed(t testing.TB, encoding, text string) []byte {
	t.Helper()
	var b bytes.Buffer
	var w io.WriteCloser = gzip.NewWriter(&b)
	if encoding == "deflate" {
		w = zlib.NewWriter(&b)
	}
	if _, err := io.WriteString(w, text); err != nil {
		t.Fatal(err)
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

func decompressed(t testing.TB, encoding, body string) string {
	t.Helper()
	var r io.Reader = strings.NewReader(body)
	var err error
	switch encoding {
	case "gzip":
		r, err = gzip.NewReader(r)
	case "deflate":
		r, err = zlib.NewReader(r)
	}
	if err != nil {
		t.Fatal(err)
	}
	text, err := io.ReadAll(r)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

func TestBodiesAndAnswersMayBeCompressed(t *testing.T) {
	_, server := newServer(t, kservehttp.Options{})
	plain := post(t, server, strings.NewReader(inferBody))
	for range 2 { // the second time with pooled readers and writers
		for _, encoding := range []string{"gzip", "deflate"} {
			for accept, want := range map[string]string{
				"": "", "gzip": "gzip", "deflate": "deflate", "gzip, deflate": "gzip", "deflate, gzip;q=0.5, *;q=0.1": "deflate",
				"GZIP": "gzip", "br": "", "gzip;q=0": "", "identity, gzip;q=0.9": "", "br;q=1, gzip; q=0.8": "gzip", "gzip;q=x": "", ",;": "",
			} {
				header := http.Header{"Content-Encoding": {encoding}, "Accept-Encoding": {accept}}
				a := do(t, server, http.MethodPost, inferPath, header, bytes.NewReader(compressed(t, encoding, inferBody)))
				got := a.header.Get("Content-Encoding")
				if a.status != http.StatusOK || got != want || decompressed(t, got, a.body) != plain.body {
					t.Errorf("%s, accepts %q: status %d, encoding %q, %q", encoding, accept, a.status, got, a.body)
				}
			}
		}
	}
}

func TestLargeBinaryTensorsMayBeCompressed(t *testing.T) {
	_, server := newServer(t, kservehttp.Options{})
	data := strings.Repeat("0123456789abcdef", 1<<14)
	doc := fmt.Sprintf(`{"parameters":{"binary_data_output":true},"inputs":[{"name":"IN","shape":[%d],"datatype":"UINT8","parameters":{"binary_data_size":%[1]d}}]}`, len(data))
	for _, encoding := range []string{"gzip", "deflate"} {
		header := http.Header{kserve.JSONLengthHeader: {strconv.Itoa(len(doc))}, "Content-Encoding": {encoding}, "Accept-Encoding": {encoding}}
		a := do(t, server, http.MethodPost, anyPath, header, bytes.NewReader(compressed(t, encoding, doc+data)))
		text := decompressed(t, encoding, a.body)
		size, err := strconv.Atoi(a.header.Get(kserve.JSONLengthHeader))
		if err != nil || len(a.body) > len(data)/2 || text[size:] != data {
			t.Errorf("%s: status %d, JSON %d bytes, %v, %d bytes, %.200s", encoding, a.status, size, err, len(a.body), text)
		}
	}
}

func TestACompressedBodyMayNotGrowTooMuch(t *testing.T) {
	const mega = 1 << 20
	spaced := func(size int) string { return inferBody + strings.Repeat(" ", size-len(inferBody)) }
	for _, c := range []struct {
		name   string
		limits kserve.Limits
		size   int
		want   string // "" means that it is accepted
	}{
		{"at the limit", kserve.Limits{Decoded: 3 * mega, Ratio: 1e6}, 3 * mega, ""},
		{"one byte more", kserve.Limits{Decoded: 3 * mega, Ratio: 1e6}, 3*mega + 1, "limit of decoded bytes exceeded: found at least 3145729, allowed are 3145728"},
		{"far more", kserve.Limits{Decoded: 3 * mega, Ratio: 1e6}, 8 * mega, "limit of decoded bytes exceeded: found at least "},
		{"small, by any ratio", kserve.Limits{}, mega, ""},
		{"larger, by too high a ratio", kserve.Limits{}, mega + mega/8, "limit of compression ratio exceeded: found at least "},
	} {
		for _, encoding := range []string{"gzip", "deflate"} {
			_, server := newServer(t, kservehttp.Options{Limits: c.limits})
			body := compressed(t, encoding, spaced(c.size))
			for kind, r := range map[string]io.Reader{"known": bytes.NewReader(body), "unknown": io.MultiReader(bytes.NewReader(body))} {
				a := do(t, server, http.MethodPost, inferPath, http.Header{"Content-Encoding": {encoding}}, r)
				if ok := a.status == http.StatusOK; ok != (c.want == "") || !ok && (a.status != http.StatusBadRequest || !strings.Contains(a.body, c.want)) {
					t.Errorf("%s, %s, length %s: status %d, %s, want %q", c.name, encoding, kind, a.status, a.body, c.want)
				}
			}
		}
	}
}

// The ratio is exact: the same body is accepted at a limit, and rejected at the next lower
// one.
func TestTheRatioOfABodyIsExact(t *testing.T) {
	text := inferBody + strings.Repeat(" ", 2<<20)
	body := compressed(t, "gzip", text)
	ratio := int64(len(text)/len(body) + 1)
	for limit, want := range map[int64]int{ratio: 200, ratio - 1: 400} {
		_, server := newServer(t, kservehttp.Options{Limits: kserve.Limits{Ratio: limit}})
		a := do(t, server, http.MethodPost, inferPath, http.Header{"Content-Encoding": {"gzip"}}, bytes.NewReader(body))
		if told := fmt.Sprintf("found at least %d, allowed are %d", ratio, limit); a.status != want || want == 400 && !strings.Contains(a.body, told) {
			t.Errorf("limit %d: status %d, %s, want %d", limit, a.status, a.body, want)
		}
	}
}

func TestACompressedBodyIsAlsoLimitedAsItIsSent(t *testing.T) {
	body := compressed(t, "gzip", inferBody)
	for limit, want := range map[int]int{len(body): 200, len(body) - 1: 400} {
		_, server := newServer(t, kservehttp.Options{Limits: kserve.Limits{Body: int64(limit)}})
		for kind, r := range map[string]io.Reader{"known": bytes.NewReader(body), "unknown": io.MultiReader(bytes.NewReader(body))} {
			a := do(t, server, http.MethodPost, inferPath, http.Header{"Content-Encoding": {"gzip"}}, r)
			if a.status != want || want == 400 && !strings.Contains(a.body, "limit of body bytes exceeded") {
				t.Errorf("limit %d, length %s: status %d, %s, want %d", limit, kind, a.status, a.body, want)
			}
		}
	}
}

func TestABrokenCompressedBodyIsToldSo(t *testing.T) {
	_, server := newServer(t, kservehttp.Options{})
	for _, encoding := range []string{"gzip", "deflate"} {
		good := compressed(t, encoding, inferBody)
		flipped := bytes.Clone(good)
		flipped[len(flipped)-1] ^= 1 // of the checksum, or of the length
		for name, body := range map[string][]byte{
			"nothing": {}, "text": []byte("notgzip"), "cut short": good[:len(good)-5], "flipped": flipped, "half": good[:len(good)/2],
		} {
			a := do(t, server, http.MethodPost, inferPath, http.Header{"Content-Encoding": {encoding}}, bytes.NewReader(body))
			if a.status != http.StatusBadRequest || !strings.Contains(a.body, "cannot be decompressed: ") {
				t.Errorf("%s, %s: status %d, %s", encoding, name, a.status, a.body)
			}
		}
	}
	if live := buf.Live(); live != 0 {
		t.Errorf("%d buffers in use", live)
	}
}

func TestAnEncodingThatIsNotKnownIsAnsweredWithThoseThatAre(t *testing.T) {
	_, server := newServer(t, kservehttp.Options{})
	for _, encoding := range []string{"br", "gzip, gzip", "zstd"} {
		a := do(t, server, http.MethodPost, inferPath, http.Header{"Content-Encoding": {encoding}}, strings.NewReader(inferBody))
		if accepts := a.header.Get("Accept-Encoding"); a.status != http.StatusNotImplemented || accepts != "gzip, deflate" {
			t.Errorf("%s: status %d, accepts %q", encoding, a.status, accepts)
		}
	}
}
