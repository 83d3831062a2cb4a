package archtest

import (
	"fmt"
	"slices"
	"strings"
	"testing"
)

// layers lists every package of the module, lowest first. A package imports
// from the layers below its own, and from no other.
var layers = [][]string{
	{
		"tensor",
		"python/src",
		"internal/buf",
		"internal/memfd",
		"internal/tempdir",
		"internal/shm",
		"internal/checkout",
		"internal/script",
		"internal/contexttest",
		"internal/logtest",
		"internal/device",
		"internal/pacer",
		"internal/machine",
		"internal/plainjson",
		"internal/replace",
		"internal/pause",
		"internal/arrivals",
		"internal/plot",
		"internal/suggest",
		"internal/panics",
		"internal/budget",
		"internal/access",
		"internal/trace",
		"internal/identity/identitytest",
		"internal/bucket/hubtest",
		"internal/console",
		"internal/modelconfig/configpb",
	},
	{
		"internal/reference",
		"internal/identity",
		"internal/bucket",
		"internal/http2meter",
		"internal/discovery",
		"internal/http2meter/http2test",
		"internal/tensorjson",
		"internal/infer",
		"internal/trace/otlp",
		"internal/batching",
		"internal/placement",
		"internal/repository/evict",
		"internal/kserve/kservepb",
		"internal/leak",
		"internal/engine/onnx/onnxruntime",
	},
	{
		"internal/modelconfig",
		"internal/stats",
		"internal/cache",
		"internal/explain",
		"internal/engine/onnx/onnxtest",
		"internal/engine/python/pythontest",
	},
	{
		"internal/engine",
		"internal/batching/automatic",
		"internal/catalog",
		"internal/node",
		"client",
	},
	{
		"internal/engine/enginetest",
		"internal/engine/ensemble",
		"internal/engine/simulated",
		"internal/engine/onnx",
		"internal/engine/python",
		"internal/sched",
		"internal/calibrate",
		"internal/kserve",
		"internal/simulate",
		"internal/bench",
		"internal/batching/batchingtest",
		"internal/cell",
	},
	{
		"internal/servable",
		"internal/simulate/cell",
		"internal/cell/control",
		"internal/cell/xds",
	},
	{
		"internal/server",
		"internal/simulate/scenario",
		"internal/simulate/render",
	},
	{
		"internal/repository",
		"internal/mms",
	},
	{
		"internal/kserve/kservehttp",
		"internal/kserve/kservegrpc",
		"internal/kserve/kservelocal",
		"internal/metrics",
		"internal/dashboard",
		"internal/mms/mmshttp",
		"internal/doctor",
		"internal/kserve/kservetest",
	},
	{
		"internal/listen",
	},
	{
		"cmd/shoal",
		"examples/clients/go",
	},
	{
		"internal/archtest",
		"test/bare",
		"test/measure",
	},
	{
		"test/matrix",
		"test/hunt",
	},
	{
		"test/servertest",
		"test/matrix/cmd",
		"test/hunt/cmd",
		"test/mutations",
		"test/compare",
	},
	{
		"test/e2e",
		"test/proofs",
		"test/cost",
	},
}

// forTests lists the packages that only test files import, and each other.
var forTests = []string{
	"internal/checkout",
	"internal/script",
	"internal/reference",
	"internal/bucket/hubtest",
	"internal/identity/identitytest",
	"internal/leak",
	"internal/contexttest",
	"internal/logtest",
	"internal/http2meter/http2test",
	"internal/engine/enginetest",
	"internal/engine/onnx/onnxtest",
	"internal/engine/python/pythontest",
	"internal/batching/batchingtest",
	"internal/kserve/kservetest",
	"internal/archtest",
	"test/e2e",
	"test/proofs",
	"test/cost",
	"test/servertest",
	"test/bare",
	"test/measure",
	"test/matrix",
	"test/matrix/cmd",
	"test/hunt",
	"test/hunt/cmd",
	"test/mutations",
	"test/compare",
}

func layerOf(pkg string) int {
	return slices.IndexFunc(layers, func(l []string) bool { return slices.Contains(l, pkg) })
}

// importsDownwards checks the files that end up in the binary. Tests may import
// from anywhere: they bring the neighbours of a package along.
func importsDownwards(folders []folder) (breaches []string) {
	for _, f := range folders {
		at := layerOf(f.path)
		if at < 0 {
			breaches = append(breaches, fmt.Sprintf("%s is in no layer: give it a place in internal/archtest and in ARCHITECTURE.md.", f.path))
			continue
		}
		for _, dep := range importsOf(f) {
			switch {
			case layerOf(dep) >= at:
				breaches = append(breaches, fmt.Sprintf(
					"%s imports %s, which is not below it: move what both need to a lower layer, or take it as an argument.", f.path, dep))
			case slices.Contains(forTests, dep) && !slices.Contains(forTests, f.path):
				breaches = append(breaches, fmt.Sprintf("%s imports %s, which is for tests: import it from a test file.", f.path, dep))
			}
		}
	}
	return breaches
}

// importsOf returns the packages of this module that the code of f imports.
func importsOf(f folder) []string {
	var deps []string
	for _, file := range f.code() {
		for _, p := range file.importPaths() {
			if dep, ok := strings.CutPrefix(p, module+"/"); ok {
				deps = append(deps, dep)
			}
		}
	}
	slices.Sort(deps)
	return slices.Compact(deps)
}

func TestPackagesImportDownwards(t *testing.T) { keeps(t, importsDownwards) }

