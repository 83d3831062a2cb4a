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
	if ClientOf("10.0.0.1:5000") == ClientOf("10.0.0.1:5001") || ClientAt(address("10.0.0.1:5000")) == ClientAt(address("10.0.0.1:5001")) {
		t.Error("two ports are one client")
	}
	if ClientAt(address("10.0.0.1:5000")) == ClientAt(address("10.0.0.2:5000")) {
		t.Error("two hosts are one client")
	}
	one, again := ClientAt(address("10.0.0.1:5000")), ClientAt(address("10.0.0.1:5000"))
	if one != again {
		t.Error("a client is two")
	}
}
