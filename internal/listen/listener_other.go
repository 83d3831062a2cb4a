//go:build !linux

package listen

import "net"

// lossless is whether rejectNew is implemented.
const lossless = false

// rejectNew makes the kernel establish no more connections, and reports whether it could.
func rejectNew(net.Listener) bool { return false }

// limitUnread is only implemented on Linux.
func limitUnread(net.Conn) {}
