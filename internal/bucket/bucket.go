// Package bucket reads files from object stores, and keeps them in a cache on disk. It knows
// nothing of models: the caller says which objects belong together.
package bucket

import (
	"cmp"
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"net/url"
	"os"
	"path"
	"slices"
	"strings"
	"time"

	"gocloud.dev/blob"
	"gocloud.dev/gcerrors"
)

// Schemes are the schemes of URLs that [Open] takes.
var Schemes = []string{"s3", "gs", azureScheme, tritonAzureScheme, hubScheme}

// A Bucket is a bucket of an object store, or the objects below a prefix of it, or a
// repository of the Hugging Face Hub. Its methods are safe for concurrent use.
type Bucket struct {
	url   string
	store store
}

// A store is where the objects of a bucket are.
type store interface {
	// list returns the objects whose keys begin with prefix.
	list(ctx context.Context, prefix string) ([]Object, error)
	// read opens length bytes of an object, beginning at offset. Its error wraps ErrChanged
	// if the object is another one.
	read(ctx context.Context, o Object, offset, length int64) (part, error)
	Close() error
}

// An Object is an object of a bucket, as it was when it was listed.
type Object struct {
	Key  string // below the prefix of the bucket
	Size int64

	tag      string // changes when the content does
	version  string // what the store calls the content, so that it can be asked for; "" if it has no name
	md5      []byte // of the content; nil if the store does not know it
	sha256   string // likewise, in hex; "" if the store does not know it
	gitSHA1  string // of the content as an object of git, in hex; likewise
	path     string // of the Hub: where the file is in its repository
	commit   string // likewise
	modified time.Time
}

// Tag returns a string that is equal for objects of the same key that have not changed.
func (o Object) Tag() string { return o.tag }

// ErrChanged is the error of an object that is not the one that was listed.
var ErrChanged = errors.New("the object was replaced or removed after it was listed")

// ErrDenied is the error of an object that the caller may not read.
var ErrDenied = errors.New("access denied")

// Open returns the bucket of a URL such as s3://BUCKET/PREFIX?region=eu-west-1,
// gs://BUCKET/PREFIX, azblob://CONTAINER/PREFIX, as://ACCOUNT/CONTAINER/PREFIX, or
// hf://ORGANIZATION/NAME@REVISION. It does not call the store. The caller closes the bucket.
func Open(ctx context.Context, address string) (*Bucket, error) {
	if strings.HasPrefix(address, hubScheme+"://") {
		h, err := openHub(address, os.Getenv("HF_ENDPOINT"), os.Getenv("HF_TOKEN"))
		if err != nil {
			return nil, fmt.Errorf("model repository: %w", err)
		}
		return &Bucket{url: address, store: h}, nil
	}
	u, err := url.Parse(address)
	if err != nil {
		return nil, fmt.Errorf("model repository: %w", err)
	}
	if u.Scheme == tritonAzureScheme {
		if u, err = azureURL(u); err != nil {
			return nil, fmt.Errorf("model repository: %s: %w", address, err)
		}
	}
	prefix := strings.Trim(u.Path, "/")
	u.Path = ""
	b, err := blob.OpenBucket(ctx, u.String())
	if err != nil {
		return nil, fmt.Errorf("model repository: %s: %w", address, err)
	}
	return New(address, prefix, b), nil
}

// New returns a bucket that is open already, or what it has below a prefix.
func New(address, prefix string, b *blob.Bucket) *Bucket {
	if prefix != "" {
		b = blob.PrefixedBucket(b, prefix+"/")
	}
	address, _, _ = strings.Cut(address, "?") // parameters say how it is reached
	return &Bucket{url: address, store: &blobStore{address, b}}
}

// URL returns the bucket's address without parameters.
func (b *Bucket) URL() string { return b.url }

// Close ends the use of the bucket.
func (b *Bucket) Close() error { return b.store.Close() }

