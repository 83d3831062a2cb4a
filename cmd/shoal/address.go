package main

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
)

// Flags and properties that say where to listen, and the flag without which that is
// here.
var addressFlags = []string{
	"address", "http-address", "grpc-address", "metrics-address", "inference_address", "management_address", "metrics_address",
}

const insecureFlag = "insecure-bind"

// checkAddresses refuses to listen for other machines unless that is asked for by
// name: connections are not encrypted, and clients are not authenticated.
func checkAddresses(settings []setting) error {
	var errs []error
	for _, s := range settings {
		switch {
		case s.name == insecureFlag && s.value == "true":
			return nil
		case slices.Contains(addressFlags, s.name) && s.value != "" && !isLoopback(s.value):
			errs = append(errs, fmt.Errorf("%s: found %q, expected an address of this machine alone, such as 127.0.0.1, because whoever connects may do everything; "+
				"--%s lets the network in all the same", s.name, s.value, insecureFlag))
		}
	}
	return errors.Join(errs...)
}

// isLoopback reports whether only this machine can connect to an address. A name
// may lead anywhere, but for the one that never does.
func isLoopback(address string) bool {
	ip, err := netip.ParseAddr(address)
	return address == "localhost" || err == nil && ip.Unmap().IsLoopback()
}
