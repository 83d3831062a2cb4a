package listen

import (
	"context"
	"net"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/tap"
	"google.golang.org/protobuf/types/known/emptypb"

	"github.com/shoal-serving/shoal/internal/access"
	"github.com/shoal-serving/shoal/internal/identity"
	"github.com/shoal-serving/shoal/internal/kserve/kservepb"
)

// withKey returns an authentication by API key, and a key.
func withKey(t *testing.T) (*Authentication, string) {
	t.Helper()
	path := filepath.Join(t.TempDir(), "keys.json")
	_, key, err := identity.CreateKey(path, identity.Key{Name: "ann", Grants: []access.Grant{{Role: access.Infer}}}, time.Now())
	if err != nil {
		t.Fatal(err)
	}
	a, err := identity.Open(identity.Options{Keys: path})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(a.Close)
	return &Authentication{Authenticator: a, Gate: &access.Gate{}}, key
}

// holdsCredential returns the header that has a credential, or "". Protocols give models the
// headers that a pattern matches, and MMS all of them.
func holdsCredential(headers map[string][]string, key string) string {
	for name, values := range headers {
		if strings.EqualFold(name, authorizationHeader) || strings.EqualFold(name, identity.ClaimsHeader) || strings.Contains(strings.Join(values, " "), key) {
			return name
		}
	}
	return ""
}

func TestProtocolsDoNotSeeCredentialsOverHTTP(t *testing.T) {
	auth, key := withKey(t)
	seen := false
	h := auth.handler(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		seen = r.Header.Get("X-Other") == "kept" && access.CallerOf(r.Context()).Name() == "key:ann"
		if name := holdsCredential(r.Header, key); name != "" {
			t.Errorf("a protocol sees the header %s", name)
		}
	}))
	r := httptest.NewRequest(http.MethodPost, "/v2/models/m/infer", http.NoBody)
	r.Header.Set("Authorization", "Bearer "+key)
	r.Header.Set(identity.ClaimsHeader, "forged")
	r.Header.Set("X-Other", "kept")
	h.ServeHTTP(httptest.NewRecorder(), r)
	if !seen {
		t.Error("the request was not passed on with its caller and its other headers")
	}
}

func TestOnlyBrowsersAreAskedForAPassword(t *testing.T) {
	auth, _ := withKey(t)
	h := auth.handler(http.NotFoundHandler())
	for accept, want := range map[string]int{"text/html,*/*;q=0.8": 2, "*/*": 1} {
		r := httptest.NewRequest(http.MethodGet, "/", http.NoBody)
		r.Header.Set("Accept", accept)
		w := httptest.NewRecorder()
		h.ServeHTTP(w, r)
		if asked := w.Header().Values("WWW-Authenticate"); w.Code != http.StatusUnauthorized || len(asked) != want || !strings.HasPrefix(asked[0], "Bearer ") {
			t.Errorf("%s: %d %q", accept, w.Code, asked)
		}
	}
}

func TestProtocolsDoNotSeeCredentialsOverGRPC(t *testing.T) {
	auth, key := withKey(t)
	seen := make(chan metadata.MD, 1)
	s := grpc.NewServer(grpc.InTapHandle(auth.Tap), grpc.UnknownServiceHandler(func(_ any, stream grpc.ServerStream) error {
		md, _ := metadata.FromIncomingContext(stream.Context())
		seen <- md
		return stream.SendMsg(&emptypb.Empty{})
	}))
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	go func() { _ = s.Serve(l) }()
	t.Cleanup(s.Stop)
	conn, err := grpc.NewClient(l.Addr().String(), grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	ctx = metadata.AppendToOutgoingContext(ctx, "authorization", "Bearer "+key, identity.ClaimsHeader, "forged", "x-other", "kept")
	if err := conn.Invoke(ctx, "/any/method", &emptypb.Empty{}, &emptypb.Empty{}); err != nil {
		t.Fatal(err)
	}
	md := <-seen
	if name := holdsCredential(md, key); name != "" {
		t.Errorf("a protocol sees the metadata %s", name)
	}
	if got := md.Get("x-other"); len(got) != 1 || got[0] != "kept" {
		t.Errorf("the other metadata is %v", md)
	}
}

func TestRequestsOfAStreamHaveTheRightsOfTheMoment(t *testing.T) {
	auth, key := withKey(t)
	for method, renewable := range map[string]bool{kservepb.GRPCInferenceService_ModelStreamInfer_FullMethodName: true, kservepb.GRPCInferenceService_ModelInfer_FullMethodName: false} {
		ctx, err := auth.Tap(t.Context(), &tap.Info{FullMethodName: method, Header: metadata.Pairs("authorization", "Bearer "+key)})
		if err != nil {
			t.Fatal(err)
		}
		again, err := access.Renew(ctx)
		if err != nil || access.CallerOf(again).Name() != "key:ann" || (again != ctx) != renewable {
			t.Errorf("%s: caller %s, %v", method, access.CallerOf(again).Name(), err)
		}
	}
}
