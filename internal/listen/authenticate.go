package listen

import (
	"context"
	"crypto/x509"
	"net/http"
	"strings"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/peer"
	"google.golang.org/grpc/status"
	"google.golang.org/grpc/tap"

	"github.com/shoal-serving/shoal/internal/access"
	"github.com/shoal-serving/shoal/internal/identity"
	"github.com/shoal-serving/shoal/internal/kserve"
	"github.com/shoal-serving/shoal/internal/kserve/kservepb"
)

// Authentication determines the caller of every request of a port, before its body is read.
// A request without an accepted credential goes no further, unless it is a health probe, or
// the gate lets callers without a principal do everything. What an authenticated caller may
// do is decided below the protocols, by the gate.
type Authentication struct {
	Authenticator *identity.Authenticator
	Gate          *access.Gate
}

const authorizationHeader = "Authorization"

// The headers as gRPC has them.
var (
	authorizationKey = strings.ToLower(authorizationHeader)
	claimsKey        = strings.ToLower(identity.ClaimsHeader)
)

// Probes answer everyone: they only report whether the server is live and ready, and the
// systems that use them mostly have no credentials.
var (
	probePaths   = map[string]bool{"/v2/health/live": true, "/v2/health/ready": true, "/ping": true}
	probeMethods = map[string]bool{
		kservepb.GRPCInferenceService_ServerLive_FullMethodName:  true,
		kservepb.GRPCInferenceService_ServerReady_FullMethodName: true,
		grpc_health_v1.Health_Check_FullMethodName:               true,
		grpc_health_v1.Health_Watch_FullMethodName:               true,
	}
)

// caller returns the caller of a request. what describes the request.
func (a *Authentication) caller(ctx context.Context, c identity.Credentials, what string, probe bool) (*access.Caller, error) {
	caller, err := a.Authenticator.Authenticate(ctx, c)
	if err != nil {
		if a.Gate.Required() && !probe {
			a.Gate.Refused(c.Address, what, err)
			return nil, err
		}
		caller = &access.Caller{Address: c.Address}
	}
	return caller, nil
}

// handler returns a handler that authenticates the callers of next. Models do not receive
// the credentials.
func (a *Authentication) handler(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		c := identity.Credentials{
			Authorization: kserve.FirstValue(r.Header[authorizationHeader]), Claims: kserve.FirstValue(r.Header[identity.ClaimsHeader]), Address: r.RemoteAddr,
		}
		if r.TLS != nil && len(r.TLS.VerifiedChains) > 0 {
			c.Certificate = r.TLS.PeerCertificates[0]
		}
		caller, err := a.caller(r.Context(), c, r.Method+" "+r.URL.Path, probePaths[r.URL.Path])
		if err != nil {
			w.Header().Set("WWW-Authenticate", `Bearer realm="shoal"`)
			if strings.Contains(r.Header.Get("Accept"), "text/html") {
				// A browser asks its user for a password, which is an API key. The guard
				// refuses changes that pages of other sites make with it.
				w.Header().Add("WWW-Authenticate", `Basic realm="shoal: an API key as the password", charset="UTF-8"`)
			}
			refuse(w, http.StatusUnauthorized, err.Error())
			return
		}
		delete(r.Header, authorizationHeader)
		delete(r.Header, identity.ClaimsHeader)
		next.ServeHTTP(w, r.WithContext(access.WithCaller(r.Context(), caller)))
	})
}

// Tap authenticates the callers of all methods of a gRPC server, unary and streaming, when their
// headers arrive. Interceptors would run after the message was read.
func (a *Authentication) Tap(ctx context.Context, info *tap.Info) (context.Context, error) {
	c := identity.Credentials{Authorization: kserve.FirstValue(info.Header[authorizationKey]), Claims: kserve.FirstValue(info.Header[claimsKey])}
	if p, ok := peer.FromContext(ctx); ok {
		c.Address = p.Addr.String()
		c.Certificate = certificate(p.AuthInfo)
	}
	caller, err := a.caller(ctx, c, info.FullMethodName, probeMethods[info.FullMethodName])
	if err != nil {
		return ctx, status.Error(codes.Unauthenticated, err.Error())
	}
	delete(info.Header, authorizationKey) // it is that of the context
	delete(info.Header, claimsKey)
	authenticated := access.WithCaller(ctx, caller)
	if method := info.FullMethodName; method == kservepb.GRPCInferenceService_ModelStreamInfer_FullMethodName {
		authenticated = access.WithRenewal(authenticated, func() (*access.Caller, error) { return a.caller(ctx, c, method, false) })
	}
	return authenticated, nil
}

// certificate returns the verified certificate of a gRPC client, or nil.
func certificate(info credentials.AuthInfo) *x509.Certificate {
	if t, ok := info.(credentials.TLSInfo); ok && len(t.State.VerifiedChains) > 0 {
		return t.State.PeerCertificates[0]
	}
	return nil
}
