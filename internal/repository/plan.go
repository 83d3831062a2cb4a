package repository

import (
	"slices"

	"github.com/shoal-serving/shoal/internal/modelconfig"
)

// choose returns the existing versions that a policy selects.
func choose(all []int64, policy modelconfig.VersionPolicy) []int64 {
	slices.Sort(all)
	switch {
	case policy.All:
		return all
	case len(policy.Specific) > 0:
		return slices.DeleteFunc(all, func(n int64) bool { return !slices.Contains(policy.Specific, n) })
	}
	return all[max(0, len(all)-policy.Latest):]
}

// A pollState is what the poll remembers of a model between two checks.
type pollState struct {
	tried fingerprint // of the files that were loaded last, or failed to load
	seen  fingerprint // of the files at the last check
	gone  bool        // the model was missing at the last check
}

// A verdict is what the poll does with a model.
type verdict uint8

const (
	leave  verdict = iota // unchanged: do nothing
	settle                // changed since the last check: wait until it is stable
	reload                // changed, and stable
	unload                // missing twice in a row
)

// judge decides about a model, given whether it exists and the current fingerprint of its
// files. It acts on a change that is the same in two checks in a row: before that, files
// may still be written.
func (p *pollState) judge(exists bool, now fingerprint) verdict {
	gone, seen := p.gone, p.seen
	p.gone, p.seen = !exists, now
	switch {
	case !exists && gone:
		return unload
	case !exists:
		return settle
	case now == p.tried:
		return leave
	case gone || now != seen:
		return settle
	}
	p.tried = now
	return reload
}
