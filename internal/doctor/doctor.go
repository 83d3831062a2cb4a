// Package doctor checks the prerequisites of a server before it is started: the ONNX
// Runtime library, cores and memory, ports, and models, none of which it loads. Of each
// model it says whether it runs as in the server that it was configured for.
//
// [Look] collects facts from the machine, and [Facts.Judge], which is pure, reports what
// is wrong with them and what to do.
package doctor

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/shoal-serving/shoal/internal/engine/onnx"
	"github.com/shoal-serving/shoal/internal/engine/onnx/onnxruntime"
	"github.com/shoal-serving/shoal/internal/engine/python"
	"github.com/shoal-serving/shoal/internal/machine"
	"github.com/shoal-serving/shoal/internal/repository"
)

// Options configure Look.
type Options struct {
	Paths   []string // model repositories; may be empty
	Inspect repository.InspectOptions
	Library string // path of the ONNX Runtime library; "" means the server's default locations
	Ports   []Port // that the server would open
}

// Facts are the results of Look.
type Facts struct {
	Library Library
	Cores   int
	Memory  machine.Memory
	Ports   []Port
	Models  []repository.Inspection
	Paths   error // errors of reading the model repositories

	Searched bool // there were model repositories to read
}

// A Library is the ONNX Runtime library.
type Library struct {
	Path    string
	Version string
	CUDA    bool  // it supports CUDA
	Err     error // why it cannot be loaded; nil if it can
}

// A Port is one that the server would open.
type Port struct {
	Protocol string
	Address  string // host:port
	Hint     string // how to choose another one
	Err      error  // why the server cannot listen on it; nil if it can
	Clashes  bool   // it can, but not while it listens on its other ports
}

// Look collects the facts.
func Look(ctx context.Context, opts Options) Facts {
	f := Facts{
		Library: openLibrary(opts.Library),
		Cores:   machine.Cores(machine.Root()),
		Memory:  machine.ReadMemory(machine.Root()),
	}
	f.Ports = slices.Clone(opts.Ports)
	tryPorts(ctx, f.Ports)
	f.Models, f.Paths = repository.Inspect(opts.Paths, opts.Inspect)
	f.Searched = len(opts.Paths) > 0
	workers := interpreters{}
	for i := range f.Models {
		m := &f.Models[i]
		switch {
		case m.Err != nil:
		case m.Backend == onnx.Name && f.Library.Err == nil:
			m.Err = onnx.CheckDevice(m.Config, f.Library.CUDA, f.Library.Path)
		case m.Backend == python.Name || m.Backend == python.TorchName:
			m.Err = workers.check(ctx, m)
		}
	}
	repository.InspectMembers(f.Models, func(m *repository.Inspection) bool {
		return m.Err != nil || m.Backend == onnx.Name && f.Library.Err != nil
	})
	return f
}

// interpreters are the errors of running code, by interpreter and code.
type interpreters map[[2]string]error

// check returns an error if the worker of a model could not start, or lacks the library that runs
// the model's file.
func (all interpreters) check(ctx context.Context, m *repository.Inspection) error {
	path, err := python.Interpreter(m.Config, m.Dir)
	if err != nil {
		return err
	}
	if err := all.run(ctx, path, "import numpy"); err != nil {
		return fmt.Errorf("%s has no numpy (%w): run 'python3 -m venv venv && venv/bin/pip install numpy' next to the model's files, or configure another interpreter", path, err)
	}
	library, ok := python.LibraryOf(m.File)
	// It is not imported, which may take seconds.
	if ok && all.run(ctx, path, fmt.Sprintf("import importlib.util, sys; sys.exit(not importlib.util.find_spec(%q))", library.Module)) != nil {
		return fmt.Errorf("%s needs %s, which %s does not have: install it with %s -m pip install %s; a model that is exported to ONNX needs no library",
			filepath.Base(m.File), library.Package, path, path, library.Package)
	}
	return nil
}

// run runs code once. An error is the last line that the interpreter wrote.
func (all interpreters) run(ctx context.Context, path, code string) error {
	key := [2]string{path, code}
	if _, ok := all[key]; !ok {
		all[key] = nil
		if out, err := exec.CommandContext(ctx, path, "-c", code).CombinedOutput(); err != nil {
			lines := strings.Split(strings.TrimSpace(string(out)), "\n")
			all[key] = errors.New(cmp.Or(lines[len(lines)-1], err.Error()))
		}
	}
	return all[key]
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
	l.Version, l.CUDA = r.Version(), r.CUDA()
	r.Close()
	return l
}

