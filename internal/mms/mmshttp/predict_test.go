package mmshttp

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"mime/multipart"
	"net/http"
	"net/http/httptest"
	"os"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/shoal-serving/shoal/internal/budget"
	"github.com/shoal-serving/shoal/internal/mms"
)

// A deadlineWriter records the deadlines of its connection.
type deadlineWriter struct {
	*httptest.ResponseRecorder

	deadlines []time.Time
}

// SetReadDeadline is called by [http.ResponseController].
func (w *deadlineWriter) SetReadDeadline(t time.Time) error {
	w.deadlines = append(w.deadlines, t)
	return nil
}

// net/http cancels the context of a request whose connection cannot be read any more.
func TestAPredictionMayTakeLongerThanABody(t *testing.T) {
	h := &handler{opts: Options{BodyTimeout: time.Minute, MaxRequest: 100}}
	for _, tt := range []struct {
		name string
		body io.Reader
		want int // deadlines; the last one of two is none
	}{
		{"a body that arrives", strings.NewReader("data"), 2},
		{"a body that does not", io.MultiReader(strings.NewReader("da"), failing{}), 1},
	} {
		w := &deadlineWriter{ResponseRecorder: httptest.NewRecorder()}
		began := time.Now()
		parts, err := h.parts(w, httptest.NewRequest(http.MethodPost, "/predictions/m", tt.body), false, &budget.Charge{})
		if len(w.deadlines) != tt.want || w.deadlines[0].Before(began.Add(time.Minute)) || tt.want == 2 && !w.deadlines[1].IsZero() {
			t.Errorf("%s: read deadlines %v", tt.name, w.deadlines)
		}
		if (err == nil) != (tt.want == 2) || err == nil && string(parts[0].Data) != "data" {
			t.Errorf("%s: %v, %v", tt.name, parts, err)
		}
	}
}

// failing is a body that does not arrive in time.
type failing struct{}

func (failing) Read([]byte) (int, error) { return 0, os.ErrDeadlineExceeded }

// endless is a body without an end.
type endless struct{}

func (endless) Read(b []byte) (int, error) { return len(b), nil }

func TestMemoryIsNotTakenForWhatAClientAnnounces(t *testing.T) {
	h := &handler{opts: Options{MaxRequest: 1000}}
	r := httptest.NewRequest(http.MethodPost, "/predictions/m", endless{})
	r.ContentLength = 1 << 28
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	_, err := h.parts(httptest.NewRecorder(), r, false, &budget.Charge{})
	runtime.ReadMemStats(&after)
	if told, ok := errors.AsType[*mms.Error](err); !ok || told.Status != http.StatusRequestEntityTooLarge {
		t.Errorf("%v, want status 413", err)
	}
	if took := after.TotalAlloc - before.TotalAlloc; took > 1<<20 {
		t.Errorf("took %d bytes for a body of at most 1000", took)
	}
}

func TestAFormHasALimitedNumberOfFields(t *testing.T) {
	h := &handler{opts: Options{MaxRequest: 1 << 20}}
	for _, n := range []int{maxFields, maxFields + 1} {
		var b bytes.Buffer
		form := multipart.NewWriter(&b)
		for i := range n {
			if err := form.WriteField(fmt.Sprint(i), "x"); err != nil {
				t.Fatal(err)
			}
		}
		if err := form.Close(); err != nil {
			t.Fatal(err)
		}
		fields := strings.TrimSuffix(strings.Repeat("a=x&", n), "&")
		for _, tt := range []struct{ path, kind, body string }{
			{"/predictions/m", form.FormDataContentType(), b.String()},
			{"/predictions/m", "application/x-www-form-urlencoded", fields},
			{"/predictions/m?" + fields, "", ""},
		} {
			r := httptest.NewRequest(http.MethodPost, tt.path, strings.NewReader(tt.body))
			r.Header.Set("Content-Type", tt.kind)
			parts, err := h.parts(httptest.NewRecorder(), r, true, &budget.Charge{})
			told, refused := errors.AsType[*mms.Error](err)
			if refused != (n > maxFields) || refused && (told.Status != http.StatusBadRequest || !strings.Contains(told.Message, "1000")) {
				t.Errorf("%d fields of type %q: %v", n, tt.kind, err)
			}
			if !refused && (len(parts) < n || string(parts[n-1].Data) != "x") {
				t.Errorf("%d fields of type %q: %d parts", n, tt.kind, len(parts))
			}
		}
	}
}

