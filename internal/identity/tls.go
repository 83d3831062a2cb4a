package identity

import (
	"bytes"
	"cmp"
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"sync"
	"sync/atomic"
)

// TLSOptions name the files of a TLS server.
type TLSOptions struct {
	Cert, Key string // certificate chain and private key, PEM
	ClientCA  string // certificates of the authorities of client certificates; "" means that clients are not asked for one
	// RequireClient rejects clients without a certificate. Otherwise they may use another
	// method.
	RequireClient bool
	// Log receives what goes wrong. Nil means [slog.Default].
	Log *slog.Logger
}

// A TLS has the certificates of a server, and follows changes of their files, so that they
// can be renewed while the server runs. Connections that are open keep the old ones.
type TLS struct {
	opts TLSOptions
	log  *slog.Logger

	current atomic.Pointer[tls.Config]
	files   [][]byte // as last read

	stop context.CancelFunc
	work sync.WaitGroup
}

// OpenTLS reads the files, and follows their changes until Close. protocols are those that
// the server speaks, such as "h2".
func OpenTLS(opts TLSOptions, protocols ...string) (*TLS, error) {
	t := &TLS{opts: opts, log: cmp.Or(opts.Log, slog.Default())}
	if err := t.load(protocols); err != nil {
		return nil, err
	}
	ctx, stop := context.WithCancel(context.Background())
	t.stop = stop
	t.work.Go(func() {
		follow(ctx, func() error { return t.load(protocols) }, func(err error) {
			t.log.Error("TLS certificates were not reloaded; the previous ones stay", "error", err)
		})
	})
	return t, nil
}

// Close ends the work in the background.
func (t *TLS) Close() {
	t.stop()
	t.work.Wait()
}

// Config returns a configuration that has the current certificates at each handshake.
func (t *TLS) Config() *tls.Config {
	c := t.current.Load().Clone()
	c.GetConfigForClient = func(*tls.ClientHelloInfo) (*tls.Config, error) { return t.current.Load(), nil }
	return c
}

// load reads the files, and uses them if they have changed. A certificate that does not
// belong to its key is an error: its files are being replaced, one after the other.
func (t *TLS) load(protocols []string) error {
	var files [][]byte
	for _, path := range []string{t.opts.Cert, t.opts.Key, t.opts.ClientCA} {
		text, err := readIfNamed(path, false)
		if err != nil {
			return err
		}
		files = append(files, text)
	}
	if t.files != nil && bytes.Equal(files[0], t.files[0]) && bytes.Equal(files[1], t.files[1]) && bytes.Equal(files[2], t.files[2]) {
		return nil
	}
	pair, err := tls.X509KeyPair(files[0], files[1])
	if err != nil {
		return fmt.Errorf("%s and %s: %w", t.opts.Cert, t.opts.Key, err)
	}
	c := &tls.Config{
		Certificates: []tls.Certificate{pair}, MinVersion: tls.VersionTLS12, NextProtos: protocols,
		DynamicRecordSizingDisabled: true, // tensors are large; small records would only cost time
	}
	if t.opts.ClientCA != "" {
		c.ClientCAs, c.ClientAuth = x509.NewCertPool(), tls.VerifyClientCertIfGiven
		if !c.ClientCAs.AppendCertsFromPEM(files[2]) {
			return fmt.Errorf("%s has no certificates", t.opts.ClientCA)
		}
		if t.opts.RequireClient {
			c.ClientAuth = tls.RequireAndVerifyClientCert
		}
	}
	// Tickets that were issued with older certificates and CAs are not accepted: c has keys of
	// its own.
	t.current.Store(c)
	if t.files != nil {
		t.log.Info("TLS certificates reloaded", "certificate", t.opts.Cert, "expires", pair.Leaf.NotAfter.UTC())
	}
	t.files = files
	return nil
}

// ClientTLS says how a client connects to a server with TLS.
type ClientTLS struct {
	CA         string // certificates to trust instead of the system's; "" means the system's
	Cert, Key  string // the client's own; "" means none
	ServerName string // to expect instead of the host; "" means the host
}

// Config returns the configuration of a client.
func (c ClientTLS) Config() (*tls.Config, error) {
	out := &tls.Config{MinVersion: tls.VersionTLS12, ServerName: c.ServerName}
	if c.CA != "" {
		pem, err := os.ReadFile(c.CA)
		if err != nil {
			return nil, err
		}
		out.RootCAs = x509.NewCertPool()
		if !out.RootCAs.AppendCertsFromPEM(pem) {
			return nil, fmt.Errorf("%s has no certificates", c.CA)
		}
	}
	if (c.Cert == "") != (c.Key == "") {
		return nil, errors.New("a client certificate needs a key, and the other way round")
	}
	if c.Cert != "" {
		pair, err := tls.LoadX509KeyPair(c.Cert, c.Key)
		if err != nil {
			return nil, err
		}
		out.Certificates = []tls.Certificate{pair}
	}
	return out, nil
}
