package repository

import (
	"slices"

	"github.com/shoal-serving/shoal/internal/modelconfig"
)

// choose returns the versions that a policy names, of those that there are.
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

// A look is what a poll knows of a model between one time and the next.
type look struct {
	tried stamp // of what was loaded last, or could not be
	seen  stamp // of what was there last time
	gone  bool  // it was not there last time
}

// What a poll does about a model.
type verdict uint8

const (
	leave  verdict = iota // nothing has changed
	settle                // something has, and may be changing still
	reload                // something has, and stays as it is
	unload                // the model has gone
)

// judge decides about a model that a poll has seen before, with the stamp that
// it has now. A change is acted on when it is the same twice in a row: before
// that, files may still be on their way.
func (l *look) judge(there bool, now stamp) verdict {
	gone, seen := l.gone, l.seen
	l.gone, l.seen = !there, now
	switch {
	case !there && gone:
		return unload
	case !there:
		return settle
	case now == l.tried:
		return leave
	case gone || now != seen:
		return settle
	}
	l.tried = now
	return reload
}
