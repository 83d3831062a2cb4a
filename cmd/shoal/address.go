package main

import (
	"cmp"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"slices"
	"strings"

	"github.com/shoal-serving/shoal/internal/identity"
)

// addressFlags are the flags and properties that say where to listen.
var addressFlags = []string{
	"address", "http-address", "grpc-address", "metrics-address", "xds-address", adminFlag, "inference_address", "management_address", "metrics_address",
}

// anyHost is where a server listens whose address is empty.
const anyHost = "0.0.0.0"

// insecureFlag allows addresses that other machines can reach.
const insecureFlag = "insecure-bind"

// checkAddresses rejects addresses that other machines can reach, unless --insecure-bind
// allows them, or connections are encrypted and clients authenticated.
func checkAddresses(settings []setting, o *accessOptions) error {
	if slices.ContainsFunc(settings, func(s setting) bool { return s.name == insecureFlag && s.value == "true" }) {
		return nil
	}
	var errs []error
	for _, s := range exposed(settings, o) {
		errs = append(errs, fmt.Errorf("%s: %q can be reached from other machines; use 127.0.0.1, or set --tls-cert and --tls-key, and --%s, --access or --tls-client-ca, "+
			"or add --%s to allow clients that are not authenticated", s.name, s.value, keysFlag, insecureFlag))
	}
	return errors.Join(errs...)
}

// exposed returns the settings that are addresses which other machines can reach, and where
// connections are not encrypted or clients not authenticated.
func exposed(settings []setting, o *accessOptions) (all []setting) {
	for _, s := range settings {
		if !slices.Contains(addressFlags, s.name) || identity.IsLoopback(hostOf(s)) {
			continue
		}
		secure := o.secure("http")
		switch s.name {
		case "grpc-address":
			secure = o.secure("grpc")
		case "address": // of all protocols
			secure = secure && o.secure("grpc")
		}
		if !secure {
			all = append(all, s)
		}
	}
	return all
}

// hostOf returns where an address setting makes the server listen. An empty one of a single
// protocol leaves that to --address.
func hostOf(s setting) string {
	host := s.value
	switch {
	case s.value == "" && s.name != "address":
		return "localhost"
	case s.name == adminFlag:
		if name, _, err := net.SplitHostPort(s.value); err == nil {
			host = name
		}
	}
	return cmp.Or(host, anyHost)
}

// warnOfClients warns of addresses that other machines can reach without being
// authenticated, or over connections that are not encrypted.
func warnOfClients(settings []setting, o *accessOptions, log *slog.Logger) {
	var all []string
	for _, s := range exposed(settings, o) {
		all = append(all, cmp.Or(s.value, anyHost))
	}
	addresses := strings.Join(slices.Compact(all), ",")
	if o.grpcSSL && !o.grpcMutual && o.grpcRoot != "" {
		log.Warn("setting has no effect", "name", "grpc-root-cert", "value", o.grpcRoot, "reason", "clients are asked for certificates with --grpc-use-ssl-mutual=true only")
	}
	switch {
	case len(all) == 0:
	case o.required():
		log.Warn("connections are not encrypted: everyone on the network can read credentials; set --tls-cert and --tls-key, or let a proxy in front encrypt them", "addresses", addresses)
	default:
		log.Warn("clients are not authenticated: every program that can reach the server can use its models; set --api-keys or --access, or restrict access with a firewall or with a proxy in front", "addresses", addresses)
	}
}
