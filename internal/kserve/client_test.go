package kserve

import (
	"net"
	"testing"
)

func TestConnectionsAreToldApart(t *testing.T) {
	address := func(s string) net.Addr {
		a, err := net.ResolveTCPAddr("tcp", s)
		if err != nil {
			t.Fatal(err)
		}
		return a
	}
	if ClientID("10.0.0.1:5000") == ClientID("10.0.0.1:5001") || ClientIDOfAddr(address("10.0.0.1:5000")) == ClientIDOfAddr(address("10.0.0.1:5001")) {
		t.Error("two ports are one client")
	}
	if ClientIDOfAddr(address("10.0.0.1:5000")) == ClientIDOfAddr(address("10.0.0.2:5000")) {
		t.Error("two hosts are one client")
	}
	one, again := ClientIDOfAddr(address("10.0.0.1:5000")), ClientIDOfAddr(address("10.0.0.1:5000"))
	if one != again {
		t.Error("a client is two")
	}
}
