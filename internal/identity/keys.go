package identity

import (
	"crypto/rand"
	"crypto/sha256"
	"crypto/subtle"
	"encoding/base32"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/shoal-serving/shoal/internal/access"
	"github.com/shoal-serving/shoal/internal/replace"
)

// KeyPrefix begins every API key, so that scanners for leaked secrets find it.
const KeyPrefix = "shoal_"

// keysVersion is the version of the format of the file.
const keysVersion = 1

// A Key is an API key without its secret, as it is kept in a file.
type Key struct {
	ID      string         `json:"id"`
	Name    string         `json:"name"`
	Tenant  string         `json:"tenant,omitempty"`
	Grants  []access.Grant `json:"grants"`
	Created time.Time      `json:"created"`
	Expires time.Time      `json:"expires,omitzero"` // zero means never
	Revoked time.Time      `json:"revoked,omitzero"` // zero means that it is not revoked
	Hash    string         `json:"hash"`             // SHA-256 of the key, in hexadecimal
}

// Usable reports whether the key can be used now.
func (k *Key) Usable(now time.Time) bool {
	return k.Revoked.IsZero() && (k.Expires.IsZero() || now.Before(k.Expires))
}

// Validate returns an error if the key gives no usable rights.
func (k *Key) Validate() error {
	if len(k.Grants) == 0 {
		return fmt.Errorf("key %s has no grants", k.ID)
	}
	for _, g := range k.Grants {
		if err := g.Validate(); err != nil {
			return fmt.Errorf("key %s: %w", k.ID, err)
		}
	}
	return nil
}

// matches reports whether text is the key. The secret has 160 random bits, so a fast hash is
// enough: it cannot be guessed.
func (k *Key) matches(text string) bool {
	sum := sha256.Sum256([]byte(text))
	return subtle.ConstantTimeCompare([]byte(hex.EncodeToString(sum[:])), []byte(k.Hash)) == 1
}

var keyEncoding = base32.StdEncoding.WithPadding(base32.NoPadding)

// randomText returns n random bytes as lower-case letters and digits.
func randomText(n int) string {
	b := make([]byte, n)
	_, _ = rand.Read(b) // never fails
	return strings.ToLower(keyEncoding.EncodeToString(b))
}

// keyID returns the id of an API key: shoal_ID_SECRET.
func keyID(text string) (id string, ok bool) {
	rest, ok := strings.CutPrefix(text, KeyPrefix)
	if !ok {
		return "", false
	}
	id, secret, ok := strings.Cut(rest, "_")
	return id, ok && id != "" && secret != ""
}

type keyFile struct {
	Version int   `json:"version"`
	Keys    []Key `json:"keys"`
}

// ReadKeys reads a file of keys. A file that does not exist has none.
func ReadKeys(path string) ([]Key, error) {
	text, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("cannot read the API keys: %w", err)
	}
	return parseKeys(path, text)
}

func parseKeys(path string, text []byte) ([]Key, error) {
	var file keyFile
	if err := json.Unmarshal(text, &file); err != nil {
		return nil, fmt.Errorf("%s: not a file of API keys: %w", path, err)
	}
	if file.Version != keysVersion {
		return nil, fmt.Errorf("%s: found version %d, expected %d; it was written by another release", path, file.Version, keysVersion)
	}
	for i := range file.Keys {
		if err := file.Keys[i].Validate(); err != nil {
			return nil, fmt.Errorf("%s: %w", path, err)
		}
	}
	return file.Keys, nil
}

// CreateKey adds a key to the file at path, and returns the key itself, which is not kept
// and cannot be shown again. It sets ID, Created and Hash.
func CreateKey(path string, k Key, now time.Time) (created Key, secret string, err error) {
	if secret, err = k.generate(now); err != nil {
		return Key{}, "", err
	}
	err = changeKeys(path, func(keys []Key) ([]Key, error) { return append(keys, k), nil })
	return k, secret, err
}

// CreateFirstKey is like CreateKey, but adds no key to a file that has one, be it revoked or
// expired. Then the secret is empty. Of several processes that share a file, one adds a key.
func CreateFirstKey(path string, k Key, now time.Time) (secret string, err error) {
	generated, err := k.generate(now)
	if err != nil {
		return "", err
	}
	err = changeKeys(path, func(keys []Key) ([]Key, error) {
		if len(keys) == 0 {
			keys, secret = []Key{k}, generated
		}
		return keys, nil
	})
	return secret, err
}

// generate sets ID, Created and Hash, and returns the key itself.
func (k *Key) generate(now time.Time) (secret string, err error) {
	k.ID, k.Created = randomText(5), now.UTC().Truncate(time.Second)
	secret = KeyPrefix + k.ID + "_" + randomText(20)
	sum := sha256.Sum256([]byte(secret))
	k.Hash = hex.EncodeToString(sum[:])
	return secret, k.Validate()
}

// RevokeKey revokes the key with the given id. It stays in the file, so that its name is
// known.
func RevokeKey(path, id string, now time.Time) (revoked Key, err error) {
	err = changeKeys(path, func(keys []Key) ([]Key, error) {
		i := slices.IndexFunc(keys, func(k Key) bool { return k.ID == id })
		if i < 0 {
			return nil, fmt.Errorf("there is no key with id %q in %s; `shoal keys list` shows the ids", id, path)
		}
		if keys[i].Revoked.IsZero() {
			keys[i].Revoked = now.UTC().Truncate(time.Second)
		}
		revoked = keys[i]
		return keys, nil
	})
	return revoked, err
}

// changeKeys replaces the keys of a file. The file is written beside the old one and renamed,
// so that a reader never finds half of it, and a lock lets one process at a time change it.
func changeKeys(path string, change func([]Key) ([]Key, error)) error {
	lock, err := os.OpenFile(path+".lock", os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return fmt.Errorf("cannot change the API keys: %w", err)
	}
	defer func() { _ = lock.Close() }() // releases the lock
	if old, err := os.Stat(path); err == nil {
		replace.Own(lock, old) // root's lock must not keep the owner of the keys from changing them
	}
	if err := unix.Flock(int(lock.Fd()), unix.LOCK_EX); err != nil {
		return fmt.Errorf("cannot lock %s: %w", lock.Name(), err)
	}
	keys, err := ReadKeys(path)
	if err != nil {
		return err
	}
	if keys, err = change(keys); err != nil {
		return err
	}
	text, err := json.MarshalIndent(keyFile{keysVersion, keys}, "", "  ")
	if err != nil {
		return err
	}
	if err := replace.File(path, append(text, '\n'), ""); err != nil {
		return fmt.Errorf("cannot write the API keys: %w", err)
	}
	return nil
}
