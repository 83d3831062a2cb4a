package mms

import (
	"archive/tar"
	"archive/zip"
	"compress/gzip"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/shoal-serving/shoal/internal/infer"
)

// A Manifest is the part of an archive's manifest that Shoal uses. The handler sees all of
// it.
type Manifest struct {
	Runtime string `json:"runtime"`
	Engine  struct {
		Name string `json:"engineName"`
	} `json:"engine"`
	Model struct {
		Name    string `json:"modelName"`
		Version string `json:"modelVersion"`
		Handler string `json:"handler"`

		// Names of files in archives of TorchServe.
		ConfigFile       string `json:"configFile"`
		RequirementsFile string `json:"requirementsFile"`
	} `json:"model"`
}

const manifestFile = "MAR-INF/MANIFEST.json"

// limits of an archive. Zeros mean the defaults.
type limits struct {
	Files int   // that it holds; 10,000
	Bytes int64 // of all of them, unpacked; 16 GiB
	Ratio int64 // of all of them to the archive, beyond freeBytes; 100
}

func (l limits) withDefaults() limits {
	if l.Files == 0 {
		l.Files = 10_000
	}
	if l.Bytes == 0 {
		l.Bytes = 16 << 30
	}
	if l.Ratio == 0 {
		l.Ratio = 100
	}
	return l
}

// freeBytes is the size up to which the ratio of an archive is not limited: files of text
// may exceed it, and are harmless.
const freeBytes = 16 << 20

// bytes returns how large an archive of the given size may be when it is unpacked.
func (l limits) bytes(size int64) int64 {
	return min(l.Bytes, max(freeBytes, size*l.Ratio))
}

// An archive is a model on disk: one that was unpacked, or a directory of the store.
type archive struct {
	dir      string
	manifest Manifest
}

// readManifest reads the manifest of a directory; the zero Manifest if there is none.
func readManifest(dir string) (m Manifest, err error) {
	text, err := os.ReadFile(filepath.Join(dir, filepath.FromSlash(manifestFile)))
	if errors.Is(err, fs.ErrNotExist) {
		return m, nil
	}
	if err != nil {
		return m, err
	}
	if err := json.Unmarshal(text, &m); err != nil {
		return m, invalidModel("Failed to parse signature.json: %s: %v", manifestFile, err)
	}
	return m, nil
}

// unpack writes the files of an archive, a zip or a tar.gz, to an empty directory. It does
// not trust the archive: it rejects paths that lead elsewhere, links, duplicate files, and
// archives that exceed the limits.
func unpack(file, dir string, most limits) error {
	most = most.withDefaults()
	// Names cannot lead out of a root, whatever they are.
	root, err := os.OpenRoot(dir)
	if err != nil {
		return err
	}
	defer func() { _ = root.Close() }() // files in it have been closed
	in, err := os.Open(file)
	if err != nil {
		return err
	}
	defer func() { _ = in.Close() }() // it was only read
	about, err := in.Stat()
	if err != nil {
		return err
	}
	u := unpacker{root: root, archive: filepath.Base(file), maxFiles: most.Files, filesLeft: most.Files, bytesLeft: most.bytes(about.Size())}
	if compressed, err := gzip.NewReader(in); err == nil {
		return u.tar(compressed)
	}
	return u.zip(in, about.Size())
}

// An unpacker writes the files of one archive below a root, as long as they are within the
// limits.
type unpacker struct {
	root      *os.Root
	archive   string // its name in errors
	maxFiles  int
	filesLeft int
	bytesLeft int64
}

func (u *unpacker) zip(in io.ReaderAt, size int64) error {
	r, err := zip.NewReader(in, size)
	if err != nil {
		return invalidModel("%s is neither a zip nor a tar.gz: %v; create it with model-archiver or torch-model-archiver", u.archive, err)
	}
	if len(r.File) > u.maxFiles {
		return invalidModel("%s has %d files, and at most %d are allowed", u.archive, len(r.File), u.maxFiles)
	}
	for _, f := range r.File {
		name, mode := f.Name, f.Mode()
		if dir, ok := strings.CutSuffix(name, "/"); ok {
			name, mode = dir, fs.ModeDir
		}
		if err := u.write(name, mode, f.UncompressedSize64, f.Open); err != nil {
			return u.invalid(f.Name, err)
		}
	}
	return nil
}

