package access

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

func readRecords(t *testing.T, path string) (all []record) {
	t.Helper()
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(text)) {
		var r record
		if err := json.Unmarshal([]byte(line), &r); err != nil {
			t.Fatalf("line %q: %v", line, err)
		}
		all = append(all, r)
	}
	return all
}

func TestEveryChangeIsRecordedWithItsOutcome(t *testing.T) {
	path := filepath.Join(t.TempDir(), "audit.log")
	audit, err := OpenAudit(path, AuditOptions{})
	if err != nil {
		t.Fatal(err)
	}
	gate := &Gate{Audit: audit}
	as := func(role Role) context.Context {
		return WithCaller(context.Background(), &Caller{Principals: []*Principal{{Name: "ann", Tenant: "blue", Grants: []Grant{{Role: role}}}}, Address: "192.0.2.1:5"})
	}
	done := 0
	ok := func() error { done++; return nil }
	load := Change{Action: Manage, What: "load", Model: "m", Detail: "with a configuration"}
	if err := gate.Change(as(Admin), load, ok); err != nil {
		t.Fatal(err)
	}
	if err := gate.Change(as(Admin), load, func() error { return errors.New("no such file") }); err == nil {
		t.Error("the error of a change is lost")
	}
	if err := gate.Change(as(Infer), load, ok); err == nil {
		t.Error("infer may load")
	}
	if err := gate.Change(context.Background(), Change{Action: Configure, What: "log"}, ok); !errors.Is(err, ErrUnauthenticated) {
		t.Errorf("without a caller: %v", err)
	}
	if done != 1 {
		t.Errorf("%d changes were made, expected 1", done)
	}
	if err := audit.Close(); err != nil {
		t.Fatal(err)
	}
	records := readRecords(t, path)
	want := []record{
		{Caller: "ann", Tenant: "blue", From: "192.0.2.1:5", What: "load", Model: "m", Detail: "with a configuration", Outcome: "ok"},
		{Caller: "ann", Tenant: "blue", From: "192.0.2.1:5", What: "load", Model: "m", Detail: "with a configuration", Outcome: "failed", Error: "no such file"},
		{Caller: "ann", Tenant: "blue", From: "192.0.2.1:5", What: "load", Model: "m", Detail: "with a configuration", Outcome: "denied", Error: "ann may not manage model 'm'"},
		{Caller: "anonymous", What: "log", Outcome: "denied", Error: ErrUnauthenticated.Error()},
	}
	if len(records) != len(want) {
		t.Fatalf("%d records, expected %d", len(records), len(want))
	}
	for i := range want {
		got := records[i]
		if got.Time.IsZero() {
			t.Errorf("record %d has no time", i)
		}
		got.Time, got.Took = want[i].Time, 0
		if got != want[i] {
			t.Errorf("record %d\n got %+v\nwant %+v", i, got, want[i])
		}
	}
}

func TestAnAuditLogBeginsANewFileWhenItIsFull(t *testing.T) {
	const changes = 40
	for _, keep := range []int{2, changes} {
		path := filepath.Join(t.TempDir(), "audit.log")
		audit, err := OpenAudit(path, AuditOptions{Size: 400, Keep: keep})
		if err != nil {
			t.Fatal(err)
		}
		gate := &Gate{Audit: audit, Open: true}
		var all sync.WaitGroup
		for range changes {
			all.Go(func() {
				_ = gate.Change(context.Background(), Change{What: "load", Model: "m"}, func() error { return nil })
			})
		}
		all.Wait()
		if err := audit.Close(); err != nil {
			t.Fatal(err)
		}
		files, err := filepath.Glob(path + "*")
		if err != nil {
			t.Fatal(err)
		}
		records := 0
		for _, name := range files {
			if info, err := os.Stat(name); err != nil || info.Size() > 400 {
				t.Errorf("%s: %v, %v", name, info, err)
			}
			records += len(readRecords(t, name))
		}
		if keep == changes && records != changes || audit.Lost() != 0 {
			t.Errorf("%d of %d records are in the files, and %d are lost", records, changes, audit.Lost())
		}
		if keep == 2 && len(files) != 3 {
			t.Errorf("the files are %v, want the current and two old ones", files)
		}
	}
}

