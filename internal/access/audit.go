package access

import (
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"time"
	"unicode/utf8"
)

// DefaultAuditSize is the size at which an audit log begins a new file.
const DefaultAuditSize = 64 << 20

// A record is a line of the audit log. Fields may be added, never renamed.
type record struct {
	Time    time.Time `json:"time"`
	Caller  string    `json:"caller"`
	Tenant  string    `json:"tenant,omitempty"`
	From    string    `json:"from,omitempty"`
	What    string    `json:"what"`
	Model   string    `json:"model,omitempty"`
	Detail  string    `json:"detail,omitempty"`
	Outcome string    `json:"outcome"` // ok, denied or failed
	Error   string    `json:"error,omitempty"`
	Took    float64   `json:"took_seconds"`
	// Refused requests before this one, or denied changes of this caller, that have no record.
	Omitted uint64 `json:"omitted,omitempty"`
}

// maxText is the size of a text in a record, which may come from a client, and maxError that of
// the error of a change that was allowed, in bytes of JSON.
const (
	maxText  = 256
	maxError = 1024
)

func newRecord(began time.Time, caller *Caller, c Change, denied bool, err error) record {
	r := record{
		Time: began.UTC(), Caller: caller.Name(), Tenant: caller.Tenant(), What: cut(c.What, maxText), Model: cut(c.Model, maxText), Detail: cut(c.Detail, maxText),
		Outcome: "ok", Took: time.Since(began).Seconds(),
	}
	if caller != nil {
		r.From = caller.Address
	}
	switch {
	case denied:
		r.Outcome, r.Error = "denied", cut(err.Error(), maxText)
	case err != nil:
		r.Outcome, r.Error = "failed", cut(err.Error(), maxError)
	}
	return r
}

// cut returns the beginning of s that takes at most size bytes as JSON, which escapes a control
// character with six, and an ellipsis if that is not all.
func cut(s string, size int) string {
	for i, r := range s {
		n := utf8.RuneLen(r)
		if r < ' ' || strings.ContainsRune("\"\\<>&\x7f\u2028\u2029\ufffd", r) {
			n = len(`\u0000`)
		}
		if size -= n; size < 0 {
			return s[:i] + "…"
		}
	}
	return s
}

// AuditOptions configure an audit log.
type AuditOptions struct {
	// Size is the size in bytes at which a new file begins. Zero means [DefaultAuditSize].
	Size int64
	// Keep is the number of older files, of which each has a number after its name. Zero means
	// 9; the oldest is removed.
	Keep int
	// Log receives the errors of writing. Nil means [slog.Default].
	Log *slog.Logger
}

// An Audit is an append-only log of changes, a JSON object in each line. A record that
// cannot be written is lost: the server keeps serving, logs the error and counts it.
type Audit struct {
	path string
	opts AuditOptions
	lost atomic.Uint64

	mu      sync.Mutex // guards the following
	file    *os.File
	size    int64
	next    int64 // the size at which a new file is tried again; 0 if none has failed
	failing bool  // the last write failed
}

// OpenAudit opens the audit log at path, and appends to it if it exists. The caller closes
// it.
func OpenAudit(path string, opts AuditOptions) (*Audit, error) {
	if opts.Size == 0 {
		opts.Size = DefaultAuditSize
	}
	if opts.Keep == 0 {
		opts.Keep = 9
	}
	if opts.Log == nil {
		opts.Log = slog.Default()
	}
	a := &Audit{path: path, opts: opts}
	if err := a.openLocked(); err != nil {
		return nil, err
	}
	return a, nil
}

func (a *Audit) openLocked() error {
	file, err := os.OpenFile(a.path, os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o600)
	if err != nil {
		return fmt.Errorf("cannot open the audit log: %w", err)
	}
	info, err := file.Stat()
	if err != nil {
		return errors.Join(err, file.Close())
	}
	a.file, a.size, a.next = file, info.Size(), 0
	return nil
}

// Lost returns the number of records that could not be written.
func (a *Audit) Lost() uint64 {
	if a == nil {
		return 0
	}
	return a.lost.Load()
}

// Close closes the file.
func (a *Audit) Close() error {
	if a == nil {
		return nil
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.file.Close()
}

func (a *Audit) write(r record) {
	line, err := json.Marshal(r)
	if err == nil {
		err = a.append(append(line, '\n'))
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	switch {
	case err == nil && a.failing:
		a.opts.Log.Info("audit log can be written again", "records_lost", a.lost.Load())
	case err != nil:
		lost := a.lost.Add(1)
		if !a.failing { // once, not for each record
			a.opts.Log.Error("audit log cannot be written; changes are made without a record", "error", err, "what", r.What, "caller", r.Caller, "records_lost", lost)
		}
	}
	a.failing = err != nil
}

// append writes a line with a single write. A line that was written in part is cut off, so
// that the next one does not continue it.
func (a *Audit) append(line []byte) error {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.size > 0 && a.size+int64(len(line)) > max(a.opts.Size, a.next) {
		a.rotateLocked()
	}
	n, err := a.file.Write(line)
	if err != nil && n > 0 {
		err = errors.Join(err, a.file.Truncate(a.size))
		n = 0
	}
	a.size += int64(n)
	return err
}

// rotateLocked renames path to path.1, path.1 to path.2 and so on, and begins a new file. If it cannot,
// the full file goes on, and the next try is when it has grown by Size. What is no regular file, such as
// a pipe, is never full.
func (a *Audit) rotateLocked() {
	full := a.file
	info, err := full.Stat()
	if err == nil && !info.Mode().IsRegular() {
		a.next = math.MaxInt64
		return
	}
	if err == nil {
		err = a.moveLocked()
	}
	if err == nil {
		err = a.openLocked()
	}
	if err != nil {
		a.next = a.size + a.opts.Size
		a.opts.Log.Error("audit log cannot begin a new file; records are added to the full one", "error", err)
		return
	}
	_ = full.Close() // its records were written
}

// moveLocked moves the active file aside first: if it must stay, as a mount or an append-only file does,
// the older ones stay as well.
func (a *Audit) moveLocked() error {
	aside := a.older(0)
	if _, err := os.Lstat(aside); err == nil { // a process was killed here
		if err := a.shiftLocked(); err != nil {
			return err
		}
	}
	err := os.Rename(a.path, aside)
	if errors.Is(err, os.ErrNotExist) {
		return nil // something else has moved it
	}
	if err != nil {
		return err
	}
	if err := a.shiftLocked(); err != nil {
		return errors.Join(err, os.Rename(aside, a.path))
	}
	return nil
}

// shiftLocked renames path.0 to path.1, and those that are in the way.
func (a *Audit) shiftLocked() error {
	free := 1
	for ; free < a.opts.Keep; free++ {
		if _, err := os.Lstat(a.older(free)); errors.Is(err, os.ErrNotExist) {
			break
		}
	}
	for ; free > 0; free-- {
		if err := os.Rename(a.older(free-1), a.older(free)); err != nil {
			return err
		}
	}
	return nil
}

func (a *Audit) older(number int) string { return fmt.Sprintf("%s.%d", a.path, number) }
