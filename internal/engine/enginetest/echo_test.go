package enginetest

import (
	"testing"
	"time"

	"github.com/shoal-serving/shoal/internal/engine"
	"github.com/shoal-serving/shoal/internal/leak"
	"github.com/shoal-serving/shoal/internal/modelconfig"
	"github.com/shoal-serving/shoal/tensor"
)

func TestMain(m *testing.M) { leak.Main(m) }

func TestEchoConforms(t *testing.T) {
	specs := []modelconfig.Tensor{
		{Name: "numbers", Type: tensor.Int16, Dims: []int64{-1, 2}},
		{Name: "texts", Type: tensor.Bytes, Dims: []int64{2}},
	}
	eng := &Echo{Takes: func(int) time.Duration { return 2 * time.Millisecond }}
	src := engine.Source{Config: &modelconfig.Config{MaxBatchSize: 8, Inputs: specs, Outputs: specs}}
	Conform(t, eng, src)
	eng.Takes = func(rows int) time.Duration { return time.Duration(rows-1) * 5 * time.Second }
	ConformStop(t, eng, src, Rows(src.Config, 2), Rows(src.Config, 1))
}
