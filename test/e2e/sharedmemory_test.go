//go:build e2e && linux

package e2e

import (
	"bytes"
	"fmt"
	"net/http"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/shoal-serving/shoal/internal/kserve/kservetest"
	"github.com/shoal-serving/shoal/test/servertest"
)

// A sharer is a client that has its tensors in a region of 32 bytes: an input of four floats, and
// the output behind it.
type sharer struct {
	server *servertest.Server
	name   string
	file   string
	input  []byte
}

func newSharer(t *testing.T, s *servertest.Server, name string, first float32) *sharer {
	t.Helper()
	c := &sharer{server: s, name: name, input: servertest.Floats(first, 2, 3, 4)}
	key, file := kservetest.SharedMemory(t, append(bytes.Clone(c.input), make([]byte, 16)...))
	c.file = file
	status, body := s.Post("/v2/systemsharedmemory/region/"+name+"/register", fmt.Sprintf(`{"key":%q,"byte_size":32}`, key))
	if status != http.StatusOK {
		t.Fatalf("register: %d %s", status, body)
	}
	return c
}

func (c *sharer) infer() (int, string) {
	return c.server.Post("/v2/models/m/infer", fmt.Sprintf(`{"inputs":[{"name":"IN","datatype":"FP32","shape":[1,4],"parameters":{"shared_memory_region":%q,"shared_memory_byte_size":16}}],
		"outputs":[{"name":"OUT","parameters":{"shared_memory_region":%[1]q,"shared_memory_offset":16,"shared_memory_byte_size":16}}]}`, c.name))
}

// check infers, and returns an error unless the output is the input.
func (c *sharer) check() error {
	if err := c.write(); err != nil {
		return err
	}
	status, body := c.infer()
	data, err := os.ReadFile(c.file)
	if status != http.StatusOK || err != nil || len(data) != 32 || !bytes.Equal(data[16:], c.input) {
		return fmt.Errorf("%s: status %d, %s; the region is %v: %w", c.name, status, body, data, err)
	}
	return nil
}

// write writes the input, and clears the output. The file keeps its size meanwhile.
func (c *sharer) write() error {
	file, err := os.OpenFile(c.file, os.O_WRONLY, 0)
	if err != nil {
		return err
	}
	_, err = file.WriteAt(append(bytes.Clone(c.input), make([]byte, 16)...), 0)
	if closed := file.Close(); err == nil {
		err = closed
	}
	return err
}

// A client that truncates its region while its request is in flight gets an error. Others, which share
// its batches, do not notice. The control is the same client when it does not truncate.
func TestAClientThatTruncatesItsRegionHarmsOnlyItself(t *testing.T) {
	s := servertest.Start(t, servertest.Repository(t, map[string]string{"m": `backend: "simulated" max_batch_size: 8
input { name: "IN" data_type: TYPE_FP32 dims: 4 } output { name: "OUT" data_type: TYPE_FP32 dims: 4 }
parameters { key: "fixed_us" value { string_value: "20000" } }
dynamic_batching { }`}), "--allow-client-shm")
	attacker, other := newSharer(t, s, "attacker", 1), newSharer(t, s, "other", 9)
	if err := attacker.check(); err != nil { // the control
		t.Fatal(err)
	}
	stop := make(chan struct{})
	var answers atomic.Int64
	var others sync.WaitGroup
	others.Go(func() {
		for {
			select {
			case <-stop:
				return
			default:
			}
			if err := other.check(); err != nil {
				t.Error(err)
				return
			}
			answers.Add(1)
		}
	})
	const rounds = 30
	var refused int
	for range rounds {
		if err := attacker.write(); err != nil {
			t.Fatal(err)
		}
		truncated := make(chan error, 1)
		go func() {
			time.Sleep(5 * time.Millisecond) // the batch takes 20
			truncated <- os.Truncate(attacker.file, 0)
		}()
		status, body := attacker.infer()
		if err := <-truncated; err != nil {
			t.Fatal(err)
		}
		switch {
		case status == http.StatusBadRequest && strings.Contains(body, "is smaller than when it was registered"):
			refused++
		case status != http.StatusOK: // it was answered before it was truncated
			t.Errorf("the client that truncates is answered %d %s", status, body)
		}
	}
	close(stop)
	others.Wait()
	t.Logf("%d of %d truncated requests were refused; the other client had %d answers meanwhile", refused, rounds, answers.Load())
	if refused < rounds/2 {
		t.Errorf("only %d of %d truncations met a request in flight", refused, rounds)
	}
	if answers.Load() == 0 {
		t.Error("the other client was never answered")
	}
	if err := attacker.check(); err != nil { // write extends the object again
		t.Errorf("the client that has stopped truncating: %v", err)
	}
}
