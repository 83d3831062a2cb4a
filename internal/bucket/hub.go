package bucket

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"path"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
)

const (
	hubScheme   = "hf"
	hubEndpoint = "https://huggingface.co" // unless HF_ENDPOINT names another one
	hubRevision = "main"                   // unless the URL names another one
)

// A hub is a repository of the Hugging Face Hub at one revision.
//
// A repository with the layout of a model repository has its files as objects. Any other one
// is a single model, whose objects have the keys of a model repository: NAME/config.pbtxt,
// NAME/1/model.onnx, and the files with its weights.
type hub struct {
	endpoint, token string
	repository      string // ORGANIZATION/NAME
	revision        string // a branch, a tag or a commit
	path            string // of a directory or an .onnx file in the repository; "" means all of it
	client          *http.Client

	mu     sync.Mutex // guards the following
	pinned []Object   // of a revision that is a commit, once it was listed: it never changes
}

// hubAddress matches what is behind hf://.
var hubAddress = regexp.MustCompile(`^([\w.-]+/[\w.-]+)(?:@([^/?#]+))?((?:/[^?#]*)?)$`)

// openHub returns the repository of an address such as hf://ORGANIZATION/NAME@REVISION/PATH. An
// empty endpoint is that of the Hub itself.
func openHub(address, endpoint, token string) (*hub, error) {
	parts := hubAddress.FindStringSubmatch(strings.TrimPrefix(address, hubScheme+"://"))
	if parts == nil {
		return nil, fmt.Errorf("%s: expected hf://ORGANIZATION/NAME, hf://ORGANIZATION/NAME@REVISION, or one of these with a path behind it", address)
	}
	if endpoint == "" {
		endpoint = hubEndpoint
	}
	if u, err := url.Parse(endpoint); err != nil || u.Host == "" {
		return nil, fmt.Errorf("HF_ENDPOINT is %q, expected a URL such as %s", endpoint, hubEndpoint)
	}
	h := &hub{endpoint: strings.TrimRight(endpoint, "/"), token: token, repository: parts[1], revision: parts[2], path: strings.Trim(parts[3], "/")}
	if h.revision == "" {
		h.revision = hubRevision
	}
	h.client = &http.Client{CheckRedirect: h.redirect}
	return h, nil
}

// redirect is called before a redirect is followed: to the storage, which must not see the
// token. Go's client keeps the header for another port of the same host.
func (h *hub) redirect(r *http.Request, via []*http.Request) error {
	if len(via) >= 10 {
		return errors.New("stopped after 10 redirects")
	}
	if r.URL.Scheme != via[0].URL.Scheme || r.URL.Host != via[0].URL.Host {
		r.Header.Del("Authorization")
	}
	return nil
}

func (h *hub) Close() error {
	h.client.CloseIdleConnections()
	return nil
}

// get sends a request to the Hub, and returns an answer whose status is 2xx. The caller closes
// its body.
func (h *hub) get(ctx context.Context, address string, header http.Header) (*http.Response, error) {
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, address, http.NoBody)
	if err != nil {
		return nil, err
	}
	r.Header = header
	if h.token != "" {
		r.Header.Set("Authorization", "Bearer "+h.token)
	}
	answer, err := h.client.Do(r)
	if err != nil {
		return nil, err
	}
	if answer.StatusCode/100 != 2 {
		_ = answer.Body.Close() // it is not read
		return nil, h.refusal(answer)
	}
	return answer, nil
}

var errMissing = errors.New("not found")

