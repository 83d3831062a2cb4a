// Package hunt searches for runs in which the automatic policy learns something wrong and
// does not notice. It draws random runs in virtual time, in which the device is slow or
// stands still for a while, calibration is disturbed and arrives at any moment, and the
// clients change, and compares the throughput with that of a greedy server, which learns
// nothing. Both run the production core on the same device.
//
// A run is determined by its seed. Whoever tunes the policy uses seeds below [FreshSeeds].
package hunt
