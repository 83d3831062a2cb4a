package calibrate

import (
	"bytes"
	"cmp"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/shoal-serving/shoal/internal/batching"
)

var (
	someKey   = Key{Model: "abc", Engine: "e 1", CPU: "fast", Cores: 2, Threads: 1}
	someFound = Findings{
		Profile:    batching.Profile{Sizes: []batching.Timing{{Rows: 1, Median: 3, P95: 4, Runs: 5}}, Slowdown: []float64{1, 1.5}},
		StopReason: "memory ran out",
	}
)

func TestFindingsAreKept(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "not", "there", "yet")
	var log bytes.Buffer
	NewStore(dir, slog.New(slog.NewTextHandler(&log, nil))).Put(someKey, someFound)
	got, ok := NewStore(dir, nil).Get(someKey)
	if !ok || !reflect.DeepEqual(got, someFound) || log.Len() > 0 {
		t.Fatalf("%+v, %t; log %q", got, ok, &log)
	}
	for _, other := range []Key{
		{"abd", "e 1", "fast", 2, 1, ""},
		{"abc", "e 2", "fast", 2, 1, ""},
		{"abc", "e 1", "slow", 2, 1, ""},
		{"abc", "e 1", "fast", 4, 1, ""},
		{"abc", "e 1", "fast", 2, 2, ""},
		{"abc", "e 1", "fast", 2, 1, "x[4]"},
	} {
		if got, ok := NewStore(dir, nil).Get(other); ok {
			t.Errorf("%+v: found %+v, which is of another", other, got)
		}
	}
	files, err := os.ReadDir(dir)
	if err != nil || len(files) != 1 {
		t.Errorf("files %v, %v; want one", files, err)
	}
}

func TestFilesThatKnowNothingOfShapesAreRead(t *testing.T) {
	const name = "73e5df6988f5de9118e9e793c2512634.json"
	const text = `{"Format":2,"Key":{"Model":"abc","Engine":"e 1","CPU":"fast","Cores":2,"Threads":1},"Found":{"Profile":{"Sizes":[{"Rows":1,"Took":3,"Slow":4,"Runs":5}]}}}`
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	if got, ok := NewStore(dir, nil).Get(someKey); !ok || len(got.Profile.Sizes) != 1 {
		t.Errorf("%+v, %t", got, ok)
	}
}

