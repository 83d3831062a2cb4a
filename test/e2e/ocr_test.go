//go:build e2e

package e2e

import (
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/shoal-serving/shoal/client"
	"github.com/shoal-serving/shoal/internal/engine/onnx/onnxtest"
	"github.com/shoal-serving/shoal/test/servertest"
)

// A picture is a drawn line of digits.
type picture struct {
	text   string
	shape  []int64
	pixels []float32
}

func (p *picture) tensor(name string) client.Tensor {
	return client.NewTensor(name, p.pixels, p.shape...)
}

// drawn draws pictures of random digits, of which examples/ocr/page.pgm has the shapes of four.
func drawn(t *testing.T, n int) (all []picture) {
	t.Helper()
	text, err := os.ReadFile(servertest.Root + "/examples/ocr/page.pgm")
	if err != nil {
		t.Fatal(err)
	}
	words := strings.Fields(string(text))
	const height, size = 8, 12
	width, _ := strconv.Atoi(words[1])
	pixel := func(x, y int) float32 {
		if x < 0 || x >= width {
			return 0
		}
		v, err := strconv.Atoi(words[4+y*width+x])
		if err != nil {
			t.Fatal(err)
		}
		return float32(v) / 16
	}
	var middles []int // of the characters
	first := -1
	for x := range width + 1 {
		ink := false
		for y := range height {
			ink = ink || pixel(x, y) > 0.2
		}
		switch {
		case ink && first < 0:
			first = x
		case !ink && first >= 0:
			middles = append(middles, (first+x)/2)
			first = -1
		}
	}
	const page = "20261116"
	if len(middles) != len(page) {
		t.Fatalf("the page has %d characters, want %s", len(middles), page)
	}
	chance := rand.New(rand.NewPCG(1, 2))
	for range n {
		length := 3 + chance.IntN(30)
		p := picture{shape: []int64{height, int64(length * size)}, pixels: make([]float32, height*length*size)}
		for k := range length {
			which := chance.IntN(len(page))
			p.text += page[which : which+1]
			for y := range height {
				for x := range size {
					// Neighbours on the page are not part of a character.
					if x > 0 && x < size-1 {
						p.pixels[y*length*size+k*size+x] = pixel(middles[which]+x-size/2, y)
					}
				}
			}
		}
		all = append(all, p)
	}
	return all
}

// A reader reads pictures with the models of examples/ocr-ensemble, and counts the bytes of tensors that it
// sends and receives.
type reader struct {
	*client.Client
	t     *testing.T
	bytes atomic.Int64
}

func (r *reader) ask(model string, inputs ...client.Tensor) (*client.Tensor, error) {
	resp, err := r.Infer(r.t.Context(), &client.Request{Model: model, Inputs: inputs})
	if err != nil {
		return nil, fmt.Errorf("%s: %w", model, err)
	}
	for _, all := range [][]client.Tensor{inputs, resp.Outputs} {
		for i := range all {
			r.bytes.Add(int64(len(all[i].Data)))
		}
	}
	return &resp.Outputs[0], nil
}

func (r *reader) ensemble(p *picture) (*client.Tensor, error) {
	return r.ask("read", p.tensor("IMAGE"))
}

// steps calls the steps of the ensemble one after the other.
func (r *reader) steps(p *picture) (*client.Tensor, error) {
	boxes, err := r.ask("detect", p.tensor("image"))
	if err != nil {
		return nil, err
	}
	characters, err := r.ask("crop", p.tensor("image"), *boxes)
	if err != nil {
		return nil, err
	}
	characters.Name = "X"
	labels, err := r.ask("digits", *characters)
	if err != nil {
		return nil, err
	}
	labels.Name = "labels"
	return r.ask("spell", *labels)
}

// read reads pictures with 16 clients for some time, and returns how many a second, and the bytes of each.
func (r *reader) read(pictures []picture, how func(*picture) (*client.Tensor, error), length time.Duration) (rate, size float64) {
	r.bytes.Store(0)
	var done atomic.Int64
	began := time.Now()
	var all sync.WaitGroup
	for n := range 16 {
		all.Go(func() {
			for i := n; time.Since(began) < length || i < len(pictures); i++ {
				p := &pictures[i%len(pictures)]
				text, err := how(p)
				if err != nil {
					r.t.Error(err)
					return
				}
				if got, err := client.Strings(text); err != nil || len(got) != 1 || got[0] != p.text {
					r.t.Errorf("read %q, %v, want %q", got, err, p.text)
					return
				}
				done.Add(1)
			}
		})
	}
	all.Wait()
	return float64(done.Load()) / time.Since(began).Seconds(), float64(r.bytes.Load()) / float64(done.Load())
}

// TestTheOCREnsembleReadsDrawnPictures serves examples/ocr-ensemble. Clients that use the ensemble read as
// many pictures as clients that call its steps, with less than half of the bytes.
func TestTheOCREnsembleReadsDrawnPictures(t *testing.T) {
	onnxtest.Library(t)
	t.Setenv("PATH", filepath.Dir(servertest.PythonInterpreter(t))+":"+os.Getenv("PATH"))
	s := servertest.Start(t, servertest.Root+"/examples/ocr-ensemble/models")
	pictures := drawn(t, 20)
	r := &reader{Client: s.Client(), t: t}
	for i := range pictures {
		text, err := r.ensemble(&pictures[i])
		if err != nil {
			t.Fatal(err)
		}
		if got, err := client.Strings(text); err != nil || len(got) != 1 || got[0] != pictures[i].text {
			t.Errorf("picture %d: %q, %v, want %q", i, got, err, pictures[i].text)
		}
	}
	if t.Failed() {
		return
	}
	s.AwaitMeasured(t, "digits")
	length := servertest.StrictOr(5*time.Second, time.Second)
	r.read(pictures, r.steps, length/4) // connections and workers are warm from now on
	servertest.Hold(t, "pictures a second, times those of clients that call the steps", servertest.StrictOr(1.0, 0.8), 100, func() float64 {
		separate, more := r.read(pictures, r.steps, length)
		together, fewer := r.read(pictures, r.ensemble, length)
		t.Logf("%.0f pictures a second with the ensemble, %.0f with its steps; %.0f and %.0f bytes each", together, separate, fewer, more)
		if fewer >= more/2 {
			t.Errorf("a picture takes %.0f bytes with the ensemble, want less than half of %.0f", fewer, more)
		}
		return together / separate
	})
}