func TestFieldsOfAFormAreUnescaped(t *testing.T) {
	h := &handler{opts: Options{MaxRequest: 100}}
	for body, want := range map[string]string{
		"a=1&&b+c=%20d%26e": `a: "1", b c: " d&e", `,
		"a":                 `a: "", `,
		"":                  "",
		"a=%zz":             `invalid URL escape "%zz"`,
		"%zz=a":             `invalid URL escape "%zz"`,
	} {
		r := httptest.NewRequest(http.MethodPost, "/predictions/m", strings.NewReader(body))
		r.Header.Set("Content-Type", "application/x-www-form-urlencoded")
		parts, err := h.parts(httptest.NewRecorder(), r, false, &budget.Charge{})
		got := ""
		for _, p := range parts {
			got += fmt.Sprintf("%s: %q, ", p.Name, p.Data)
		}
		if told, ok := errors.AsType[*mms.Error](err); ok && told.Status == http.StatusBadRequest {
			got = told.Message
		}
		if got != want {
			t.Errorf("%q: %s, want %s", body, got, want)
		}
	}
}

// Of several models that were there at the start none is meant. TorchServe takes the name of
// the model from the form, and MMS does not.
func TestInvocationsNeedANameIfThereAreSeveralModels(t *testing.T) {
	for _, tt := range []struct {
		dialect mms.Dialect
		want    int
	}{{mms.MultiModelServer, http.StatusBadRequest}, {mms.TorchServe, http.StatusOK}} {
		dir := t.TempDir()
		writeMar(t, dir, "echo", "1.0", "echo.py", map[string]string{"echo.py": echo})
		writeMar(t, dir, "other", "1.0", "echo.py", map[string]string{"echo.py": echo})
		f := start(t, tt.dialect, func(s *mms.Settings) { s.Store, s.All, s.Workers = dir, true, 1 })
		f.want("POST", f.infer+"/invocations", "x", http.StatusBadRequest, "Parameter model_name is required.")
		f.want("POST", f.infer+"/invocations?model_name=other", "x", http.StatusOK)
		status, text := f.ask("POST", f.infer+"/invocations", "application/x-www-form-urlencoded", "model_name=other&data=x")
		if status != tt.want || status == http.StatusOK && !strings.Contains(text, `"version": "1.0"`) {
			t.Errorf("the name in a form, dialect %v: %d %s, want %d", tt.dialect, status, text, tt.want)
		}
	}
}

func TestABodyIsChargedAsItArrives(t *testing.T) {
	h := &handler{opts: Options{MaxRequest: 1 << 20}}
	all := budget.New(1 << 20) // one model gets half
	for size, want := range map[int]int64{100: 2 * chargeStep, chargeStep + 1: 4 * chargeStep, 1 << 20: -1} {
		charge := all.Open("m")
		_, err := h.parts(httptest.NewRecorder(), httptest.NewRequest(http.MethodPost, "/predictions/m", strings.NewReader(strings.Repeat(" ", size))), false, &charge)
		if want >= 0 && (err != nil || charge.Bytes() != want) {
			t.Errorf("%d bytes: charged %d, %v, want %d", size, charge.Bytes(), err, want)
		}
		if told, ok := errors.AsType[*mms.Error](err); want < 0 && (!ok || told.Status != http.StatusTooManyRequests) {
			t.Errorf("%d bytes: %v, want status 429", size, err)
		}
		charge.Close()
	}
}