// refusal returns the error for an answer that is not 2xx, with what to do.
func (h *hub) refusal(answer *http.Response) error {
	page, reason := h.endpoint+"/"+h.repository, answer.Header.Get("X-Error-Code")
	switch status := answer.StatusCode; {
	case status == http.StatusForbidden || reason == "GatedRepo" && h.token != "":
		return fmt.Errorf("%w: the Hub answered %d: the account of HF_TOKEN may not read it; accept its conditions at %s", ErrDenied, status, page)
	case status == http.StatusUnauthorized && h.token == "":
		return fmt.Errorf("%w: the Hub answered 401: the repository is gated or private, or does not exist; set HF_TOKEN to a token that may read %s", ErrDenied, page)
	case status == http.StatusUnauthorized:
		return fmt.Errorf("%w: the Hub answered 401: HF_TOKEN is not valid, or %s does not exist", ErrDenied, page)
	case status == http.StatusNotFound && reason == "RevisionNotFound":
		return fmt.Errorf("%w: %s has no revision %q", errMissing, page, h.revision)
	case status == http.StatusNotFound:
		return fmt.Errorf("%w: %s does not exist", errMissing, page)
	default:
		return fmt.Errorf("the Hub answered %s", answer.Status)
	}
}

// A snapshot is what the Hub says of a repository at a revision.
type snapshot struct {
	Commit string    `json:"sha"`
	Files  []hubFile `json:"siblings"`
}

type hubFile struct {
	Path string `json:"rfilename"`
	Size int64  `json:"size"`
	Git  string `json:"blobId"` // SHA-1 of the file, or of the pointer to a large one
	LFS  *struct {
		SHA256 string `json:"sha256"`
		Size   int64  `json:"size"`
	} `json:"lfs"` // nil for files that git itself stores
}

var fullCommit = regexp.MustCompile(`^[0-9a-f]{40}$`)

func (h *hub) list(ctx context.Context, prefix string) ([]Object, error) {
	h.mu.Lock()
	all := h.pinned
	h.mu.Unlock()
	if all == nil {
		var err error
		if all, err = h.snapshot(ctx); err != nil {
			return nil, err
		}
		if h.revision == all[0].commit {
			h.mu.Lock()
			h.pinned = all
			h.mu.Unlock()
		}
	}
	return slices.DeleteFunc(slices.Clone(all), func(o Object) bool { return !strings.HasPrefix(o.Key, prefix) }), nil
}

// mostListed limits the answer to a listing, in bytes.
const mostListed = 64 << 20

// snapshot lists the repository as it is now. All objects are of the commit that the revision
// names at this moment. There is at least one.
func (h *hub) snapshot(ctx context.Context) ([]Object, error) {
	address := fmt.Sprintf("%s/api/models/%s/revision/%s?blobs=true", h.endpoint, h.repository, url.PathEscape(h.revision))
	answer, err := h.get(ctx, address, http.Header{})
	if err != nil {
		return nil, err
	}
	defer func() { _ = answer.Body.Close() }() // it was read
	var s snapshot
	if err := json.NewDecoder(io.LimitReader(answer.Body, mostListed)).Decode(&s); err != nil {
		return nil, fmt.Errorf("the Hub's list of files: %w", err)
	}
	if !fullCommit.MatchString(s.Commit) {
		return nil, fmt.Errorf("the Hub's list of files has no commit: %q", s.Commit)
	}
	var files []Object
	for _, f := range s.Files {
		o := Object{Key: f.Path, Size: f.Size, tag: f.Git, gitSHA1: f.Git, path: f.Path, commit: s.Commit}
		if f.LFS != nil {
			o.Size, o.sha256, o.gitSHA1, o.tag = f.LFS.Size, f.LFS.SHA256, "", f.LFS.SHA256
		}
		if o.tag == "" {
			return nil, fmt.Errorf("the Hub lists no digest of %s", f.Path)
		}
		files = append(files, o)
	}
	objects, err := h.models(files)
	slices.SortFunc(objects, func(a, b Object) int { return strings.Compare(a.Key, b.Key) })
	return objects, err
}

// inRepository matches files of a model repository.
var inRepository = regexp.MustCompile(`^[^/]+/(config\.pbtxt|[1-9][0-9]*/[^/]+)`)

