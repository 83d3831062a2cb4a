package archtest

import (
	"fmt"
	"slices"
	"strings"
	"testing"
)

// protocolFree lists the packages between the protocols and the engines. Every protocol
// shares them, so they speak in plain values and errors with reasons, which each protocol
// puts into its own form.
var protocolFree = []string{"internal/sched", "internal/servable", "internal/repository", "internal/server"}

// plainInstead says what to do instead of importing a package or one below it.
var plainInstead = []struct{ path, instead string }{
	{"internal/kserve", "return plain values, such as those of internal/catalog, and errors with a reason, and let kserve word them"},
	{"internal/modelconfig/configpb", "take what is needed from modelconfig.Config"},
}

func middleKnowsNoProtocol(folders []folder) (breaches []string) {
	for _, f := range folders {
		if !slices.Contains(protocolFree, f.path) {
			continue
		}
		for _, dep := range importsOf(f) {
			for _, p := range plainInstead {
				if dep == p.path || strings.HasPrefix(dep, p.path+"/") {
					breaches = append(breaches, fmt.Sprintf("%s imports %s, which is about a protocol: %s.", f.path, dep, p.instead))
				}
			}
		}
	}
	return breaches
}

func TestTheMiddleKnowsNoProtocol(t *testing.T) { keeps(t, middleKnowsNoProtocol) }

func TestTheMiddleKnowsNoProtocolBites(t *testing.T) {
	const kserve, kservepb, configpb, modelconfig = `"` + module + `/internal/kserve"`, `"` + module + `/internal/kserve/kservepb"`,
		`"` + module + `/internal/modelconfig/configpb"`, `"` + module + `/internal/modelconfig"`
	bites(t, middleKnowsNoProtocol, []bite{
		{"plain", files{"internal/server/a.go": "package server; import " + modelconfig}, ""},
		{"a protocol", files{"internal/kserve/kservehttp/a.go": "package kservehttp; import " + kserve}, ""},
		{"test file", files{"internal/server/a_test.go": "package server; import " + kserve}, ""},
		{
			"what protocols share",
			files{"internal/server/a.go": "package server; import " + kserve},
			"internal/server imports internal/kserve, which is about a protocol: return plain values, such as those of internal/catalog, " +
				"and errors with a reason, and let kserve word them.",
		},
		{
			"generated messages",
			files{"internal/sched/a.go": "package sched; import " + kservepb},
			"internal/sched imports internal/kserve/kservepb, which is about a protocol: return plain values, such as those of internal/catalog, " +
				"and errors with a reason, and let kserve word them.",
		},
		{
			"generated configurations",
			files{"internal/servable/a.go": "package servable; import " + configpb},
			"internal/servable imports internal/modelconfig/configpb, which is about a protocol: take what is needed from modelconfig.Config.",
		},
	})
}
