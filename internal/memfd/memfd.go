// Package memfd is memory that two processes share: it has no name that others could
// open, and is passed over a socket by its descriptor. Nobody can make it smaller, which
// would end whoever reads it then.
package memfd

import (
	"errors"
	"net"
)

// Pass sends a message with a descriptor, which it closes.
func Pass(conn *net.UnixConn, message []byte, fd int) error {
	_, _, err := conn.WriteMsgUnix(message, rights(fd), nil)
	return errors.Join(err, closeOne(fd))
}

// CloseAll closes descriptors. One that is -1 is none.
func CloseAll(fds []int) {
	for _, fd := range fds {
		if fd >= 0 {
			_ = closeOne(fd) // it was open
		}
	}
}