func (u *unpacker) tar(compressed io.Reader) error {
	r := tar.NewReader(compressed)
	for {
		h, err := r.Next()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return invalidModel("%s is not a valid tar.gz: %v", u.archive, err)
		}
		// tar writes the directory that it was started in as ".".
		name := strings.TrimPrefix(strings.TrimSuffix(h.Name, "/"), "./")
		if name == "." || name == "" || h.Typeflag == tar.TypeXGlobalHeader {
			continue
		}
		mode := h.FileInfo().Mode()
		if h.Typeflag == tar.TypeLink {
			mode |= fs.ModeIrregular // a hard link has the mode of a file
		}
		open := func() (io.ReadCloser, error) { return io.NopCloser(r), nil }
		if err := u.write(name, mode, uint64(max(0, h.Size)), open); err != nil {
			return u.invalid(h.Name, err)
		}
	}
}

// invalid says why a file of the archive could not be written. Clients do not learn where.
func (u *unpacker) invalid(name string, err error) error {
	return invalidModel("%s: %q: %s", u.archive, name, infer.WithoutPaths("", err.Error()))
}

var (
	errTooLarge     = errors.New("the unpacked archive is larger than allowed")
	errTooManyFiles = errors.New("the archive has more files than allowed")
)

// write writes a file or creates a directory. size is what the archive says, which may be
// less than open provides.
func (u *unpacker) write(name string, mode fs.FileMode, size uint64, open func() (io.ReadCloser, error)) error {
	if u.filesLeft--; u.filesLeft < 0 {
		return errTooManyFiles
	}
	switch {
	case !fs.ValidPath(name) || strings.ContainsAny(name, "\\\x00"):
		return errors.New("the path leads out of the archive")
	case mode.IsDir():
		return u.root.MkdirAll(name, 0o700)
	case !mode.IsRegular():
		return errors.New("links and devices are not allowed, only files and directories")
	case size > uint64(u.bytesLeft):
		return errTooLarge
	}
	if at := strings.LastIndexByte(name, '/'); at > 0 {
		if err := u.root.MkdirAll(name[:at], 0o700); err != nil {
			return err
		}
	}
	in, err := open()
	if err != nil {
		return err
	}
	defer func() { _ = in.Close() }() // it was only read
	out, err := u.root.OpenFile(name, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return err
	}
	// One byte more, to notice if there are more than it says.
	n, err := io.Copy(out, io.LimitReader(in, u.bytesLeft+1))
	if err == nil && n > u.bytesLeft {
		err = errTooLarge
	}
	u.bytesLeft -= n
	return errors.Join(err, out.Close())
}

// A store is a directory of archives.
type store struct {
	dir     string           // "" means none
	allowed []*regexp.Regexp // addresses that archives may be loaded from
	private string           // where archives are unpacked
	limits  limits
	words   words
}

// words are the messages for clients about invalid archives.
type words struct{ absent, exception, download string }

var (
	wordsOfMMS        = words{"Model not found in model store", "DownloadModelException", "Failed to download model from"}
	wordsOfTorchServe = words{"Model not found at", "DownloadArchiveException", "Failed to download archive from"}
)

func (s *store) missing(name string) error { return notFound("%s: %s", s.words.absent, name) }

// open returns the archive that a client or a setting names. done deletes the files that
// were unpacked for it.
func (s *store) open(ctx context.Context, name string) (a *archive, done func() error, err error) {
	if strings.Contains(name, "://") {
		return s.download(ctx, name)
	}
	switch {
	case s.dir == "":
		return nil, nil, notFound("Model store has not been configured.")
	case strings.Contains(name, ".."):
		return nil, nil, notFound("Relative path is not allowed in url: %s", name)
	}
	name = filepath.Clean(strings.TrimPrefix(name, "/"))
	if !filepath.IsLocal(name) || name == "." {
		return nil, nil, s.missing(name)
	}
	return s.openFile(name, filepath.Join(s.dir, name))
}

// shown returns what clients and logs may read of the URL of a registration: of an address, nothing that
// gives access to it.
func shown(name string) string {
	if !strings.Contains(name, "://") {
		return name
	}
	u, err := url.Parse(name)
	if err != nil {
		return "(no address)"
	}
	return (&url.URL{Scheme: u.Scheme, Host: u.Host, Path: u.Path, RawPath: u.RawPath}).String()
}

