package archtest

import (
	"fmt"
	"slices"
	"testing"
)

// hasComment checks that each package begins by saying what it is for.
func hasComment(folders []folder) (breaches []string) {
	for _, f := range folders {
		files := f.code()
		if len(files) == 0 {
			files = f.files
		}
		if !slices.ContainsFunc(files, func(file file) bool { return file.Doc.Text() != "" }) {
			breaches = append(breaches, fmt.Sprintf("%s has no package comment: say in a sentence what it is for, and what it leaves out.", f.path))
		}
	}
	return breaches
}

func TestPackagesHaveComments(t *testing.T) { keeps(t, hasComment) }

func TestPackagesHaveCommentsBites(t *testing.T) {
	bites(t, hasComment, []bite{
		{"in one of its files", files{"a/a.go": "package a", "a/doc.go": "// Package a is first.\npackage a"}, ""},
		{"in a test, of a package that has only tests", files{"a/a_test.go": "// Package a is first.\npackage a"}, ""},
		{
			"only in a test",
			files{"a/a.go": "package a", "a/a_test.go": "// Package a is first.\npackage a"},
			"a has no package comment: say in a sentence what it is for, and what it leaves out.",
		},
		{
			"only a directive",
			files{"a/a.go": "//go:build linux\n\npackage a"},
			"a has no package comment: say in a sentence what it is for, and what it leaves out.",
		},
	})
}
