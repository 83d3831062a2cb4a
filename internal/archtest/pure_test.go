package archtest

import (
	"fmt"
	"go/ast"
	"go/token"
	"slices"
	"strings"
	"testing"
)

// pure lists the packages that decide and do not act. They take the time as an
// argument and start nothing, so that the server, the simulator, the fuzzer and
// the scripts get the same answer from them.
var pure = []string{
	"tensor", "internal/infer", "internal/device", "internal/plainjson", "internal/tensorjson", "internal/batching", "internal/batching/automatic", "internal/placement", "internal/repository/evict", "internal/modelconfig", "internal/simulate", "internal/simulate/scenario", "internal/simulate/render", "internal/simulate/cell", "internal/cell",
}

// noChannels lists those of them that are state machines, where even a channel
// would hide an order of events. The others may carry one in a type.
var noChannels = []string{"internal/device", "internal/batching", "internal/batching/automatic", "internal/placement", "internal/repository/evict", "internal/cell"}

// impure says what to do instead of importing a package.
var impure = map[string]string{
	"sync":        "it has one caller at a time; leave locking to the caller",
	"sync/atomic": "it has one caller at a time; use a plain variable",
	"crypto/rand": "take a source of chance as an argument, so that a run can be repeated",
}

var clocks = []string{"Now", "Since", "Until", "After", "AfterFunc", "Sleep", "NewTimer", "NewTicker", "Tick"}

// seeded lists what math/rand/v2 offers besides the functions that draw from
// its own, unrepeatable source.
var seeded = []string{"New", "NewPCG", "NewChaCha8", "NewZipf", "Rand", "Source", "PCG", "ChaCha8", "Zipf"}

func decidesOnly(folders []folder) (breaches []string) {
	for _, f := range folders {
		if !slices.Contains(pure, f.path) {
			continue
		}
		for _, file := range f.code() {
			ast.Inspect(file.File, func(n ast.Node) bool {
				if instead := actsBy(n, slices.Contains(noChannels, f.path)); instead != "" {
					breaches = append(breaches, fmt.Sprintf("%s: %s only decides: %s.", f.at(n), f.path, instead))
				}
				return true
			})
		}
	}
	return breaches
}

// actsBy says what to do instead of n, or nothing if n is harmless. It goes by
// the names of packages, which is exact because no import has an alias.
func actsBy(n ast.Node, noChannels bool) string {
	switch n := n.(type) {
	case *ast.GoStmt:
		return "let the caller start goroutines"
	case *ast.ImportSpec:
		return impure[strings.Trim(n.Path.Value, `"`)]
	case *ast.SelectorExpr:
		switch of, _ := n.X.(*ast.Ident); {
		case of == nil:
		case of.Name == "time" && slices.Contains(clocks, n.Sel.Name):
			return "take the time as an argument instead of calling time." + n.Sel.Name
		case of.Name == "rand" && !slices.Contains(seeded, n.Sel.Name):
			return "draw from a source that the caller seeded instead of rand." + n.Sel.Name
		}
	case *ast.ChanType, *ast.SendStmt, *ast.SelectStmt:
		if noChannels {
			return "return what happened instead of sending it"
		}
	case *ast.UnaryExpr:
		if noChannels && n.Op == token.ARROW {
			return "take what happened as an argument instead of receiving it"
		}
	}
	return ""
}

func TestPurePackagesOnlyDecide(t *testing.T) { keeps(t, decidesOnly) }

func TestPurePackagesOnlyDecideBites(t *testing.T) {
	in := func(pkg, body string) files {
		return files{"internal/" + pkg + "/a.go": "package " + pkg + "\n" + body}
	}
	bites(t, decidesOnly, []bite{
		{"harmless", in("batching", `import "time"; var d = time.Second; var r = rand.New(rand.NewPCG(1, 2))`), ""},
		{"not pure", in("sched", "func a() { go a() }"), ""},
		{"test file", files{"internal/batching/a_test.go": `package batching; import "sync"`}, ""},
		{
			"goroutine", in("batching", "func a() { go a() }"),
			"internal/batching/a.go:2:12: internal/batching only decides: let the caller start goroutines.",
		},
		{
			"clock", in("simulate", "var now = time.Now"),
			"internal/simulate/a.go:2:11: internal/simulate only decides: take the time as an argument instead of calling time.Now.",
		},
		{
			"timer", in("infer", "var t = time.AfterFunc(0, nil)"),
			"internal/infer/a.go:2:9: internal/infer only decides: take the time as an argument instead of calling time.AfterFunc.",
		},
		{
			"lock", in("modelconfig", `import "sync"`),
			"internal/modelconfig/a.go:2:8: internal/modelconfig only decides: it has one caller at a time; leave locking to the caller.",
		},
		{
			"chance", in("simulate", "var n = rand.IntN(6)"),
			"internal/simulate/a.go:2:9: internal/simulate only decides: draw from a source that the caller seeded instead of rand.IntN.",
		},
		{
			"send", in("device", "var c chan int"),
			"internal/device/a.go:2:7: internal/device only decides: return what happened instead of sending it.",
		},
		{
			"receive", in("device", "func a() { <-c }"),
			"internal/device/a.go:2:12: internal/device only decides: take what happened as an argument instead of receiving it.",
		},
		{"a channel in a type", in("infer", "type Response struct { done chan int }"), ""},
	})
}
