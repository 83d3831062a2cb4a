//go:build e2e && linux

package e2e

import (
	"encoding/base64"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/Azure/azure-sdk-for-go/sdk/storage/azblob/container"
	"gocloud.dev/blob"
	_ "gocloud.dev/blob/azureblob" // azblob://
	_ "gocloud.dev/blob/gcsblob"   // gs://

	"github.com/shoal-serving/shoal/test/servertest"
)

// tool returns the path of a program that tools/get-cloud-stores brings, and skips the test if it
// is not there.
func tool(t *testing.T, path ...string) string {
	t.Helper()
	file := filepath.Join(append([]string{servertest.Root, "bin"}, path...)...)
	if _, err := os.Stat(file); err != nil {
		t.Skipf("%v; run tools/get-cloud-stores", err)
	}
	return file
}

// openBucket opens a bucket until the test ends.
func openBucket(t *testing.T, url string) *blob.Bucket {
	t.Helper()
	b, err := blob.OpenBucket(t.Context(), url)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = b.Close() })
	return b
}

// startGoogle starts a server that answers as Google Cloud Storage, with an empty bucket. It returns
// the bucket, and URLs of its folder m.
func startGoogle(t *testing.T) (b *blob.Bucket, urls []string) {
	t.Helper()
	program, address := tool(t, "fake-gcs-server"), servertest.FreeAddress(t)
	host, port, _ := strings.Cut(address, ":")
	servertest.RunTool(t, address, program, "-scheme", "http", "-host", host, "-port", port, "-public-host", address, "-backend", "memory", "-log-level", "error")
	t.Setenv("STORAGE_EMULATOR_HOST", address)
	req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, "http://"+address+"/storage/v1/b?project=p", strings.NewReader(`{"name": "models"}`))
	if err != nil {
		t.Fatal(err)
	}
	if status, _, body, err := servertest.Fetch(req); err != nil || status != http.StatusOK {
		t.Fatalf("status %d, %v: %s", status, err, body)
	}
	return openBucket(t, "gs://models"), []string{"gs://models/m"}
}

// startAzure starts a server that answers as Azure Blob Storage, and returns what startGoogle does.
func startAzure(t *testing.T) (b *blob.Bucket, urls []string) {
	t.Helper()
	program, address := tool(t, "azurite", "node_modules", "azurite", "dist", "src", "blob", "main.js"), servertest.FreeAddress(t)
	host, port, _ := strings.Cut(address, ":")
	key := base64.StdEncoding.EncodeToString([]byte("a key of this test"))
	for name, value := range map[string]string{"AZURITE_ACCOUNTS": "account:" + key, "AZURE_STORAGE_ACCOUNT": "account", "AZURE_STORAGE_KEY": key} {
		t.Setenv(name, value)
	}
	servertest.RunTool(t, address, "node", program, "--blobHost", host, "--blobPort", port, "--inMemoryPersistence", "--silent", "--skipApiVersionCheck", "--disableTelemetry")
	where := "?protocol=http&localemu=true&domain=" + address
	b = openBucket(t, "azblob://models"+where)
	var created *container.Client
	if !b.As(&created) {
		t.Fatal("the bucket is not one of Azure")
	}
	if _, err := created.Create(t.Context(), nil); err != nil {
		t.Fatal(err)
	}
	return b, []string{"azblob://models/m" + where, "as://account/models/m" + where}
}

// Models of Google's and Azure's stores are served as those of S3 are, and objects that are replaced
// after they were listed are not mixed with new ones.
func TestModelsOfOtherClouds(t *testing.T) {
	for name, start := range map[string]func(*testing.T) (*blob.Bucket, []string){"Google": startGoogle, "Azure": startAzure} {
		t.Run(name, func(t *testing.T) {
			b, urls := start(t)
			store := &objectStore{t: t, blob: b}
			for i, url := range urls {
				store.put("warm", byte(i))
				store.put("changed", byte(10+i))
				s := servertest.Start(t, url, "--model-control-mode=demand", "--model-memory=1GiB", "--calibration-dir=", "--model-cache="+t.TempDir(), "--repository-poll-secs=3600")
				c := s.Client()
				if err := servertest.Ask(t.Context(), c, "warm", 1); err != nil {
					t.Errorf("%s: %v", url, err)
				}
				store.put("changed", byte(20+i))
				if err := servertest.Ask(t.Context(), c, "changed", 1); err == nil || !strings.Contains(err.Error(), "replaced") {
					t.Errorf("%s: an object was replaced: %v", url, err)
				}
				servertest.Eventually(t, "the new objects are served", func() bool { return servertest.Ask(t.Context(), c, "changed", 1) == nil })
			}
		})
	}
}
