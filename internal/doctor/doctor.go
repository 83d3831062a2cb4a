// Package doctor looks at what a server needs before there is one: the library,
// cores and memory, ports, and models, none of which it loads.
//
// Looking is apart from judging: [Look] asks the machine, and [Facts.Judge] says
// what is wrong with the answers, and what to do.
package doctor

import (
	"context"
	"fmt"
	"net"
	"strconv"
	"strings"

	"github.com/shoal-serving/shoal/internal/engine/onnx"
	"github.com/shoal-serving/shoal/internal/engine/onnx/onnxruntime"
	"github.com/shoal-serving/shoal/internal/machine"
	"github.com/shoal-serving/shoal/internal/repository"
)

// Options say what to look at.
type Options struct {
	Paths    []string // of models; none is no mistake
	Backends []string // that there are
	Library  string   // path of the ONNX Runtime library; "" means where a server would look
}

// Facts are what was found.
type Facts struct {
	Library Library
	Cores   int
	Memory  machine.Memory
	Ports   []Port
	Models  []repository.Inspection
	Paths   error // why some of the models' paths cannot be read
}

// A Library is the ONNX Runtime library.
type Library struct {
	Path    string
	Version string
	Err     error // why it cannot be opened
}

// A Port is one that a server listens on unless told otherwise.
type Port struct {
	Protocol string
	Number   int
	Err      error // why it cannot be listened on
}

// Look asks the machine.
func Look(ctx context.Context, opts Options) Facts {
	f := Facts{
		Library: openLibrary(opts.Library),
		Cores:   machine.Cores(machine.Root()),
		Memory:  machine.ReadMemory(machine.Root()),
		Ports:   []Port{{Protocol: "http", Number: 8000}, {Protocol: "grpc", Number: 8001}, {Protocol: "metrics", Number: 8002}},
	}
	for i := range f.Ports {
		f.Ports[i].Err = tryPort(ctx, f.Ports[i].Number)
	}
	f.Models, f.Paths = repository.Inspect(opts.Paths, opts.Backends)
	return f
}

func openLibrary(path string) (l Library) {
	if l.Path, l.Err = onnxruntime.Find(path); l.Err != nil {
		return l
	}
	r, err := onnxruntime.Open(onnxruntime.Options{Library: l.Path})
	if err != nil {
		l.Err = err
		return l
	}
	l.Version = r.Version()
	r.Close()
	return l
}

func tryPort(ctx context.Context, number int) error {
	var config net.ListenConfig
	listener, err := config.Listen(ctx, "tcp", net.JoinHostPort("127.0.0.1", strconv.Itoa(number)))
	if err != nil {
		return err
	}
	return listener.Close()
}

// A Status says how bad a finding is.
type Status string

// What a check can come to.
const (
	OK   Status = "ok"
	Warn Status = "warn" // a server starts, but perhaps not as it was meant to
	Fail Status = "fail" // something would not be served
)

// A Finding is what one check came to.
type Finding struct {
	Check  string `json:"check"`
	Status Status `json:"status"`
	Found  string `json:"found"`
	Do     string `json:"do,omitempty"` // what to do about it
}

func (f Finding) String() string {
	text := fmt.Sprintf("%-4s  %s: %s", f.Status, f.Check, f.Found)
	if f.Do != "" {
		text += "; " + f.Do
	}
	return strings.ReplaceAll(text, "\n", "; ") // one finding, one line
}

// littleMemory is less than a server with one small model and some clients is
// happy with.
const littleMemory = 256 << 20

// Judge says what the facts mean.
func (f *Facts) Judge() []Finding {
	all := []Finding{f.library(), {Check: "cores", Status: OK, Found: strconv.Itoa(f.Cores)}, f.memory()}
	for _, p := range f.Ports {
		all = append(all, p.judge())
	}
	if f.Paths != nil {
		all = append(all, Finding{"models", Fail, f.Paths.Error(), "name a directory with a folder for each model, or an .onnx file"})
	}
	for i := range f.Models {
		all = append(all, judgeModel(&f.Models[i]))
	}
	return all
}

// library is needed only for models that run in it.
func (f *Facts) library() Finding {
	const check = "ONNX Runtime"
	if f.Library.Err == nil {
		return Finding{check, OK, f.Library.Version + " at " + f.Library.Path, ""}
	}
	for _, m := range f.Models {
		if m.Backend == onnx.Name {
			return Finding{check, Fail, f.Library.Err.Error(), fmt.Sprintf("model %q cannot run without it", m.Name)}
		}
	}
	return Finding{check, Warn, f.Library.Err.Error(), "ONNX models cannot run without it"}
}

func (f *Facts) memory() Finding {
	const check, mb = "memory", 1 << 20
	m := f.Memory
	if m.Limit == 0 {
		return Finding{check, Warn, "unknown on this system", "see to it yourself that the models fit"}
	}
	whose := "the machine's"
	if m.Contained {
		whose = "the container's"
	}
	found := fmt.Sprintf("%d MB free of %s %d MB", m.Free/mb, whose, m.Limit/mb)
	if m.Free < littleMemory {
		return Finding{check, Warn, found, "give it more, or end something else"}
	}
	return Finding{check, OK, found, ""}
}

func (p *Port) judge() Finding {
	check := fmt.Sprintf("port %d", p.Number)
	if p.Err != nil {
		return Finding{check, Warn, p.Err.Error(), fmt.Sprintf("if that is not Shoal itself, choose another with --%s-port", p.Protocol)}
	}
	return Finding{check, OK, "free for " + p.Protocol, ""}
}

func judgeModel(m *repository.Inspection) Finding {
	check := "model " + m.Name
	if m.Err != nil {
		return Finding{check, Fail, m.Err.Error(), "mend it, or take the model out of the repository"}
	}
	var versions []string
	for _, n := range m.Versions {
		versions = append(versions, strconv.FormatInt(n, 10))
	}
	found := fmt.Sprintf("version %s for %s", strings.Join(versions, ", "), m.Backend)
	if len(m.Warnings) == 0 {
		return Finding{check, OK, found, ""}
	}
	for _, w := range m.Warnings {
		found += "; " + w.String()
	}
	return Finding{check, Warn, found, "take out what has no effect, or leave it"}
}