func TestAFileThatMakesNoSenseIsIgnoredAndReplaced(t *testing.T) {
	s := NewStore(t.TempDir(), nil)
	s.Put(someKey, someFound)
	good, err := os.ReadFile(s.file(someKey))
	if err != nil {
		t.Fatal(err)
	}
	for _, text := range []string{
		"", "{", string(good[:len(good)/2]), `{"Format":2}`,
		strings.Replace(string(good), `"Format": 2`, `"Format": 1`, 1),
		strings.Replace(string(good), `"CPU": "fast"`, `"CPU": "slow"`, 1),
		strings.Replace(string(good), `"Took": 3`, `"Took": -3`, 1),
		strings.Replace(string(good), "1.5", "0.5", 1),
	} {
		if err := os.WriteFile(s.file(someKey), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		if got, ok := NewStore(s.dir, nil).Get(someKey); ok {
			t.Errorf("%q was read as %+v", text, got)
		}
	}
	s.Put(someKey, someFound)
	if _, ok := NewStore(s.dir, nil).Get(someKey); !ok {
		t.Error("it was not written again")
	}
}

// TestTheDirectoryOfAnotherReleaseIsNeitherReadNorRemoved has files of an older and of a newer
// format, under the names that these releases give them and under the names of this one.
func TestTheDirectoryOfAnotherReleaseIsNeitherReadNorRemoved(t *testing.T) {
	for _, format := range []int{0, formatVersion - 1, formatVersion + 1} {
		s := NewStore(t.TempDir(), nil)
		text := fmt.Appendf(nil, `{"Format":%d,"Key":{"Model":"abc","Engine":"e 1","CPU":"fast","Cores":2,"Threads":1},`+
			`"Found":{"Profile":{"Sizes":[{"Rows":1,"Took":3,"Slow":4,"Runs":5}]}},"More":{"of":"a later release"}}`, format)
		theirs := filepath.Join(s.dir, fmt.Sprintf("%032x.json", format))
		for _, file := range []string{theirs, s.file(someKey)} {
			if err := os.WriteFile(file, text, 0o600); err != nil {
				t.Fatal(err)
			}
		}
		if got, ok := s.Get(someKey); ok {
			t.Errorf("a file of format %d was read as %+v", format, got)
		}
		s.Put(someKey, someFound)
		if got, ok := NewStore(s.dir, nil).Get(someKey); !ok || !reflect.DeepEqual(got, someFound) {
			t.Errorf("beside format %d: %+v, %t", format, got, ok)
		}
		if left, err := os.ReadFile(theirs); err != nil || !bytes.Equal(left, text) {
			t.Errorf("the file of format %d was changed to %q, %v", format, left, err)
		}
	}
}

// format describes how a type is stored, down to the names and the kinds of fields.
func format(t reflect.Type) string {
	switch t.Kind() {
	case reflect.Struct:
		var fields []string
		for f := range t.Fields() {
			if name, _, _ := strings.Cut(f.Tag.Get("json"), ","); name != "-" {
				fields = append(fields, cmp.Or(name, f.Name)+" "+format(f.Type))
			}
		}
		return "{" + strings.Join(fields, "; ") + "}"
	case reflect.Slice:
		return "[]" + format(t.Elem())
	case reflect.Map:
		return "map[" + format(t.Key()) + "]" + format(t.Elem())
	case reflect.Pointer:
		return "*" + format(t.Elem())
	}
	return t.Kind().String()
}

// TestTheFormatOfFilesChangesOnlyWithItsVersion fails when a field is added, renamed or given
// another type. Older files would then be read as something else than what was measured: raise
// formatVersion, and write the new format here.
func TestTheFormatOfFilesChangesOnlyWithItsVersion(t *testing.T) {
	const version, want = 2, `{Format int; Key {Model string; Engine string; CPU string; Cores int; Threads int; Shape string}; ` +
		`Found {Profile {Sizes []{Rows int; Took int64; Slow int64; Runs int}; Slowdown []float64}; Ended string; Disturbed bool}}`
	if got := format(reflect.TypeFor[record]()); formatVersion != version || got != want {
		t.Errorf("format %d is\n%s\nwant format %d:\n%s", formatVersion, got, version, want)
	}
}

func TestADirectoryThatCannotBeWrittenIsSaidOnce(t *testing.T) {
	file := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	readOnly := filepath.Join(t.TempDir(), "dir")
	if err := os.Mkdir(readOnly, 0o500); err != nil {
		t.Fatal(err)
	}
	dirs := []string{file}
	if os.Getuid() != 0 { // root may write everywhere
		dirs = append(dirs, readOnly)
	}
	for _, dir := range dirs {
		var log bytes.Buffer
		s := NewStore(dir, slog.New(slog.NewTextHandler(&log, nil)))
		for range 3 {
			s.Put(someKey, someFound)
		}
		if _, ok := s.Get(someKey); !ok || strings.Count(log.String(), "level=WARN") != 1 {
			t.Errorf("known for now: %t; log %q", ok, &log)
		}
	}
}

func TestWithoutADirectoryFindingsAreKnownForNow(t *testing.T) {
	s := NewStore("", nil)
	if _, ok := s.Get(someKey); ok {
		t.Error("found something")
	}
	s.Put(someKey, someFound)
	if _, ok := s.Get(someKey); !ok {
		t.Error("found nothing")
	}
}

func TestAHashIsOfWhatLinksLeadTo(t *testing.T) {
	dir := t.TempDir()
	hashes := map[string]string{}
	for _, name := range []string{"a", "b"} {
		volume := filepath.Join(dir, "volume", name)
		if err := os.MkdirAll(volume, 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(volume, "model.onnx"), []byte(name), 0o600); err != nil {
			t.Fatal(err)
		}
		if err := os.Symlink(".", filepath.Join(volume, "circle")); err != nil {
			t.Fatal(err)
		}
		link := filepath.Join(dir, name)
		if err := os.Symlink(volume, link); err != nil {
			t.Fatal(err)
		}
		h, err := Hash(t.Context(), link, nil)
		if err != nil {
			t.Fatal(err)
		}
		if direct, err := Hash(t.Context(), volume, nil); err != nil || direct != h {
			t.Errorf("%s through a link, and %s, %v without", h, direct, err)
		}
		hashes[h] = name
	}
	if len(hashes) != 2 {
		t.Error("two models whose directories are links have the same hash")
	}
}

func TestALinkThatLeadsNowhereDoesNotChangeAHash(t *testing.T) {
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "model.onnx"), []byte("a"), 0o600); err != nil {
		t.Fatal(err)
	}
	want, err := Hash(t.Context(), dir, nil)
	if err != nil {
		t.Fatal(err)
	}
	link := filepath.Join(dir, "link")
	if err := os.Symlink("nothing", link); err != nil {
		t.Fatal(err)
	}
	if h, err := Hash(t.Context(), dir, nil); err != nil || h != want {
		t.Errorf("%s, %v, want %s", h, err, want)
	}
	if h, err := Hash(t.Context(), link, nil); err == nil {
		t.Errorf("a model that is such a link has the hash %s", h)
	}
}

