package kservehttp

import (
	"compress/gzip"
	"compress/zlib"
	"io"
	"net/http"
	"strconv"
	"strings"
	"sync"

	"github.com/shoal-serving/shoal/internal/budget"
	"github.com/shoal-serving/shoal/internal/buf"
	"github.com/shoal-serving/shoal/internal/infer"
	"github.com/shoal-serving/shoal/internal/kserve"
)

// bodyEncoding returns the content encoding of a body, "" if it is not compressed.
func bodyEncoding(header []string) (string, error) {
	switch encoding := strings.ToLower(strings.Join(header, ", ")); encoding {
	case "", "identity":
		return "", nil
	case "gzip", "deflate":
		return encoding, nil
	}
	return "", infer.Errorf(infer.Unsupported, "Unsupported compression type")
}

// responseEncoding returns the supported encoding that the client prefers: the one with
// the highest quality, and of equal ones the first. "" means no compression.
func responseEncoding(header []string) string {
	best, highest := "", 0.0
	for part := range strings.SplitSeq(strings.Join(header, ","), ",") {
		name, parameter, _ := strings.Cut(part, ";")
		name = strings.ToLower(strings.TrimSpace(name))
		quality := 1.0
		if q, ok := strings.CutPrefix(strings.TrimSpace(parameter), "q="); ok {
			quality, _ = strconv.ParseFloat(q, 64) // an invalid number is 0
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

// decompress returns the decompressed body of a request. The caller owns the reference.
func decompress(r *http.Request, encoding string, limits *kserve.Limits, charge *budget.Charge) (*buf.Buf, error) {
	in := &inflater{from: bodyReader{body: r.Body, limits: limits}, length: r.ContentLength}
	if err := in.open(encoding); err != nil {
		return nil, in.bodyError(err)
	}
	defer in.close()
	body, err := readUnknown(in, limits.Decoded, charge)
	if err != nil {
		return nil, err
	}
	if err := kserve.SkipRest(r.Body); err != nil {
		body.Release()
		return nil, in.bodyError(err)
	}
	return body, nil
}

// An inflater decompresses a body and enforces the limits of its size and ratio.
type inflater struct {
	from   bodyReader
	length int64 // Content-Length; -1 if unknown
	reader io.Reader
	close  func()
	n      int64
}

// A reader takes 40 KiB and a writer 1.2 MiB, so they are pooled.
var (
	gzipReaders = sync.Pool{New: func() any { return new(gzip.Reader) }}
	zlibReaders sync.Pool // has no New: a reader needs its input to be created
	gzipWriters = sync.Pool{New: func() any { w, _ := gzip.NewWriterLevel(nil, gzip.BestSpeed); return w }}
	zlibWriters = sync.Pool{New: func() any { w, _ := zlib.NewWriterLevel(nil, zlib.BestSpeed); return w }}
)

// open reads the header of the compressed data. If the error is nil, the caller must call
// close.
func (in *inflater) open(encoding string) (err error) {
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

func (in *inflater) Read(p []byte) (int, error) {
	n, err := in.reader.Read(p)
	in.n += int64(n)
	if over := in.from.limits.CheckDecoded(in.n); over != nil {
		return n, over
	}
	// If the length is known, the ratio is that of the whole body, so that its start may have
	// a higher one.
	if over := in.from.limits.CheckRatio(in.n, max(in.length, in.from.n)); over != nil {
		return n, over
	}
	if err != nil && err != io.EOF {
		return n, in.bodyError(err)
	}
	return n, err
}

// bodyError returns the error of reading the body if it failed, otherwise that of the
// decompressor.
func (in *inflater) bodyError(err error) error {
	if in.from.err != nil {
		return in.from.err
	}
	return infer.Errorf(infer.Invalid, "the body of the request cannot be decompressed: %w", err)
}

// A compressor is a gzip or a zlib writer.
type compressor interface {
	io.WriteCloser
	Reset(w io.Writer)
}

// compress returns compressed what write writes, about size bytes, in memory with the key of charge.
// The caller releases it. It returns nil if there is no memory in the budget. It uses the fastest
// level: a client is waiting, and tensors seldom compress well.
//
// Nothing is sent meanwhile: a client that reads slowly must not hold the compressor.
func compress(encoding string, size int, charge *budget.Charge, write func(w io.Writer) error) *packed {
	pool := &zlibWriters
	if encoding == "gzip" {
		pool = &gzipWriters
	}
	d := pool.Get().(compressor)
	defer pool.Put(d)
	p := &packed{charge: charge.Split(0), expected: size + size>>10 + 64}
	d.Reset(p)
	err := write(d)
	if err == nil {
		err = d.Close()
	}
	if err != nil {
		p.release()
		return nil
	}
	return p
}

// packed is what was written to it, and charged.
type packed struct {
	charge   budget.Charge // of its own: a pointer would move that of every request to the heap
	expected int           // bytes, at most
	memory   *buf.Buf      // nil at first, and if it could not grow
	n        int           // bytes of it that were written
}

func (p *packed) Write(b []byte) (_ int, err error) {
	need := p.n + len(b)
	if p.memory == nil {
		p.memory, err = allocate(max(need, min(p.expected, initialBodySize)), &p.charge)
	} else if need > len(p.memory.B) {
		p.memory, err = grow(p.memory, max(need, min(p.expected, 2*len(p.memory.B))), &p.charge)
	}
	if err != nil {
		return 0, err
	}
	p.n += copy(p.memory.B[p.n:], b)
	return len(b), nil
}

// bytes returns what was written. The caller must not keep it.
func (p *packed) bytes() []byte { return p.memory.B[:p.n] }

func (p *packed) release() {
	p.memory.Release()
	p.memory = nil // the compressor keeps its writer
	p.charge.Close()
}
