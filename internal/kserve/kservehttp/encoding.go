package kservehttp

import (
	"compress/gzip"
	"compress/zlib"
	"io"
	"net/http"
	"strconv"
	"strings"
	"sync"

	"github.com/shoal-serving/shoal/internal/buf"
	"github.com/shoal-serving/shoal/internal/infer"
	"github.com/shoal-serving/shoal/internal/kserve"
)

// bodyEncoding returns how a body is compressed; "" means that it is not.
func bodyEncoding(header []string) (string, error) {
	switch encoding := strings.ToLower(strings.Join(header, ", ")); encoding {
	case "", "identity":
		return "", nil
	case "gzip", "deflate":
		return encoding, nil
	}
	return "", infer.Errorf(infer.Unsupported, "Unsupported compression type")
}

// answerEncoding returns what the client likes best, of what there is: the one of
// the highest quality, and of two that are equal the one that it names first. ""
// means that the answer is not compressed.
func answerEncoding(header []string) string {
	best, highest := "", 0.0
	for part := range strings.SplitSeq(strings.Join(header, ","), ",") {
		name, parameter, _ := strings.Cut(part, ";")
		name = strings.ToLower(strings.TrimSpace(name))
		quality := 1.0
		if q, ok := strings.CutPrefix(strings.TrimSpace(parameter), "q="); ok {
			quality, _ = strconv.ParseFloat(q, 64) // what is no number is a 0
		}
		switch name {
		case "gzip", "deflate", "identity":
			if quality > highest {
				best, highest = name, quality
			}
		}
	}
	if best == "identity" {
		return ""
	}
	return best
}

// inflate returns the decompressed body of a request, with one count that is the
// caller's.
func inflate(r *http.Request, encoding string, limits *kserve.Limits) (*buf.Buf, error) {
	in := &inflating{from: sent{body: r.Body, limits: limits}, length: r.ContentLength}
	if err := in.open(encoding); err != nil {
		return nil, in.broken(err)
	}
	defer in.close()
	return readUnknown(in, limits.Decoded)
}

// inflating reads a compressed body until it has grown too much.
type inflating struct {
	from   sent
	length int64 // of the body as it is sent; -1 if it does not say
	reader io.Reader
	close  func()
	n      int64
}

// Readers and writers take tens of kilobytes, and are used again.
var (
	gzipReaders = sync.Pool{New: func() any { return new(gzip.Reader) }}
	zlibReaders sync.Pool // new ones need something to read
	gzipWriters = sync.Pool{New: func() any { w, _ := gzip.NewWriterLevel(nil, gzip.BestSpeed); return w }}
	zlibWriters = sync.Pool{New: func() any { w, _ := zlib.NewWriterLevel(nil, zlib.BestSpeed); return w }}
)

// open reads the first bytes. If the error is nil, close is to be called.
func (in *inflating) open(encoding string) (err error) {
	if encoding == "gzip" {
		reader := gzipReaders.Get().(*gzip.Reader)
		in.reader, in.close = reader, func() { gzipReaders.Put(reader) }
		return reader.Reset(&in.from)
	}
	reader, used := zlibReaders.Get().(io.Reader)
	if used {
		err = reader.(zlib.Resetter).Reset(&in.from, nil)
	} else {
		reader, err = zlib.NewReader(&in.from)
	}
	in.reader, in.close = reader, func() { zlibReaders.Put(reader) }
	return err
}

func (in *inflating) Read(p []byte) (int, error) {
	n, err := in.reader.Read(p)
	in.n += int64(n)
	if over := in.from.limits.CheckDecoded(in.n); over != nil {
		return n, over
	}
	// A body that says how long it is may grow early what it does not grow late.
	if over := in.from.limits.CheckRatio(in.n, max(in.length, in.from.n)); over != nil {
		return n, over
	}
	if err != nil && err != io.EOF {
		return n, in.broken(err)
	}
	return n, err
}

// broken tells a body that did not come from one that is not what it says.
func (in *inflating) broken(err error) error {
	if in.from.err != nil {
		return in.from.err
	}
	return infer.Errorf(infer.Invalid, "the body of the request cannot be decompressed: %w", err)
}

// A deflater is a writer of either kind.
type deflater interface {
	io.WriteCloser
	Reset(w io.Writer)
}

// deflate calls write with a writer that compresses to w. It is the fastest way
// to compress that is used: a client waits for it, and tensors seldom shrink much.
func deflate(w io.Writer, encoding string, write func(w io.Writer) error) error {
	pool := &zlibWriters
	if encoding == "gzip" {
		pool = &gzipWriters
	}
	d := pool.Get().(deflater)
	defer pool.Put(d)
	d.Reset(w)
	if err := write(d); err != nil {
		return err
	}
	return d.Close()
}
