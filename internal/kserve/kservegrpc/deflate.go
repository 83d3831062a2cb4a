package kservegrpc

import (
	"compress/zlib"
	"io"
	"sync"

	"google.golang.org/grpc/encoding"
)

// registerDeflate registers deflate with grpc. It must run before the first server is
// created.
var registerDeflate = sync.OnceFunc(func() { encoding.RegisterCompressor(&deflate{}) })

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
	if r, ok := d.readers.Get().(*inflater); ok {
		if err := r.ReadCloser.(zlib.Resetter).Reset(from, nil); err != nil {
			d.readers.Put(r)
			return nil, err
		}
		return r, nil
	}
	r, err := zlib.NewReader(from)
	if err != nil {
		return nil, err
	}
	return &inflater{r, &d.readers}, nil
}

// An inflater returns to its pool when it has been read completely.
type inflater struct {
	io.ReadCloser
	pool *sync.Pool
}

func (r *inflater) Read(p []byte) (int, error) {
	n, err := r.ReadCloser.Read(p)
	if err == io.EOF {
		r.pool.Put(r)
	}
	return n, err
}