// openFile opens an archive or a directory. name is its name for clients.
func (s *store) openFile(name, path string) (*archive, func() error, error) {
	info, err := os.Stat(path)
	if err != nil {
		return nil, nil, s.missing(name)
	}
	if info.IsDir() {
		path, err = filepath.Abs(path)
		if err != nil {
			return nil, nil, err
		}
		path = archiveRoot(path)
		m, err := readManifest(path)
		return &archive{path, m}, func() error { return nil }, err
	}
	dir, err := os.MkdirTemp(s.private, "archive-*")
	if err != nil {
		return nil, nil, err
	}
	remove := func() error { return os.RemoveAll(dir) }
	if err := unpack(path, dir, s.limits); err != nil {
		return nil, nil, errors.Join(err, remove())
	}
	top := archiveRoot(dir)
	m, err := readManifest(top)
	if err != nil {
		return nil, nil, errors.Join(err, remove())
	}
	return &archive{top, m}, remove, nil
}

// archiveRoot returns the directory of an archive's files: dir, or the only directory in it.
// A tar.gz of torch-model-archiver, and that of SageMaker, has all files in one directory.
func archiveRoot(dir string) string {
	entries, err := os.ReadDir(dir)
	if err != nil || len(entries) != 1 || !entries[0].IsDir() || entries[0].Name() == filepath.Dir(manifestFile) {
		return dir
	}
	return filepath.Join(dir, entries[0].Name())
}

// isArchive reports whether a file of the store is an archive, by its name.
func isArchive(name string) bool {
	return slices.ContainsFunc([]string{".mar", ".tar.gz", ".tgz"}, func(suffix string) bool { return strings.HasSuffix(name, suffix) })
}

// downloadTimeout limits a download.
const downloadTimeout = 10 * time.Minute

// allows reports whether archives may be loaded from an address.
func (s *store) allows(address string) bool {
	for _, r := range s.allowed {
		if r.MatchString(address) {
			return true
		}
	}
	return false
}

func (s *store) refusal(address string) error {
	return badRequest("Given URL %s does not match any allowed URL(s). Copy the archive to the model store and name the file, "+
		"or add the URL to allowed_urls in config.properties", shown(address))
}

// download opens the archive at an address, if that is allowed.
func (s *store) download(ctx context.Context, address string) (*archive, func() error, error) {
	u, err := url.Parse(address)
	if err == nil && u.Scheme != "http" && u.Scheme != "https" {
		return nil, nil, badRequest("Given URL %s does not match any allowed URL(s). Only http and https are supported; copy the archive to the model store and name the file", shown(address))
	}
	if err != nil || !s.allows(address) {
		return nil, nil, s.refusal(address)
	}
	client := http.Client{Timeout: downloadTimeout, CheckRedirect: func(r *http.Request, via []*http.Request) error {
		if !s.allows(r.URL.String()) || len(via) > 5 {
			return s.refusal(r.URL.String())
		}
		return nil
	}}
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, address, http.NoBody)
	if err != nil {
		return nil, nil, s.notDownloaded(address, err)
	}
	resp, err := client.Do(req)
	if err != nil {
		return nil, nil, s.notDownloaded(address, err)
	}
	defer func() { _ = resp.Body.Close() }() // it was only read
	if resp.StatusCode != http.StatusOK {
		return nil, nil, s.notDownloaded(address, fmt.Errorf("the server answered with status %d", resp.StatusCode))
	}
	file, err := os.CreateTemp(s.private, "download-*")
	if err != nil {
		return nil, nil, err
	}
	defer func() { _ = os.Remove(file.Name()) }() // what is needed of it has been unpacked
	most := s.limits.withDefaults().Bytes
	n, err := io.Copy(file, io.LimitReader(resp.Body, most+1))
	if err == nil && n > most {
		err = fmt.Errorf("the archive has more than %d bytes", most)
	}
	if err := errors.Join(err, file.Close()); err != nil {
		return nil, nil, s.notDownloaded(address, err)
	}
	return s.openFile(shown(address), file.Name())
}

func (s *store) notDownloaded(address string, err error) error {
	if e, ok := errors.AsType[*url.Error](err); ok {
		err = e.Err // without the address
	}
	return fail(http.StatusBadRequest, s.words.exception, "%s: %s: %s", s.words.download, shown(address), infer.WithoutPaths("", err.Error()))
}
