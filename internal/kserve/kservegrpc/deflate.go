package kservegrpc

import (
	"compress/zlib"
	"io"
	"math"
	"sync"

	"google.golang.org/grpc/encoding"
	"google.golang.org/grpc/encoding/gzip"

	"github.com/shoal-serving/shoal/internal/kserve"
)

// registerCompressors registers gzip and deflate with grpc, both with a limit of their
// ratio. It must run before the first server is created.
var registerCompressors = sync.OnceFunc(func() {
	limits := kserve.Limits{}.WithDefaults() // grpc has one compressor for all servers
	for _, c := range []encoding.Compressor{encoding.GetCompressor(gzip.Name), &deflate{}} {
		encoding.RegisterCompressor(&ratioLimited{c, &limits})
	}
})

// ratioLimited is a compressor that does not decompress a message whose ratio exceeds the
// limit.
type ratioLimited struct {
	encoding.Compressor
	limits *kserve.Limits
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
	return &ratioReader{Reader: r, limits: c.limits, sent: sent}, nil
}

// A ratioReader decompresses a message of sent bytes.
type ratioReader struct {
	io.Reader
	limits  *kserve.Limits
	n, sent int64
}

func (r *ratioReader) Read(p []byte) (int, error) {
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
