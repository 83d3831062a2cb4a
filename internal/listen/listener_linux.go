package listen

import (
	"net"
	"syscall"

	"golang.org/x/sys/unix"
)

// noSYN is a socket filter that drops the packets which open a connection: those with the
// flag SYN, in byte 13 of the TCP header. Clients send them again after a second.
var noSYN = []unix.SockFilter{
	{Code: unix.BPF_LD | unix.BPF_B | unix.BPF_ABS, K: 13},
	{Code: unix.BPF_JMP | unix.BPF_JSET | unix.BPF_K, K: 0x02, Jt: 1},
	{Code: unix.BPF_RET | unix.BPF_K, K: 0xffff},
	{Code: unix.BPF_RET | unix.BPF_K, K: 0},
}

// lossless is whether rejectNew is implemented.
const lossless = true

// limitUnread makes the kernel close a connection whose client takes no data for
// unreadTimeout.
func limitUnread(c net.Conn) {
	tcp, ok := c.(*net.TCPConn)
	if !ok {
		return
	}
	if raw, err := tcp.SyscallConn(); err == nil {
		_ = raw.Control(func(fd uintptr) { // without it, such a connection stays open longer
			_ = unix.SetsockoptInt(int(fd), unix.IPPROTO_TCP, unix.TCP_USER_TIMEOUT, int(unreadTimeout.Milliseconds()))
		})
	}
}

// rejectNew makes the kernel establish no more connections, and reports whether it could.
func rejectNew(l net.Listener) bool {
	tcp, ok := l.(*net.TCPListener)
	if !ok {
		return false
	}
	raw, err := tcp.SyscallConn()
	if err != nil {
		return false
	}
	filter := unix.SockFprog{Len: uint16(len(noSYN)), Filter: &noSYN[0]}
	var failed error
	err = raw.Control(func(fd uintptr) {
		failed = unix.SetsockoptSockFprog(int(fd), syscall.SOL_SOCKET, unix.SO_ATTACH_FILTER, &filter)
	})
	return err == nil && failed == nil
}
