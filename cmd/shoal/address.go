package main

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
)

// addressFlags are the flags and properties that say where to listen.
var addressFlags = []string{
	"address", "http-address", "grpc-address", "metrics-address", "inference_address", "management_address", "metrics_address",
}

// insecureFlag allows addresses that other machines can reach.
const insecureFlag = "insecure-bind"

// checkAddresses rejects addresses that other machines can reach, unless --insecure-bind
// allows them: connections are not encrypted, and clients are not authenticated.
func checkAddresses(settings []setting) error {
	var errs []error
	for _, s := range settings {
		switch {
		case s.name == insecureFlag && s.value == "true":
			return nil
		case slices.Contains(addressFlags, s.name) && s.value != "" && !isLoopback(s.value):
			errs = append(errs, fmt.Errorf("%s: %q can be reached from other machines, and clients are not authenticated; "+
				"use 127.0.0.1, or add --%s to allow it", s.name, s.value, insecureFlag))
		}
	}
	return errors.Join(errs...)
}

// isLoopback reports whether only this machine can connect to an address. Of names, only
// localhost is known to be one.
func isLoopback(address string) bool {
	ip, err := netip.ParseAddr(address)
	return address == "localhost" || err == nil && ip.Unmap().IsLoopback()
}