func TestPackagesImportDownwardsBites(t *testing.T) {
	const tensor, sched, leak = `"` + module + `/tensor"`, `"` + module + `/internal/sched"`, `"` + module + `/internal/leak"`
	bites(t, importsDownwards, []bite{
		{"down", files{"internal/sched/a.go": "package sched; import " + tensor}, ""},
		{"test file", files{"tensor/a_test.go": "package tensor; import " + sched}, ""},
		{
			"up",
			files{"tensor/a.go": "package tensor; import " + sched, "tensor/b.go": "package tensor; import " + sched},
			"tensor imports internal/sched, which is not below it: move what both need to a lower layer, or take it as an argument.",
		},
		{
			"sideways, on another platform",
			files{"internal/engine/simulated/a.go": "//go:build plan9\n\npackage simulated; import " + sched},
			"internal/engine/simulated imports internal/sched, which is not below it: move what both need to a lower layer, or take it as an argument.",
		},
		{
			"for tests",
			files{"internal/sched/a.go": "package sched; import " + leak},
			"internal/sched imports internal/leak, which is for tests: import it from a test file.",
		},
		{
			"no layer",
			files{"internal/util/a.go": "package util"},
			"internal/util is in no layer: give it a place in internal/archtest and in ARCHITECTURE.md.",
		},
	})
}

// A ban is an import that the layers would allow and the design does not.
type ban struct {
	from, to string // directly, or through other packages
	advice   string // what to do instead
}

var bans = []ban{
	{
		from: "internal/sched", to: "internal/batching/automatic",
		advice: "a scheduler runs any policy: ask for an interface such as batching.Tunable",
	},
	{
		from: "internal/kserve", to: "internal/batching/automatic",
		advice: "a program that only speaks the protocol must not link a policy: put the types that both need into internal/explain or internal/batching",
	},
}

func importsNothingBanned(folders []folder) (breaches []string) {
	imports := map[string][]string{}
	for _, f := range folders {
		imports[f.path] = importsOf(f)
	}
	for _, b := range bans {
		if way := importPath(imports, b.from, b.to); way != nil {
			breaches = append(breaches, fmt.Sprintf("%s, which is banned: %s.", strings.Join(way, " imports "), b.advice))
		}
	}
	return breaches
}

// importPath returns the shortest chain of imports between two packages; nil if there
// is none.
func importPath(imports map[string][]string, from, to string) []string {
	seen := map[string]bool{from: true}
	for ways := [][]string{{from}}; len(ways) > 0; ways = ways[1:] {
		last := ways[0][len(ways[0])-1]
		if last == to {
			return ways[0]
		}
		for _, dep := range imports[last] {
			if !seen[dep] {
				seen[dep] = true
				ways = append(ways, append(slices.Clone(ways[0]), dep))
			}
		}
	}
	return nil
}

func TestNoPackageImportsWhatIsBanned(t *testing.T) { keeps(t, importsNothingBanned) }

func TestNoPackageImportsWhatIsBannedBites(t *testing.T) {
	imports := func(pkg, dep string) string { return "package " + pkg + `; import "` + module + "/" + dep + `"` }
	const automatic = "internal/batching/automatic"
	bites(t, importsNothingBanned, []bite{
		{"others", files{"internal/repository/a.go": imports("repository", automatic)}, ""},
		{"test file", files{"internal/sched/a_test.go": imports("sched", automatic)}, ""},
		{
			"the scheduler",
			files{"internal/sched/a.go": imports("sched", automatic)},
			"internal/sched imports internal/batching/automatic, which is banned: " +
				"a scheduler runs any policy: ask for an interface such as batching.Tunable.",
		},
		{
			"a protocol, through another package",
			files{"internal/kserve/a.go": imports("kserve", "internal/explain"), "internal/explain/a.go": imports("explain", automatic)},
			"internal/kserve imports internal/explain imports internal/batching/automatic, which is banned: " +
				"a program that only speaks the protocol must not link a policy: put the types that both need into internal/explain or internal/batching.",
		},
	})
}

// clientImports lists all that package client imports of this module. Its users link it
// into programs of their own, which need no part of the server.
var clientImports = []string{"tensor", "internal/kserve/kservepb", "internal/pause", "internal/plainjson", "internal/tensorjson"}

func clientNeedsNoServer(folders []folder) (breaches []string) {
	for _, f := range folders {
		if f.path != "client" {
			continue
		}
		for _, dep := range importsOf(f) {
			if !slices.Contains(clientImports, dep) {
				breaches = append(breaches, fmt.Sprintf("client imports %s: programs that use the client must not link the server.", dep))
			}
		}
	}
	return breaches
}

func TestTheClientNeedsNoServer(t *testing.T) { keeps(t, clientNeedsNoServer) }

func TestTheClientNeedsNoServerBites(t *testing.T) {
	imports := func(dep string) string { return `package client; import "` + module + "/" + dep + `"` }
	bites(t, clientNeedsNoServer, []bite{
		{"tensors", files{"client/a.go": imports("tensor")}, ""},
		{"test file", files{"client/a_test.go": imports("internal/server")}, ""},
		{"errors of the server", files{"client/a.go": imports("internal/infer")}, "client imports internal/infer: programs that use the client must not link the server."},
	})
}

func TestEachPackageIsInOneLayer(t *testing.T) {
	all := slices.Sorted(slices.Values(slices.Concat(layers...)))
	for i, pkg := range all[1:] {
		if pkg == all[i] {
			t.Errorf("%s is in the list of layers twice: leave it in one.", pkg)
		}
	}
}
