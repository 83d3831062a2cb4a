package kservegrpc

import (
	"bytes"
	"compress/zlib"
	"context"
	"crypto/rand"
	"io"
	"math"
	"slices"
	"sync"
	"sync/atomic"

	"google.golang.org/grpc/encoding"
	"google.golang.org/grpc/encoding/gzip"
	"google.golang.org/grpc/mem"

	"github.com/shoal-serving/shoal/internal/budget"
	"github.com/shoal-serving/shoal/internal/kserve"
)

// registerCompressors registers gzip and deflate with grpc, both with a limit of their
// ratio. It must run before the first server is created.
var registerCompressors = sync.OnceFunc(func() {
	limits := kserve.Limits{}.WithDefaults() // grpc has one compressor for all servers
	limit := kserve.NewCoreLimit()
	for _, c := range []encoding.Compressor{encoding.GetCompressor(gzip.Name), &deflate{}} {
		encoding.RegisterCompressor(&ratioLimited{c, &limits, limit})
	}
})

// decompressions is the budget that is charged for messages while they are decompressed: that
// of the last server, because grpc does not say for which one it decompresses.
var decompressions atomic.Pointer[budget.Budget]

// ratioLimited is a compressor that does not decompress a message whose ratio exceeds the
// limit, or which does not fit the budget.
//
// Large messages need a permit. They do not wait for long, because grpc has them whole.
type ratioLimited struct {
	encoding.Compressor
	limits *kserve.Limits
	limit  kserve.CoreLimit
}

// largeMessage is the size up to which a message needs no permit.
const largeMessage = 1 << 20

// A permit is that of one message, which gets it when it is large.
type permit struct {
	limit kserve.CoreLimit
	held  bool
}

func (p *permit) get() {
	if !p.held {
		_ = p.limit.Acquire(context.Background()) // grpc does not say whose message it is
		p.held = true
	}
}

func (p *permit) free() {
	if p.held {
		p.limit.Release()
		p.held = false
	}
}

// Compress implements [encoding.Compressor].
func (c *ratioLimited) Compress(to io.Writer) (io.WriteCloser, error) {
	w, err := c.Compressor.Compress(to)
	if err != nil {
		return nil, err
	}
	return &permitWriter{WriteCloser: w, permit: permit{limit: c.limit}}, nil
}

// A permitWriter compresses one message.
type permitWriter struct {
	io.WriteCloser
	permit permit
	n      int
}

func (w *permitWriter) Write(p []byte) (int, error) {
	if w.n += len(p); w.n > largeMessage {
		w.permit.get()
	}
	n, err := w.WriteCloser.Write(p)
	if err != nil {
		w.permit.free() // grpc does not close it then
	}
	return n, err
}

func (w *permitWriter) Close() error {
	defer w.permit.free()
	return w.WriteCloser.Close()
}

// Decompress implements [encoding.Compressor].
func (c *ratioLimited) Decompress(from io.Reader) (io.Reader, error) {
	sent := int64(math.MaxInt64)
	if r, ok := from.(interface{ Remaining() int }); ok { // grpc has received the whole message
		sent = int64(r.Remaining())
	}
	r, err := c.Compressor.Decompress(from)
	if err != nil {
		return nil, err
	}
	charge := decompressions.Load().Open("decompression")
	reader := &ratioReader{Reader: r, limits: c.limits, permit: permit{limit: c.limit}, sent: sent, charge: charge}
	if sent < math.MaxInt64 && !reader.charge.Grow(sent) {
		reader.rest = overBudget[:]
	}
	return reader, nil
}

// A ratioReader decompresses a message of sent bytes. It is charged for the message in both
// forms until grpc closes it; then the receiver of the message is charged.
type ratioReader struct {
	io.Reader
	limits  *kserve.Limits
	permit  permit
	n, sent int64
	charge  budget.Charge
	charged int64  // of n
	rest    []byte // of overBudget; nil while the message fits the budget
}

// overBudget is the end of a message that was not decompressed because it does not fit the
// budget. An error would not do: grpc would call it an internal one. No client knows these
// bytes.
var overBudget = func() (mark [16]byte) {
	_, _ = rand.Read(mark[:]) // never fails
	return mark
}()

// isOverBudget reports whether a message ends with overBudget.
func isOverBudget(message mem.BufferSlice) bool {
	left := overBudget[:]
	for _, piece := range slices.Backward(message) {
		data := piece.ReadOnlyData()
		n := min(len(data), len(left))
		if !bytes.Equal(data[len(data)-n:], left[len(left)-n:]) {
			return false
		}
		left = left[:len(left)-n]
		if len(left) == 0 {
			return true
		}
	}
	return false
}

// decompressionStep is how much is charged at once.
const decompressionStep = 256 << 10

// Close implements [io.Closer].
func (r *ratioReader) Close() error {
	r.charge.Close()
	r.permit.free()
	if c, ok := r.Reader.(io.Closer); ok {
		return c.Close() // that of grpc returns to its pool there
	}
	return nil
}

func (r *ratioReader) Read(p []byte) (int, error) {
	if r.n > largeMessage {
		r.permit.get()
	}
	if r.rest == nil && r.n+int64(len(p)) > r.charged {
		if r.charge.Grow(decompressionStep) {
			r.charged += decompressionStep
		} else {
			r.rest = overBudget[:]
		}
	}
	if r.rest != nil {
		n := copy(p, r.rest)
		r.rest = r.rest[n:]
		if len(r.rest) == 0 {
			return n, io.EOF
		}
		return n, nil
	}
	n, err := r.Reader.Read(p)
	r.n += int64(n)
	if over := r.limits.CheckRatio(r.n, r.sent); over != nil {
		return n, over
	}
	return n, err
}

// deflate is the second compression that Triton's clients use. It is zlib's format, as in
// HTTP. grpc limits the decompressed size.
type deflate struct {
	writers, readers sync.Pool
}

// Name implements [encoding.Compressor].
func (*deflate) Name() string { return "deflate" }

// Compress implements [encoding.Compressor].
func (d *deflate) Compress(to io.Writer) (io.WriteCloser, error) {
	w, ok := d.writers.Get().(*zlib.Writer)
	if !ok {
		w = zlib.NewWriter(to)
	} else {
		w.Reset(to)
	}
	return &deflater{w, &d.writers}, nil
}

// A deflater returns to its pool when it is closed.
type deflater struct {
	*zlib.Writer
	pool *sync.Pool
}

func (w *deflater) Close() error {
	defer w.pool.Put(w.Writer)
	return w.Writer.Close()
}

// Decompress implements [encoding.Compressor].
func (d *deflate) Decompress(from io.Reader) (io.Reader, error) {
	if r, ok := d.readers.Get().(io.Reader); ok {
		if err := r.(zlib.Resetter).Reset(from, nil); err != nil {
			d.readers.Put(r)
			return nil, err
		}
		return &inflater{r, &d.readers}, nil
	}
	r, err := zlib.NewReader(from)
	if err != nil {
		return nil, err
	}
	return &inflater{r, &d.readers}, nil
}

// An inflater reads one message. It returns its decompressor to the pool at the end of the
// message, and does not touch it after that: it may be reading another message.
type inflater struct {
	zlib io.Reader // nil after the end
	pool *sync.Pool
}

func (r *inflater) Read(p []byte) (int, error) {
	if r.zlib == nil {
		return 0, io.EOF
	}
	n, err := r.zlib.Read(p)
	if err == io.EOF {
		r.pool.Put(r.zlib)
		r.zlib = nil
	}
	return n, err
}
