// Package hubtest is a server that speaks the calls of the Hugging Face Hub that a client needs
// to list and download repositories, for tests. It misbehaves when a test says so.
package hubtest

import (
	"bytes"
	"crypto/sha1" //nolint:gosec // git's checksum
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"maps"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

// A Hub has one repository, ORG/NAME. Files from Large bytes on are in a storage of their own,
// to which the Hub redirects.
type Hub struct {
	URL string // what HF_ENDPOINT is set to

	// Token, if not "", is what a request needs.
	Token string
	// Denied means that the account of the token may not read the repository.
	Denied bool
	// Breaks is how many of the next downloads from the storage break off in the middle.
	Breaks atomic.Int64
	// Wrong means that the storage has other contents than the Hub lists, of the same size.
	Wrong atomic.Bool

	// Stalls means that the storage does not answer until the client leaves.
	Stalls atomic.Bool

	Broken    atomic.Int64 // downloads that broke off
	Stalled   atomic.Int64 // downloads that got no answer
	Left      atomic.Int64 // of those, the ones that the client has ended
	Redirects atomic.Int64 // downloads that were redirected to the storage
	Changed   atomic.Int64 // downloads with other contents
	Leaked    atomic.Int64 // requests to the storage that had a token
	Refused   atomic.Int64 // requests without the right token
	Lists     atomic.Int64

	storage string

	mu        sync.Mutex // guards the following
	revisions map[string]map[string][]byte
	commits   map[string]string // by branch
}

// Repository is the name of the repository, and Large the size from which files are in the
// storage.
const (
	Repository = "org/tiny-model"
	Large      = 1 << 10
)

// New starts a Hub, which ends with the test.
func New(t testing.TB) *Hub {
	t.Helper()
	h := &Hub{revisions: map[string]map[string][]byte{}, commits: map[string]string{}}
	storage := httptest.NewServer(http.HandlerFunc(h.download))
	t.Cleanup(storage.Close)
	h.storage = storage.URL
	api := http.NewServeMux()
	api.HandleFunc("GET /api/models/"+Repository+"/revision/{revision}", h.list)
	api.HandleFunc("GET /"+Repository+"/resolve/{commit}/{path...}", h.resolve)
	api.HandleFunc("/", func(w http.ResponseWriter, _ *http.Request) { refuse(w, http.StatusUnauthorized, "RepoNotFound") })
	front := httptest.NewServer(api)
	t.Cleanup(front.Close)
	h.URL = front.URL
	return h
}

// Commit makes the files the content of a branch, and returns the commit.
func (h *Hub) Commit(branch string, files map[string][]byte) string {
	text := fmt.Sprint(time.Now().UnixNano())
	commit := gitSHA1([]byte(text))
	h.mu.Lock()
	defer h.mu.Unlock()
	h.revisions[commit] = maps.Clone(files)
	h.commits[branch] = commit
	return commit
}

func gitSHA1(content []byte) string {
	sum := sha1.Sum(fmt.Appendf(nil, "blob %d\x00%s", len(content), content)) //nolint:gosec // see above
	return hex.EncodeToString(sum[:])
}

func refuse(w http.ResponseWriter, status int, reason string) {
	w.Header().Set("X-Error-Code", reason)
	w.WriteHeader(status)
}

// allowed reports whether a request may read the repository, and answers it otherwise.
func (h *Hub) allowed(w http.ResponseWriter, r *http.Request) bool {
	switch {
	case h.Token != "" && r.Header.Get("Authorization") != "Bearer "+h.Token:
		h.Refused.Add(1)
		refuse(w, http.StatusUnauthorized, "GatedRepo")
	case h.Denied:
		h.Refused.Add(1)
		refuse(w, http.StatusForbidden, "GatedRepo")
	default:
		return true
	}
	return false
}

func (h *Hub) list(w http.ResponseWriter, r *http.Request) {
	h.Lists.Add(1)
	if !h.allowed(w, r) {
		return
	}
	h.mu.Lock()
	commit := r.PathValue("revision")
	if branch, ok := h.commits[commit]; ok {
		commit = branch
	}
	files, ok := h.revisions[commit]
	h.mu.Unlock()
	if !ok {
		refuse(w, http.StatusNotFound, "RevisionNotFound")
		return
	}
	siblings := []map[string]any{}
	for _, name := range slices.Sorted(maps.Keys(files)) {
		content := files[name]
		file := map[string]any{"rfilename": name}
		if r.URL.Query().Get("blobs") == "true" {
			file["size"], file["blobId"] = len(content), gitSHA1(content)
			if len(content) >= Large {
				sum := sha256.Sum256(content)
				file["lfs"] = map[string]any{"sha256": hex.EncodeToString(sum[:]), "size": len(content), "pointerSize": 134}
				file["blobId"] = gitSHA1([]byte("pointer"))
			}
		}
		siblings = append(siblings, file)
	}
	_ = json.NewEncoder(w).Encode(map[string]any{"id": Repository, "sha": commit, "siblings": siblings}) // the client has left
}

func (h *Hub) resolve(w http.ResponseWriter, r *http.Request) {
	if !h.allowed(w, r) {
		return
	}
	h.mu.Lock()
	content, ok := h.revisions[r.PathValue("commit")][r.PathValue("path")]
	h.mu.Unlock()
	switch {
	case !ok:
		refuse(w, http.StatusNotFound, "EntryNotFound")
	case len(content) >= Large:
		h.Redirects.Add(1)
		http.Redirect(w, r, fmt.Sprintf("%s/%s/%s?signature=abc", h.storage, r.PathValue("commit"), r.PathValue("path")), http.StatusFound)
	default:
		http.ServeContent(w, r, "", time.Time{}, bytes.NewReader(content))
	}
}

func (h *Hub) download(w http.ResponseWriter, r *http.Request) {
	if r.Header.Get("Authorization") != "" {
		h.Leaked.Add(1)
	}
	commit, name, _ := strings.Cut(strings.TrimPrefix(r.URL.Path, "/"), "/")
	h.mu.Lock()
	content := h.revisions[commit][name]
	h.mu.Unlock()
	if h.Wrong.Load() {
		h.Changed.Add(1)
		content = bytes.Clone(content)
		content[len(content)/2] ^= 1
	}
	if h.Stalls.Load() {
		h.Stalled.Add(1)
		<-r.Context().Done()
		h.Left.Add(1)
		return
	}
	if h.Breaks.Add(-1) >= 0 {
		h.Broken.Add(1)
		w = &breaking{w, len(content) / 3}
	}
	http.ServeContent(w, r, "", time.Time{}, bytes.NewReader(content))
}

// breaking is an answer that ends after some bytes.
type breaking struct {
	http.ResponseWriter
	left int
}

func (b *breaking) Write(p []byte) (int, error) {
	n, err := b.ResponseWriter.Write(p[:min(len(p), b.left)])
	b.left -= n
	if b.left == 0 {
		panic(http.ErrAbortHandler) // which closes the connection
	}
	return n, err
}
