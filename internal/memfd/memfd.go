// Package memfd provides memory that two processes share. It is anonymous: its descriptor
// is passed over a Unix socket, and no other process can open it. It is sealed against
// shrinking, because a process that reads beyond the end of a mapped file is killed.
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

// CloseAll closes descriptors. It skips those that are -1.
func CloseAll(fds []int) {
	for _, fd := range fds {
		if fd >= 0 {
			_ = closeOne(fd) // it was open
		}
	}
}
