package kserve

import (
	"hash/maphash"
	"net"
)

var clientSeed = maphash.MakeSeed()

// ClientID returns a number that identifies a connection by its remote address. It is
// never 0.
func ClientID(addr string) uint64 { return maphash.String(clientSeed, addr) | 1 }

// ClientIDOfAddr is ClientID for a net.Addr. It avoids formatting the address, which would
// allocate for each request.
func ClientIDOfAddr(addr net.Addr) uint64 {
	tcp, ok := addr.(*net.TCPAddr)
	if !ok {
		return ClientID(addr.String())
	}
	return (maphash.Bytes(clientSeed, tcp.IP) + uint64(tcp.Port)<<1) | 1
}
