package archtest

import (
	"errors"
	"fmt"
	"go/ast"
	"go/token"
	"io/fs"
	"maps"
	"os"
	"path"
	"regexp"
	"slices"
	"strings"
	"testing"
	"testing/fstest"
)

// retiredNames are names that a reader had to learn before the code could be read, by the
// package that had them. None may come back, unless keptNames has a reason.
var retiredNames = map[string]string{
	"internal/sched":              "crew mourn comeBack letGo together attempt again way watch vote Another trial Try Warm Spare offenders strike",
	"internal/batching":           "Do Kind Way Apart hopeless inTime side dated",
	"internal/batching/automatic": "most keep own sure still worth recent again seldom better apart enough",
	"internal/repository":         "wish manner stamp found look bring findOut apart",
	"internal/engine":             "Each Mortal Judge Careful Caller",
	"internal/engine/python":      "desk errand line parcel pulse comeback glance goodbye",
	"internal/engine/onnx":        "crowd lone usual",
	"internal/mms":                "nobody vacant usual told",
	"internal/server":             "inside fresh tell strays finish",
	"cmd/shoal":                   "life live leave faces callers",
}

// keptNames are retired names that a package still has, and why.
var keptNames = map[string]string{
	"internal/batching.Kind":             "a field: the EventKind of an event, or the ActionKind of an action",
	"internal/engine.Caller":             "access.Caller, the caller that a batch is run for",
	"internal/batching/automatic.recent": "the shapes of recent requests, not a number of batches",
	"internal/engine/python.line":        "a line of text",
	"cmd/shoal.live":                     "the value of --live, which has the name of the endpoint",
}

// namesAreRetired checks that no production code of a package uses a retired name.
func namesAreRetired(folders []folder) (breaches []string) {
	for _, f := range folders {
		retired := strings.Fields(retiredNames[f.path])
		seen := map[string]bool{}
		for _, file := range f.code() {
			ast.Inspect(file.File, func(n ast.Node) bool {
				id, ok := n.(*ast.Ident)
				if !ok || seen[id.Name] || !slices.Contains(retired, id.Name) {
					return true
				}
				seen[id.Name] = true
				if keptNames[f.path+"."+id.Name] == "" {
					breaches = append(breaches, fmt.Sprintf("%s: %s is a retired name: name the thing by what it is, or give a reason in keptNames.", f.at(id), id.Name))
				}
				return true
			})
		}
	}
	return breaches
}

func TestRetiredNamesAreGone(t *testing.T) { keeps(t, namesAreRetired) }

func TestRetiredNamesAreGoneBites(t *testing.T) {
	bites(t, namesAreRetired, []bite{
		{"of another package", files{"internal/server/a.go": "package server\n\nvar crew int"}, ""},
		{"in a test", files{"internal/sched/a_test.go": "package sched\n\nvar crew int"}, ""},
		{"in a comment", files{"internal/sched/a.go": "package sched // mourn\n"}, ""},
		{"kept for a reason", files{"internal/batching/a.go": "package batching\n\nvar Kind int"}, ""},
		{
			"reported once",
			files{"internal/sched/a.go": "package sched\n\nfunc mourn() { mourn() }\n\nvar crew int"},
			"internal/sched/a.go:3:6: mourn is a retired name: name the thing by what it is, or give a reason in keptNames.\n" +
				"internal/sched/a.go:5:5: crew is a retired name: name the thing by what it is, or give a reason in keptNames.",
		},
	})
}

func TestKeptNamesAreRetiredNames(t *testing.T) {
	for kept := range keptNames {
		dot := strings.LastIndex(kept, ".")
		if !slices.Contains(strings.Fields(retiredNames[kept[:dot]]), kept[dot+1:]) {
			t.Errorf("%s is kept, but was never retired: remove it from keptNames", kept)
		}
	}
}

// retiredPhrases are phrases that make readers look twice, and what to write instead.
var retiredPhrases = []struct{ phrase, instead string }{
	{`faces?`, "frontend, endpoint"},
	{`inside`, "in flight"},
	{`told|tells?`, "reports, returns"},
	{`(found|finds?) out`, "measured"},
	{`mend(s|ed|ing)?`, "fix"},
	{`shall`, "must, should, will"},
	{`so (many|long)`, "n, the given number"},
	{`19 of 20`, "p95"},
	{`way of (a|the|its) (request|answer)`, "transport overhead"},
	{`company|alone|lone`, "single, exclusive, without other requests"},
	{`by hand`, "configured explicitly"},
	{`sees? each other`, "are not independent"},
	{`in the way of`, "compatible with"},
	{`from (now|then|there|here|\w+ \w+) on`, "since, starting at"},
	{`nobody|whoever|who`, "the client, the caller, the user"},
	{`(is|are|was|were) (not )?there`, "exists, is present, is missing"},
	{`(that|what|which) (is|are) none`, "invalid"},
}