// models returns the files of a repository as objects of a model repository.
func (h *hub) models(files []Object) ([]Object, error) {
	if path.Ext(h.path) == ".onnx" {
		return h.model(files, h.path)
	}
	below := files
	if h.path != "" {
		below = nil
		for _, f := range files {
			if rest, ok := strings.CutPrefix(f.Key, h.path+"/"); ok {
				f.Key = rest
				below = append(below, f)
			}
		}
	}
	if slices.ContainsFunc(below, func(o Object) bool { return inRepository.MatchString(o.Key) }) {
		return below, nil
	}
	var found []string
	for _, f := range below {
		if path.Ext(f.path) == ".onnx" {
			found = append(found, f.path)
		}
	}
	for _, name := range []string{"model.onnx", "onnx/model.onnx"} {
		if full := path.Join(h.path, name); slices.Contains(found, full) {
			return h.model(files, full)
		}
	}
	switch len(found) {
	case 0:
		return nil, fmt.Errorf("%w: it has no .onnx file; export the model to ONNX, for example with optimum-cli export onnx", errMissing)
	case 1:
		return h.model(files, found[0])
	}
	return nil, fmt.Errorf("it has %d .onnx files; name one of them, as in hf://%s/%s", len(found), h.repository, found[0])
}

// model returns the objects of a single model, given its file.
func (h *hub) model(files []Object, file string) ([]Object, error) {
	dir, base := path.Split(file)
	stem := strings.TrimSuffix(base, ".onnx")
	_, name, _ := strings.Cut(h.repository, "/")
	var all []Object
	for _, f := range files {
		fileDir, fileBase := path.Split(f.path)
		switch {
		case f.path == file:
			f.Key = name + "/1/model.onnx"
		case fileDir == dir && (strings.HasPrefix(fileBase, base) || strings.HasPrefix(fileBase, stem+".data")):
			f.Key = name + "/1/" + fileBase // weights, which the file names
		case f.path == "config.pbtxt":
			f.Key = name + "/config.pbtxt"
		default:
			continue
		}
		all = append(all, f)
	}
	if !slices.ContainsFunc(all, func(o Object) bool { return o.path == file }) {
		return nil, fmt.Errorf("%w: it has no file %s", errMissing, file)
	}
	return all, nil
}

func (h *hub) read(ctx context.Context, o Object, offset, length int64) (part, error) {
	var escaped []string
	for name := range strings.SplitSeq(o.path, "/") {
		escaped = append(escaped, url.PathEscape(name))
	}
	address := fmt.Sprintf("%s/%s/resolve/%s/%s", h.endpoint, h.repository, o.commit, strings.Join(escaped, "/"))
	header := http.Header{"Accept-Encoding": {"identity"}}
	header.Set("Range", fmt.Sprintf("bytes=%d-%d", offset, offset+length-1))
	answer, err := h.get(ctx, address, header)
	if errors.Is(err, errMissing) {
		return part{}, fmt.Errorf("%s: %w", address, ErrChanged)
	}
	if err != nil {
		return part{}, err
	}
	skip := int64(0)
	if answer.StatusCode != http.StatusPartialContent {
		skip = offset // the whole file
	} else if total := totalSize(answer.Header.Get("Content-Range")); total != o.Size {
		_ = answer.Body.Close() // nothing was read from it
		return part{}, fmt.Errorf("%s has %d bytes, listed were %d: %w", address, total, o.Size, ErrChanged)
	}
	if _, err := io.CopyN(io.Discard, answer.Body, skip); err != nil {
		_ = answer.Body.Close() // it is of no use
		return part{}, err
	}
	return part{ReadCloser: answer.Body}, nil
}

// totalSize returns the size of a file from a header such as "bytes 0-9/100", or -1.
func totalSize(contentRange string) int64 {
	_, total, _ := strings.Cut(contentRange, "/")
	n, err := strconv.ParseInt(total, 10, 64)
	if err != nil {
		return -1
	}
	return n
}
