package kserve

import (
	"hash/maphash"
	"net"
)

var clientSeed = maphash.MakeSeed()

// ClientOf returns what tells a connection from others, by the address at its
// other end. It is never 0.
func ClientOf(addr string) uint64 { return maphash.String(clientSeed, addr) | 1 }

// ClientAt is ClientOf for an address that has not been written down, which would
// cost an allocation for each request.
func ClientAt(addr net.Addr) uint64 {
	tcp, ok := addr.(*net.TCPAddr)
	if !ok {
		return ClientOf(addr.String())
	}
	return (maphash.Bytes(clientSeed, tcp.IP) + uint64(tcp.Port)<<1) | 1
}
