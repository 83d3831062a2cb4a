// Package suggest finds the name that was probably meant by a misspelt one. It does not
// word the suggestion.
package suggest

import "strings"

// maxLength is the longest name, in bytes, that is compared. Names may come from clients,
// and comparing two takes time proportional to the product of their lengths.
const maxLength = 128

// Nearest returns the candidate that is most similar to name, or "" if none is similar
// enough to be a misspelling: up to a third of its characters, and at most three, are
// missing, added, replaced, or swapped with their neighbour. If no candidate is, it returns
// the only one that begins with name. Case does not matter. Of equally similar candidates
// it returns the first.
func Nearest(name string, candidates []string) string {
	if name == "" || len(name) > maxLength {
		return ""
	}
	name = strings.ToLower(name)
	nearest, best := "", min(3, len(name)/3)+1
	for _, c := range candidates {
		if len(c) > maxLength || max(len(c)-len(name), len(name)-len(c)) >= best {
			continue
		}
		if d := distance(name, strings.ToLower(c)); d < best {
			nearest, best = c, d
		}
	}
	if nearest == "" && len(name) > 2 {
		return onlyWithPrefix(name, candidates)
	}
	return nearest
}

// onlyWithPrefix returns the candidate that begins with prefix, or "" unless there is
// exactly one.
func onlyWithPrefix(prefix string, candidates []string) (only string) {
	for _, c := range candidates {
		switch {
		case !strings.HasPrefix(strings.ToLower(c), prefix):
		case only != "":
			return ""
		default:
			only = c
		}
	}
	return only
}

// distance returns the number of single-byte edits between two texts, where swapping two
// neighbours is one edit.
func distance(a, b string) int {
	// The rows of the table of distances between the prefixes of a and those of b: the one
	// being filled, and the two before it.
	row, last, beforeLast := make([]int, len(b)+1), make([]int, len(b)+1), make([]int, len(b)+1)
	for j := range last {
		last[j] = j
	}
	for i := 1; i <= len(a); i++ {
		row[0] = i
		for j := 1; j <= len(b); j++ {
			replaced := last[j-1]
			if a[i-1] != b[j-1] {
				replaced++
			}
			row[j] = min(replaced, last[j]+1, row[j-1]+1)
			if i > 1 && j > 1 && a[i-1] == b[j-2] && a[i-2] == b[j-1] {
				row[j] = min(row[j], beforeLast[j-2]+1)
			}
		}
		row, last, beforeLast = beforeLast, row, last
	}
	return last[len(b)]
}
