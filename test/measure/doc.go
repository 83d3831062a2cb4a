// Package measure is the one harness behind the figures that Shoal promises.
//
// A figure is a ratio of two sides that were measured in the same run, one right after
// the other, in at least [MinSamples] rounds; [Turn] has each round begin with
// another side. Samples are kept in a file of JSON lines ([Log], [Samples]), so that a run
// that was interrupted continues where it stopped. [Judge] decides by the median. The 95 %
// interval stands beside it and decides nothing: the interval of seven values reaches from
// the smallest to the largest, so that a gate met by the interval is met by the luckiest of
// seven runs.
//
// Misses that are known are listed in known-misses.json, with the figure, its date and
// the reason. A new miss fails; a known one that is met again says so.
//
// measure.py is the same for Python, with the same file of known misses. Both pass the
// cases in testdata/verdicts.json.
package measure