func TestAHashChangesWithFilesAndSettings(t *testing.T) {
	dir := t.TempDir()
	hash := func(path, settings string) string {
		t.Helper()
		h, err := Hash(t.Context(), path, []byte(settings))
		if err != nil {
			t.Fatal(err)
		}
		return h
	}
	write := func(name, text string) {
		t.Helper()
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write("a", "1")
	first := hash(dir, "s")
	if again := hash(dir, "s"); again != first {
		t.Errorf("%s, and then %s", first, again)
	}
	if other := hash(dir, "t"); other == first {
		t.Error("other settings have the same hash")
	}
	one := hash(filepath.Join(dir, "a"), "s")
	write("b", "2")
	if other := hash(dir, "s"); other == first {
		t.Error("another file has the same hash")
	}
	if again := hash(filepath.Join(dir, "a"), "s"); again != one {
		t.Error("a file's hash changed with its neighbour")
	}
	if _, err := Hash(t.Context(), filepath.Join(dir, "none"), nil); err == nil {
		t.Error("a file that is not there has a hash")
	}
}

func TestAFootprintIsKeptForItsFiles(t *testing.T) {
	dir := t.TempDir()
	quiet := slog.New(slog.DiscardHandler)
	f := Footprint{Bytes: 1000, Load: time.Second}
	s := NewStore(dir, quiet)
	s.PutFootprint("a 1", f)
	if got, ok := NewStore(dir, quiet).Footprint("a 1"); !ok || got != f {
		t.Errorf("the next start finds %+v, %t", got, ok)
	}
	if got, ok := NewStore(dir, quiet).Footprint("a 2"); ok {
		t.Errorf("other files have %+v", got)
	}
	s.PutFootprint("a 1", Footprint{Bytes: 1050, Load: time.Second})
	if got, _ := NewStore(dir, quiet).Footprint("a 1"); got != f {
		t.Errorf("a difference of a twentieth was written: %+v", got)
	}
	little := Footprint{Bytes: 1120, Load: time.Second}
	s.PutFootprint("a 1", little)
	if got, _ := NewStore(dir, quiet).Footprint("a 1"); got != little {
		t.Errorf("two differences of a twentieth were not written: %+v", got)
	}
	more := Footprint{Bytes: 2000, Load: time.Second}
	s.PutFootprint("a 1", more)
	if got, _ := NewStore(dir, quiet).Footprint("a 1"); got != more {
		t.Errorf("a large difference was not written: %+v", got)
	}
}
