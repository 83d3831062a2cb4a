//go:build e2e

// Package e2e tests what the built binary does for its users: started from a shell,
// called over HTTP and gRPC, and ended by signals. How fast it does so is for package
// proofs.
package e2e
