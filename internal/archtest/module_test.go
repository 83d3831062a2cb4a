package archtest

import (
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"maps"
	"os"
	"path"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"testing/fstest"
)

const module = "github.com/shoal-serving/shoal"

// A folder is a package with its tests.
type folder struct {
	path  string // below the module, such as "internal/sched"
	fset  *token.FileSet
	files []file
}

type file struct {
	*ast.File
	test bool
}

// name is what ARCHITECTURE.md calls the package.
func (f folder) name() string { return path.Base(f.path) }

// code returns the files that end up in the binary.
func (f folder) code() []file {
	return slices.DeleteFunc(slices.Clone(f.files), func(file file) bool { return file.test })
}

// at says where a node is, as an editor understands it.
func (f folder) at(n ast.Node) string { return f.fset.Position(n.Pos()).String() }

func (f file) importPaths() []string {
	var paths []string
	for _, spec := range f.Imports {
		p, err := strconv.Unquote(spec.Path.Value)
		if err != nil {
			panic(err) // the parser has accepted it
		}
		paths = append(paths, p)
	}
	return paths
}

// load parses all packages below root, whatever their build tags.
func load(root fs.FS) ([]folder, error) {
	folders := map[string]*folder{}
	err := fs.WalkDir(root, ".", func(name string, entry fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if entry.IsDir() {
			if name != "." && strings.ContainsAny(entry.Name()[:1], "._") || entry.Name() == "testdata" {
				return fs.SkipDir // as the go command does
			}
			if _, err := fs.Stat(root, path.Join(name, "go.mod")); err == nil && name != "." {
				return fs.SkipDir // a module of its own
			}
			return nil
		}
		if path.Ext(name) != ".go" {
			return nil
		}
		src, err := fs.ReadFile(root, name)
		if err != nil {
			return err
		}
		dir := path.Dir(name)
		if folders[dir] == nil {
			folders[dir] = &folder{path: dir, fset: token.NewFileSet()}
		}
		parsed, err := parser.ParseFile(folders[dir].fset, name, src, parser.ParseComments|parser.SkipObjectResolution)
		if err != nil {
			return err
		}
		folders[dir].files = append(folders[dir].files, file{parsed, strings.HasSuffix(name, "_test.go")})
		return nil
	})
	if err != nil {
		return nil, err
	}
	var all []folder
	for _, dir := range slices.Sorted(maps.Keys(folders)) {
		all = append(all, *folders[dir])
	}
	return all, nil
}

// A rule returns its breaches, each as a sentence that says what to do.
type rule func([]folder) []string

// keeps fails for each breach of the rule in this module.
func keeps(t *testing.T, r rule) {
	t.Helper()
	module, err := thisModule()
	if err != nil {
		t.Fatal(err)
	}
	for _, breach := range r(module) {
		t.Error(breach)
	}
}

// thisModule returns this module, which is parsed once for all rules. Rules do not change it.
var thisModule = sync.OnceValues(func() ([]folder, error) { return load(os.DirFS("../..")) })

// files is a small module: from the name of each file to its source.
type files map[string]string

// A bite is a module and the breaches that a rule finds in it. It shows that
// the rule has teeth.
type bite struct {
	name    string
	sources files
	want    string // one to a line; empty if there are none
}

func bites(t *testing.T, r rule, cases []bite) {
	t.Helper()
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			root := fstest.MapFS{}
			for name, src := range c.sources {
				root[name] = &fstest.MapFile{Data: []byte(src)}
			}
			module, err := load(root)
			if err != nil {
				t.Fatal(err)
			}
			if got := strings.Join(r(module), "\n"); got != c.want {
				t.Errorf("got\n%s\nwant\n%s", got, c.want)
			}
		})
	}
}
