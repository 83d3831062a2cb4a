package bucket

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"github.com/shoal-serving/shoal/internal/pause"
)

const (
	// rangeSize is how much one request reads, and rangesAtOnce how many requests of a fetch
	// run at the same time.
	rangeSize    = 8 << 20
	rangesAtOnce = 4

	// A range that breaks off is continued where it ended. attempts is how often in a row
	// that may bring no byte.
	attempts              = 5
	firstPause, mostPause = 100 * time.Millisecond, 2 * time.Second

	// stalled is how long a store may send nothing.
	stalled = 30 * time.Second
)

// Progress counts the bytes of a fetch.
type Progress struct {
	Done, Total atomic.Int64 // bytes that were read from the store, and that are read in all
}

// A download reads one object into a file.
type download struct {
	bucket   *Bucket
	object   Object
	file     *os.File
	slots    chan struct{} // holds one value for each range that is being read
	progress *Progress
	checked  atomic.Bool // the object's md5 is that of its content
}

// run reads all ranges. The first that fails ends the others.
func (d *download) run(ctx context.Context) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	var all sync.WaitGroup
	for begin := int64(0); begin < d.object.Size; begin += rangeSize {
		end := min(begin+rangeSize, d.object.Size)
		select {
		case d.slots <- struct{}{}:
		case <-ctx.Done():
		}
		if ctx.Err() != nil {
			break
		}
		all.Go(func() {
			defer func() { <-d.slots }()
			if err := d.readRange(ctx, begin, end); err != nil {
				cancel(err)
			}
		})
	}
	all.Wait()
	return context.Cause(ctx)
}

// readRange reads the bytes from begin to end, in as many attempts as it takes.
func (d *download) readRange(ctx context.Context, begin, end int64) error {
	failed, after := 0, firstPause
	for {
		n, err := d.attempt(ctx, begin, end)
		begin += n
		switch {
		case begin == end:
			return nil
		case errors.Is(err, ErrChanged) || errors.Is(err, ErrDenied) || ctx.Err() != nil:
			return err
		case n > 0:
			failed, after = 0, firstPause
		}
		if failed++; failed == attempts {
			return fmt.Errorf("%s/%s cannot be read, %d attempts failed: %w", d.bucket.url, d.object.Key, attempts, err)
		}
		if err := pause.For(ctx, after); err != nil {
			return err
		}
		after = min(2*after, mostPause)
	}
}

var errStalled = fmt.Errorf("the store sent nothing for %v", stalled)

// attempt reads from begin until end or until it fails, and returns the number of bytes that
// are in the file.
func (d *download) attempt(ctx context.Context, begin, end int64) (n int64, err error) {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	watch := time.AfterFunc(stalled, func() { cancel(errStalled) })
	defer watch.Stop()
	r, err := d.bucket.store.read(ctx, d.object, begin, end-begin)
	if err != nil {
		return 0, errors.Join(err, context.Cause(ctx))
	}
	defer func() { _ = r.Close() }() // what was read is in the file
	d.checked.Store(r.plainMD5)
	n, err = io.Copy(io.NewOffsetWriter(d.file, begin), io.LimitReader(&watched{r, watch, d.progress}, end-begin))
	if err == nil && begin+n < end {
		err = io.ErrUnexpectedEOF
	}
	if err != nil {
		err = errors.Join(err, context.Cause(ctx))
	}
	return n, err
}

// watched is a reader that reports its progress.
type watched struct {
	io.Reader
	watch    *time.Timer
	progress *Progress
}

func (w *watched) Read(p []byte) (int, error) {
	n, err := w.Reader.Read(p)
	w.watch.Reset(stalled)
	w.progress.Done.Add(int64(n))
	return n, err
}