// A full disk is the kernel's /dev/full: every write fails with ENOSPC.
func TestAFullDiskStopsNoChangeAndIsLoggedOnce(t *testing.T) {
	const full = "/dev/full"
	if _, err := os.Stat(full); err != nil {
		t.Skip("no " + full)
	}
	var log bytes.Buffer
	path := filepath.Join(t.TempDir(), "audit.log")
	if err := os.Symlink(full, path); err != nil {
		t.Fatal(err)
	}
	audit, err := OpenAudit(path, AuditOptions{Log: slog.New(slog.NewTextHandler(&log, nil))})
	if err != nil {
		t.Fatal(err)
	}
	gate := &Gate{Audit: audit, Open: true}
	done := 0
	for range 3 {
		if err := gate.Change(context.Background(), Change{What: "load"}, func() error { done++; return nil }); err != nil {
			t.Error(err)
		}
	}
	if done != 3 || audit.Lost() != 3 {
		t.Errorf("%d changes made and %d records lost, expected 3 and 3", done, audit.Lost())
	}
	if n := strings.Count(log.String(), "cannot be written"); n != 1 {
		t.Errorf("logged %d times, expected once: %s", n, &log)
	}
	// When there is space again, records are written and the log says so.
	audit.path = path + ".new"
	if err := errors.Join(audit.file.Close(), audit.openLocked()); err != nil {
		t.Fatal(err)
	}
	_ = gate.Change(context.Background(), Change{What: "load"}, func() error { return nil })
	if audit.Lost() != 3 || !strings.Contains(log.String(), "written again") || len(readRecords(t, audit.path)) != 1 {
		t.Errorf("after the disk has space: %d lost, log %s", audit.Lost(), &log)
	}
	if err := audit.Close(); err != nil {
		t.Fatal(err)
	}
}

func TestRefusedRequestsAreRecordedUpToARate(t *testing.T) {
	var l limiter
	now := time.Date(2026, 11, 1, 0, 0, 0, 0, time.UTC)
	allowed := 0
	for range maxRefusals + 50 {
		if _, ok := l.allow(now); ok {
			allowed++
		}
	}
	if allowed != maxRefusals {
		t.Errorf("%d were allowed at once, expected %d", allowed, maxRefusals)
	}
	now = now.Add(time.Second / refusalRate)
	if omitted, ok := l.allow(now); !ok || omitted != 50 {
		t.Errorf("the next: %v after %d omitted ones, expected 50", ok, omitted)
	}
	if _, ok := l.allow(now); ok {
		t.Error("another one at the same time is allowed")
	}
}

// noGrants is a context of a caller that may do nothing.
func noGrants(name string) context.Context {
	return WithCaller(context.Background(), &Caller{Principals: []*Principal{{Name: name}}, Address: "192.0.2.1:5"})
}

// change makes and records n changes, and closes the log.
func change(t *testing.T, audit *Audit, n int) {
	t.Helper()
	gate := &Gate{Audit: audit, Open: true}
	for range n {
		if err := gate.Change(context.Background(), Change{What: "load", Model: "m"}, func() error { return nil }); err != nil {
			t.Error(err)
		}
	}
	if err := audit.Close(); err != nil {
		t.Error(err)
	}
}

// The directory stands for what keeps a file from being renamed: a mount, a right, an attribute.
func TestAnAuditLogThatCannotBeRenamedLosesNoRecord(t *testing.T) {
	for _, keep := range []int{1, 2, 3} {
		var log bytes.Buffer
		path := filepath.Join(t.TempDir(), "audit.log")
		if err := os.MkdirAll(filepath.Join(path+"."+strconv.Itoa(keep), "x"), 0o700); err != nil {
			t.Fatal(err)
		}
		for i := 1; i < keep; i++ {
			if err := os.WriteFile(path+"."+strconv.Itoa(i), []byte(strconv.Itoa(i)), 0o600); err != nil {
				t.Fatal(err)
			}
		}
		audit, err := OpenAudit(path, AuditOptions{Size: 400, Keep: keep, Log: slog.New(slog.NewTextHandler(&log, nil))})
		if err != nil {
			t.Fatal(err)
		}
		change(t, audit, 40)
		if got := len(readRecords(t, path)); got != 40 || audit.Lost() != 0 {
			t.Errorf("keep %d: %d records, %d lost, want 40 and 0", keep, got, audit.Lost())
		}
		for i := 1; i < keep; i++ {
			if text, err := os.ReadFile(path + "." + strconv.Itoa(i)); err != nil || string(text) != strconv.Itoa(i) {
				t.Errorf("keep %d: older file %d: %q, %v", keep, i, text, err)
			}
		}
		if n := strings.Count(log.String(), "cannot begin a new file"); n < 5 || n > 20 {
			t.Errorf("keep %d: logged %d times, want once for each 400 bytes", keep, n)
		}
	}
}

func TestAFileThatAKilledServerMovedAsideIsKept(t *testing.T) {
	path := filepath.Join(t.TempDir(), "audit.log")
	if err := os.WriteFile(path+".0", []byte("moved aside"), 0o600); err != nil {
		t.Fatal(err)
	}
	audit, err := OpenAudit(path, AuditOptions{Size: 400, Keep: 2})
	if err != nil {
		t.Fatal(err)
	}
	change(t, audit, 4) // of which two fill a file
	if text, err := os.ReadFile(path + ".2"); err != nil || string(text) != "moved aside" {
		t.Errorf("%q, %v", text, err)
	}
	if got := len(readRecords(t, path)) + len(readRecords(t, path+".1")); got != 4 {
		t.Errorf("%d records, want 4", got)
	}
}

