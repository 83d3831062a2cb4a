package servable

import "github.com/shoal-serving/shoal/internal/calibrate"

// A Resume is what is known of a version when it is closed: the results of its checks, how it
// was tuned, and its counters. A version that is opened with it again makes no check and no
// measurement twice.
type Resume struct {
	fingerprint uint64
	params      tuning
}

// Resume returns what is known of the version.
func (v *Version) Resume() *Resume {
	p := v.params
	p.checked, p.combineUnsafeReason, p.padding, p.padUnsafeReason = true, v.Config.CombineUnsafeReason, v.Config.Padding, v.padUnsafeReason
	p.inputs, p.calibration, p.stats, p.key = v.inputs, v.calibration.Load(), v.Stats, v.calibrationKey()
	return &Resume{v.Source.Fingerprint, p}
}

// calibrationKey returns the key of the version's calibration results; nil if it is not known
// yet.
func (v *Version) calibrationKey() *calibrate.Key {
	v.mu.Lock()
	defer v.mu.Unlock()
	return v.key
}
