package main

import (
	"slices"
	"strings"
)

// closest returns the candidate that word is most likely a misspelling of, or "" if there
// is none: one that differs in few letters, or that has word as a part.
func closest(word string, candidates []string) string {
	word = strings.ToLower(word)
	best, least := "", max(1, len(word)/3)+1
	for _, c := range slices.Sorted(slices.Values(candidates)) {
		if d := distance(word, strings.ToLower(c)); d < least {
			best, least = c, d
		}
	}
	if best != "" || len(word) < 3 {
		return best
	}
	for _, c := range slices.Sorted(slices.Values(candidates)) {
		if slices.Contains(strings.Split(strings.ToLower(c), "-"), word) {
			return c
		}
	}
	return ""
}

// distance returns the number of letters that must be added, removed, changed or exchanged
// with their neighbor to make b of a.
func distance(a, b string) int {
	var before, last, next []int // rows of the table: before last, last, and the one to fill
	last = make([]int, len(b)+1)
	for j := range last {
		last[j] = j
	}
	for i := range len(a) {
		next = make([]int, len(b)+1)
		next[0] = i + 1
		for j := range len(b) {
			cost := 1
			if a[i] == b[j] {
				cost = 0
			}
			next[j+1] = min(last[j+1]+1, next[j]+1, last[j]+cost)
			if i > 0 && j > 0 && a[i] == b[j-1] && a[i-1] == b[j] {
				next[j+1] = min(next[j+1], before[j-1]+1)
			}
		}
		before, last = last, next
	}
	return last[len(b)]
}