// maxRetiredPhrases is how many lines may have one. Some are right: a label of a metric, a
// sentence that Triton's clients know, or an ordinary use of the word.
const maxRetiredPhrases = 29

// pythonFolders have the Python code that ships.
var pythonFolders = []string{"internal/engine/python/worker", "python/src"}

// phrasesAreRare checks that at most limit lines of comments and strings have a retired
// phrase: in Go code that is not for tests, and in the Python code below root that ships.
func phrasesAreRare(root fs.FS, limit int) rule {
	var all []string
	for _, p := range retiredPhrases {
		all = append(all, p.phrase)
	}
	pattern := regexp.MustCompile(`(?i)\b(` + strings.Join(all, "|") + `)\b`)
	return func(folders []folder) (breaches []string) {
		for _, l := range append(goText(folders), pythonText(root)...) {
			// The name of a company is no phrase.
			if phrase := pattern.FindString(strings.ReplaceAll(l.text, "Hugging Face", "")); phrase != "" {
				breaches = append(breaches, fmt.Sprintf("%s:%d: %q: write %s.", l.file, l.number, phrase, instead(phrase)))
			}
		}
		if len(breaches) <= limit {
			return nil
		}
		return breaches
	}
}

func instead(phrase string) string {
	for _, p := range retiredPhrases {
		if regexp.MustCompile(`(?i)^(` + p.phrase + `)$`).MatchString(phrase) {
			return p.instead
		}
	}
	return ""
}

// A line is what people read of a line of code.
type line struct {
	file   string
	number int
	text   string
}

// goText returns the comments and strings of the code that is not for tests, line by line.
func goText(folders []folder) (lines []line) {
	for _, f := range folders {
		if slices.Contains(forTests, f.path) {
			continue
		}
		for _, file := range f.code() {
			if ast.IsGenerated(file.File) {
				continue
			}
			text := map[int]string{}
			add := func(n ast.Node, s string) {
				first := f.fset.Position(n.Pos()).Line
				for i, part := range strings.Split(s, "\n") {
					text[first+i] += " " + part
				}
			}
			for _, group := range file.Comments {
				for _, c := range group.List {
					add(c, c.Text)
				}
			}
			ast.Inspect(file.File, func(n ast.Node) bool {
				if s, ok := n.(*ast.BasicLit); ok && s.Kind == token.STRING {
					add(s, s.Value)
				}
				return true
			})
			name := f.fset.Position(file.Pos()).Filename
			for _, number := range slices.Sorted(maps.Keys(text)) {
				lines = append(lines, line{name, number, text[number]})
			}
		}
	}
	return lines
}

// pythonText returns all lines of the Python code that ships: most of what could be
// mistaken for a phrase in it is in comments and strings.
func pythonText(root fs.FS) (lines []line) {
	for _, dir := range pythonFolders {
		_ = fs.WalkDir(root, dir, func(name string, entry fs.DirEntry, err error) error {
			if errors.Is(err, fs.ErrNotExist) {
				return nil // the small modules of the tests have no Python
			}
			if err != nil || entry.IsDir() || path.Ext(name) != ".py" {
				return err
			}
			text, err := fs.ReadFile(root, name)
			if err != nil {
				return err
			}
			for i, l := range strings.Split(string(text), "\n") {
				lines = append(lines, line{name, i + 1, l})
			}
			return nil
		})
	}
	return lines
}

func TestRetiredPhrasesAreRare(t *testing.T) {
	keeps(t, phrasesAreRare(os.DirFS("../.."), maxRetiredPhrases))
}

func TestRetiredPhrasesAreRareBites(t *testing.T) {
	python := fstest.MapFS{
		"python/src/a.py":      {Data: []byte("# Whoever calls it.\n# The caller calls it.\n")},
		"python/tests/test.py": {Data: []byte("# Nobody calls it.\n")},
	}
	const inPython = "python/src/a.py:1: \"Whoever\": write the client, the caller, the user."
	sources := files{
		"internal/sched/a.go": "package sched // is told\n\n/* It shall\nrun by hand. */\nvar alone = \"the queue is there\" // so many\n",
	}
	const inGo = `internal/sched/a.go:1: "told": write reports, returns.
internal/sched/a.go:3: "shall": write must, should, will.
internal/sched/a.go:4: "by hand": write configured explicitly.
internal/sched/a.go:5: "so many": write n, the given number.
`
	bites(t, phrasesAreRare(python, 4), []bite{{"as many as may", files{"internal/sched/a.go": "package sched // is told\n"}, ""}})
	bites(t, phrasesAreRare(python, 4), []bite{
		{"more than may", sources, inGo + inPython},
		{"in tests, packages for tests and generated code", files{
			"internal/sched/a_test.go": sources["internal/sched/a.go"],
			"test/matrix/a.go":         strings.Replace(sources["internal/sched/a.go"], "sched", "matrix", 1),
			"internal/sched/a.pb.go":   "// Code generated by hand. DO NOT EDIT.\n\n" + sources["internal/sched/a.go"],
		}, ""},
	})
}