// tryPorts listens on one port after the other, and then on all that are free together.
func tryPorts(ctx context.Context, ports []Port) {
	var config net.ListenConfig
	for i := range ports {
		listener, err := config.Listen(ctx, "tcp", ports[i].Address)
		if err == nil {
			err = listener.Close()
		}
		ports[i].Err = err
	}
	var open []net.Listener
	for i := range ports {
		if ports[i].Err != nil {
			continue
		}
		listener, err := config.Listen(ctx, "tcp", ports[i].Address)
		if ports[i].Clashes = err != nil; err == nil {
			open = append(open, listener)
		}
	}
	for _, l := range open {
		_ = l.Close() // nothing has connected
	}
}

// A Status is the severity of a finding.
type Status string

// Severities of findings.
const (
	OK   Status = "ok"
	Warn Status = "warn" // the server starts, but may not run as intended
	Fail Status = "fail" // something would not be served
)

// A Finding is the result of one check.
type Finding struct {
	Check  string `json:"check"`
	Status Status `json:"status"`
	Found  string `json:"found"`
	Do     string `json:"do,omitempty"` // suggested action

	Model   string  `json:"model,omitempty"`   // its name, if the check is about a model
	Verdict Verdict `json:"verdict,omitempty"` // set if Model is
}

// Detail returns what was found and what to do, on one line.
func (f Finding) Detail() string {
	text := f.Found
	if f.Do != "" {
		text += "; " + f.Do
	}
	return strings.ReplaceAll(text, "\n", "; ")
}

func (f Finding) String() string { return fmt.Sprintf("%-4s  %s: %s", f.Status, f.Check, f.Detail()) }

// minMemory is the free memory below which there is a warning: a server with one small
// model and a few clients needs more.
const minMemory = 256 << 20

// Judge returns the findings for the facts.
func (f *Facts) Judge() []Finding {
	all := []Finding{f.library(), {Check: "cores", Status: OK, Found: strconv.Itoa(f.Cores)}, f.memory()}
	for _, p := range f.Ports {
		all = append(all, p.judge())
	}
	if f.Paths != nil {
		all = append(all, Finding{Check: "models", Status: Fail, Found: f.Paths.Error(), Do: giveModels})
	}
	if f.Searched && f.Paths == nil && len(f.Models) == 0 {
		all = append(all, Finding{Check: "models", Status: Fail, Found: "none found", Do: giveModels})
	}
	for i := range f.Models {
		all = append(all, f.judgeModel(&f.Models[i]))
	}
	return all
}

const giveModels = "specify a directory with a subdirectory for each model, or an .onnx file"

// library fails only if a model needs the library.
func (f *Facts) library() Finding {
	const check = "ONNX Runtime"
	if f.Library.Err == nil {
		return Finding{Check: check, Status: OK, Found: f.Library.Version + " at " + f.Library.Path}
	}
	for _, m := range f.Models {
		if m.Backend == onnx.Name {
			return Finding{Check: check, Status: Fail, Found: f.Library.Err.Error(), Do: fmt.Sprintf("model %q cannot run without it", m.Name)}
		}
	}
	return Finding{Check: check, Status: Warn, Found: f.Library.Err.Error(), Do: "ONNX models cannot run without it"}
}

func (f *Facts) memory() Finding {
	const check, mib = "memory", 1 << 20
	m := f.Memory
	if m.Limit == 0 {
		return Finding{Check: check, Status: Warn, Found: "unknown on this system", Do: "make sure that the models fit"}
	}
	whose := "the machine's"
	if m.Contained {
		whose = "the container's"
	}
	found := fmt.Sprintf("%d MiB free of %s %d MiB", m.Free/mib, whose, m.Limit/mib)
	if m.Free < minMemory {
		return Finding{Check: check, Status: Warn, Found: found, Do: "provide more memory, or stop other programs"}
	}
	return Finding{Check: check, Status: OK, Found: found}
}

func (p *Port) judge() Finding {
	check := p.Protocol + " port"
	if p.Clashes {
		return Finding{Check: check, Status: Fail, Found: p.Address + " is the address of another port of the server, too", Do: p.Hint}
	}
	if p.Err != nil {
		return Finding{Check: check, Status: Warn, Found: p.Err.Error(), Do: "if it is not used by Shoal itself, " + p.Hint}
	}
	return Finding{Check: check, Status: OK, Found: p.Address + " is free"}
}
