package kservegrpc

import (
	"bytes"
	"errors"
	"io"
	"sync/atomic"
	"testing"
	"testing/iotest"
	"testing/synctest"

	"google.golang.org/grpc/encoding"
	"google.golang.org/grpc/encoding/gzip"

	"github.com/shoal-serving/shoal/internal/kserve"
)

func compressed(t *testing.T, c encoding.Compressor, content []byte) []byte {
	t.Helper()
	var b bytes.Buffer
	w, err := c.Compress(&b)
	if err != nil {
		t.Fatal(err)
	}
	n, err := w.Write(content)
	if err := errors.Join(err, w.Close()); err != nil || n != len(content) {
		t.Fatalf("%d of %d bytes are written: %v", n, len(content), err)
	}
	return b.Bytes()
}

// withoutBudget forgets the budget of an earlier test's server.
func withoutBudget() { decompressions.Store(nil) }

func TestADecompressedMessageIsAReader(t *testing.T) {
	withoutBudget()
	limits := kserve.Limits{Ratio: 1000}.WithDefaults()
	content := bytes.Repeat([]byte("tensor data, "), 10_000)
	for _, c := range []encoding.Compressor{&ratioLimited{&deflate{}, &limits, nil}, &ratioLimited{encoding.GetCompressor(gzip.Name), &limits, nil}} {
		for range 2 { // the second has a decompressor that was used before
			for name, from := range map[string]io.Reader{
				"at once":         bytes.NewReader(compressed(t, c, content)),
				"byte by byte":    iotest.OneByteReader(bytes.NewReader(compressed(t, c, content))),
				"the end with it": iotest.DataErrReader(bytes.NewReader(compressed(t, c, content))),
			} {
				r, err := c.Decompress(from)
				if err != nil {
					t.Fatal(err)
				}
				if err := iotest.TestReader(r, content); err != nil {
					t.Errorf("%s, %s: %v", c.Name(), name, err)
				}
			}
		}
	}
}

// A closing is a compressor that counts how often its decompressors are closed.
type closing struct {
	encoding.Compressor
	closed int
}

func (c *closing) Decompress(from io.Reader) (io.Reader, error) {
	return struct {
		io.Reader
		io.Closer
	}{from, c}, nil
}

func (c *closing) Close() error {
	c.closed++
	return nil
}

// TestADecompressorIsClosed is about that of gzip, which returns to its pool when it is closed.
func TestADecompressorIsClosed(t *testing.T) {
	limits := kserve.Limits{}.WithDefaults()
	c := &closing{}
	r, err := (&ratioLimited{c, &limits, nil}).Decompress(bytes.NewReader([]byte("content")))
	if err != nil {
		t.Fatal(err)
	}
	if err := r.(io.Closer).Close(); err != nil || c.closed != 1 {
		t.Errorf("closed %d times, %v, want once", c.closed, err)
	}
}

// TestLargeMessagesWaitForASlot leaves one message unfinished: other large ones wait for its
// end, to be decompressed or compressed, and small ones do not.
func TestLargeMessagesWaitForASlot(t *testing.T) {
	withoutBudget()
	synctest.Test(t, func(t *testing.T) {
		limits := kserve.Limits{Ratio: 10_000}.WithDefaults()
		c := &ratioLimited{&deflate{}, &limits, make(chan struct{}, 1)}
		open := func(size int) io.ReadCloser {
			r, err := c.Decompress(bytes.NewReader(compressed(t, c, make([]byte, size))))
			if err != nil {
				t.Fatal(err)
			}
			return r.(io.ReadCloser)
		}
		var finished atomic.Int32
		read := func(r io.ReadCloser) {
			_, err := io.Copy(io.Discard, r)
			if err = errors.Join(err, r.Close()); err != nil {
				t.Error(err)
			}
			finished.Add(1)
		}
		first, second := open(largeMessage+100_000), open(2*largeMessage)
		for _, n := range []int64{largeMessage + 1, 1} { // it gets its permit after the first part
			if _, err := io.CopyN(io.Discard, first, n); err != nil {
				t.Fatal(err)
			}
		}
		go read(second)
		go func() {
			compressed(t, c, make([]byte, 2*largeMessage))
			finished.Add(1)
		}()
		read(open(largeMessage))
		synctest.Wait()
		if n := finished.Load(); n != 1 {
			t.Errorf("%d messages were finished beside a large one, want only the small one", n)
		}
		read(first)
		synctest.Wait()
		if n := finished.Load(); n != 4 {
			t.Errorf("%d messages were finished in the end, want 4", n)
		}
	})
}

// A reader that has reached its end may be read again, by a caller that wants to be sure.
// Meanwhile its decompressor reads other messages.
func TestAReaderAtItsEndTakesNothingFromOthers(t *testing.T) {
	c := &deflate{}
	open := func(content string) io.Reader {
		r, err := c.Decompress(bytes.NewReader(compressed(t, c, []byte(content))))
		if err != nil {
			t.Fatal(err)
		}
		return r
	}
	for range 100 { // the pool drops some
		first := open("first")
		if _, err := io.ReadAll(first); err != nil {
			t.Fatal(err)
		}
		if n, err := first.Read(make([]byte, 10)); n != 0 || err != io.EOF {
			t.Fatalf("after the end: %d bytes, %v", n, err)
		}
		second, third := open("second"), open("third")
		if n, err := first.Read(make([]byte, 10)); n != 0 || err != io.EOF {
			t.Fatalf("after the end, while others are read: %d bytes, %v", n, err)
		}
		for want, r := range map[string]io.Reader{"second": second, "third": third} {
			if got, err := io.ReadAll(r); err != nil || string(got) != want {
				t.Fatalf("got %q, %v, want %q", got, err, want)
			}
		}
	}
}