// List returns all objects whose keys begin with prefix. Keys that end with a slash are not files,
// but the markers that some tools make for folders. List omits empty objects that stand for
// directories with objects: Azure's store has those if it has a hierarchical namespace.
func (b *Bucket) List(ctx context.Context, prefix string) ([]Object, error) {
	all, err := b.store.list(ctx, prefix)
	if err != nil {
		return nil, fmt.Errorf("%s cannot be listed: %w", b.url, err)
	}
	parents := map[string]bool{}
	for _, o := range all {
		for dir := path.Dir(o.Key); !parents[dir]; dir = path.Dir(dir) {
			parents[dir] = true
		}
	}
	return slices.DeleteFunc(all, func(o Object) bool { return o.Size == 0 && parents[o.Key] }), nil
}

// identity returns what the content of an object is known by: equal for equal contents as far
// as the store says so.
func (b *Bucket) identity(o Object) string {
	switch {
	case o.sha256 != "":
		return fmt.Sprintf("sha256 %s %d", o.sha256, o.Size)
	case len(o.md5) > 0:
		return fmt.Sprintf("md5 %x %d", o.md5, o.Size)
	}
	return fmt.Sprintf("%s %s %s %d", b.url, o.Key, o.tag, o.Size)
}

// A part is a piece of an object that is being read.
type part struct {
	io.ReadCloser
	plainMD5 bool // the object's md5 is that of its content
}

// A blobStore is a bucket that gocloud.dev has a driver for.
type blobStore struct {
	url  string
	blob *blob.Bucket
}

func (b *blobStore) Close() error { return b.blob.Close() }

func (b *blobStore) list(ctx context.Context, prefix string) ([]Object, error) {
	var all []Object
	for it := b.blob.List(&blob.ListOptions{Prefix: prefix}); ; {
		o, err := it.Next(ctx)
		switch {
		case errors.Is(err, io.EOF):
			return all, nil
		case err != nil:
			return nil, err
		}
		all = append(all, object(o))
	}
}

func object(o *blob.ListObject) Object {
	listed := Object{Key: o.Key, Size: o.Size, md5: o.MD5, modified: o.ModTime}
	listed.version = cmp.Or(s3Version(o.As), googleVersion(o.As), azureVersion(o.As))
	switch {
	case listed.version != "":
		listed.tag = listed.version
	case len(o.MD5) > 0:
		listed.tag = hex.EncodeToString(o.MD5)
	default:
		listed.tag = o.ModTime.UTC().Format(time.RFC3339Nano)
	}
	return listed
}

func (b *blobStore) read(ctx context.Context, o Object, offset, length int64) (part, error) {
	r, err := b.blob.NewRangeReader(ctx, o.Key, offset, length, &blob.ReaderOptions{BeforeRead: func(as func(any) bool) error {
		if o.version != "" {
			s3Pin(as, o.version)
			googlePin(as, o.version)
			azurePin(as, o.version)
		}
		return nil
	}})
	if err != nil {
		if code := gcerrors.Code(err); code == gcerrors.NotFound || code == gcerrors.FailedPrecondition || preconditionFailed(err) {
			return part{}, fmt.Errorf("%s/%s: %w", b.url, o.Key, ErrChanged)
		}
		return part{}, err
	}
	if r.Size() != o.Size || o.version == "" && !r.ModTime().Truncate(time.Second).Equal(o.modified.Truncate(time.Second)) {
		_ = r.Close() // nothing was read from it
		return part{}, fmt.Errorf("%s/%s: %w", b.url, o.Key, ErrChanged)
	}
	return part{ReadCloser: r, plainMD5: s3PlainMD5(r.As)}, nil
}

// preconditionFailed reports whether a store answered 412, for which S3 has no error of its own.
func preconditionFailed(err error) bool {
	answer, ok := errors.AsType[interface {
		error
		HTTPStatusCode() int
	}](err)
	return ok && answer.HTTPStatusCode() == 412
}
