//go:build e2e && linux

package e2e

import (
	"bytes"
	"errors"
	"image"
	"image/color"
	"image/jpeg"
	"os"
	"path/filepath"
	"testing"

	"github.com/shoal-serving/shoal/client"
	"github.com/shoal-serving/shoal/internal/engine/onnx/onnxtest"
	"github.com/shoal-serving/shoal/test/servertest"
)

// jpegOf draws character k of a picture as a JPEG, each pixel as a square of the given size.
func jpegOf(t *testing.T, p *picture, k, size int) []byte {
	t.Helper()
	const side, cell, margin = 8, 12, 2
	drawn := image.NewRGBA(image.Rect(0, 0, side*size, side*size))
	for y := range side * size {
		for x := range side * size {
			ink := uint8(255 * p.pixels[y/size*int(p.shape[1])+k*cell+margin+x/size])
			drawn.Set(x, y, color.RGBA{ink, ink, ink, 255})
		}
	}
	var out bytes.Buffer
	if err := jpeg.Encode(&out, drawn, nil); err != nil {
		t.Fatal(err)
	}
	return out.Bytes()
}

// TestAnEnsembleClassifiesJPEGs serves examples/jpeg-classifier, and sends its picture and drawn ones.
func TestAnEnsembleClassifiesJPEGs(t *testing.T) {
	onnxtest.Library(t)
	t.Setenv("PATH", filepath.Join(environment(t, "pillow", "PIL"), "bin")+":"+os.Getenv("PATH"))
	s := servertest.Start(t, servertest.Root+"/examples/jpeg-classifier/models")
	c := s.Client()
	classify := func(data []byte) (int64, error) {
		resp, err := c.Infer(t.Context(), &client.Request{Model: "classify", Inputs: []client.Tensor{client.NewStrings("JPEG", [][]byte{data}, 1, 1)}})
		if err != nil {
			return 0, err
		}
		labels, err := client.Values[int64](resp.Output("LABEL"))
		if err != nil || len(labels) != 1 {
			t.Fatal(labels, err)
		}
		return labels[0], nil
	}
	three, err := os.ReadFile(servertest.Root + "/examples/jpeg-classifier/three.jpg")
	if err != nil {
		t.Fatal(err)
	}
	if got, err := classify(three); err != nil || got != 3 {
		t.Errorf("three.jpg: %d, %v", got, err)
	}
	for i, p := range drawn(t, 8) {
		for k := range 3 {
			if got, err := classify(jpegOf(t, &p, k, 8*(i+1))); err != nil || got != int64(p.text[k]-'0') {
				t.Errorf("a drawn %c: %d, %v", p.text[k], got, err)
			}
		}
	}
	if _, err := classify([]byte("GIF89a")); !errors.Is(err, client.Invalid) {
		t.Errorf("no JPEG: %v, want an error", err)
	}
}