func TestAnAuditLogThatIsNoRegularFileIsNotRenamed(t *testing.T) {
	path := filepath.Join(t.TempDir(), "audit.log")
	if err := os.Symlink(os.DevNull, path); err != nil {
		t.Fatal(err)
	}
	audit, err := OpenAudit(path, AuditOptions{Size: 400})
	if err != nil {
		t.Fatal(err)
	}
	change(t, audit, 40)
	if to, err := os.Readlink(path); err != nil || to != os.DevNull || audit.Lost() != 0 {
		t.Errorf("%q, %v, %d records lost", to, err, audit.Lost())
	}
}

func TestDeniedChangesAreRecordedUpToARateForEachCaller(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		path := filepath.Join(t.TempDir(), "audit.log")
		audit, err := OpenAudit(path, AuditOptions{})
		if err != nil {
			t.Fatal(err)
		}
		gate := &Gate{Audit: audit}
		try := func(ctx context.Context) {
			t.Helper()
			if err := gate.Change(ctx, Change{Action: Manage, What: "load", Model: "m"}, func() error { return nil }); err == nil {
				t.Fatal("the change is not denied")
			}
		}
		for range maxRefusals + 50 {
			try(noGrants("ann"))
		}
		try(noGrants("ben"))
		time.Sleep(time.Second / refusalRate)
		try(noGrants("ann"))
		admin := WithCaller(context.Background(), Self)
		for range 2 * maxRefusals {
			if err := gate.Change(admin, Change{Action: Manage, What: "load", Model: "m"}, func() error { return nil }); err != nil {
				t.Fatal(err)
			}
		}
		if err := audit.Close(); err != nil {
			t.Fatal(err)
		}
		of, omitted := map[string]int{}, map[string]uint64{}
		for _, r := range readRecords(t, path) {
			of[r.Caller]++
			omitted[r.Caller] += r.Omitted
		}
		if of["ann"] != maxRefusals+1 || omitted["ann"] != 50 {
			t.Errorf("%d records of ann and %d omitted, expected %d and 50", of["ann"], omitted["ann"], maxRefusals+1)
		}
		if of["ben"] != 1 || of["server"] != 2*maxRefusals {
			t.Errorf("%d records of ben and %d of the server, expected 1 and %d", of["ben"], of["server"], 2*maxRefusals)
		}
	})
}

func TestCallersBeyondALimitShareOneForTheirDeniedChanges(t *testing.T) {
	var gate Gate
	now := time.Date(2026, 11, 1, 0, 0, 0, 0, time.UTC)
	for i := range maxDenied + 50 {
		gate.denialsOf(now, strconv.Itoa(i)).allow(now)
	}
	if n := len(gate.denials); n != maxDenied+1 {
		t.Errorf("%d limiters, expected %d", n, maxDenied+1)
	}
	if gate.denialsOf(now, "ann") != gate.denialsOf(now, "ben") {
		t.Error("callers beyond the limit have limiters of their own")
	}
	if now = now.Add(time.Second); gate.denialsOf(now, "ann") == gate.denialsOf(now, "ben") {
		t.Error("callers share a limiter although those of others are idle")
	}
}

func TestTextsOfClientsTakeLittleOfTheAuditLog(t *testing.T) {
	path := filepath.Join(t.TempDir(), "audit.log")
	audit, err := OpenAudit(path, AuditOptions{})
	if err != nil {
		t.Fatal(err)
	}
	gate := &Gate{Audit: audit}
	fail := func() error { return errors.New(strings.Repeat("e", 1<<20)) }
	for _, letter := range []string{"a", "\x00", "ü", "<", "\xff", "\u2028", `"`} {
		long := strings.Repeat(letter, 1<<20)
		_ = gate.Change(noGrants("ann"), Change{Action: Manage, What: long, Model: long, Detail: long}, fail)
		_ = gate.Change(WithCaller(context.Background(), Self), Change{Action: Manage, What: long, Model: long, Detail: long}, fail)
		gate.Refused("192.0.2.1:5", long, ErrUnauthenticated)
	}
	if err := audit.Close(); err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(text)) {
		if len(line) > 2200 {
			t.Errorf("a record of %d bytes: %.300s", len(line), line)
		}
	}
	for i, r := range readRecords(t, path) {
		for _, text := range []string{r.What, r.Model, r.Detail} {
			if text != "" && (!strings.HasSuffix(text, "…") || len(text) < 40) {
				t.Errorf("record %d has %q", i, text)
			}
		}
	}
	for _, short := range []string{"", "resnet50", strings.Repeat("a", maxText), strings.Repeat("ü", maxText/2)} {
		if got := cut(short, maxText); got != short {
			t.Errorf("%q is cut to %q", short, got)
		}
	}
}
