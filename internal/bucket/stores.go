package bucket

import (
	"fmt"
	"net/url"
	"strconv"
	"strings"

	"cloud.google.com/go/storage"
	"github.com/Azure/azure-sdk-for-go/sdk/azcore"
	"github.com/Azure/azure-sdk-for-go/sdk/storage/azblob/blob"
	"github.com/Azure/azure-sdk-for-go/sdk/storage/azblob/container"
	"github.com/aws/aws-sdk-go-v2/service/s3"
	"github.com/aws/aws-sdk-go-v2/service/s3/types"
	_ "gocloud.dev/blob/azureblob" // azblob://
	_ "gocloud.dev/blob/gcsblob"   // gs://
	_ "gocloud.dev/blob/s3blob"    // s3://
)

// What stores do differently is here: what they call the content of an object, and how to ask for
// just that content, so that an object that is replaced while it is read is noticed. Drivers hand
// out their own types: as(&x) sets x, and reports whether the object is of the store of that type.

// s3Version returns the ETag of a listed object, or "" if it is not of S3.
func s3Version(as func(any) bool) string {
	var o types.Object
	if as(&o) && o.ETag != nil {
		return *o.ETag
	}
	return ""
}

// s3Pin makes a read from S3 fail if the object has another version.
func s3Pin(as func(any) bool, version string) {
	var in *s3.GetObjectInput
	if as(&in) {
		in.IfMatch = &version
	}
}

// s3PlainMD5 returns whether the MD5 of an object that is read is that of its content. S3 gives
// objects that it encrypts with other keys than its own an ETag that only looks like one.
func s3PlainMD5(as func(any) bool) bool {
	var out s3.GetObjectOutput
	return !as(&out) || out.SSECustomerAlgorithm == nil && (out.ServerSideEncryption == "" || out.ServerSideEncryption == types.ServerSideEncryptionAes256)
}

// googleVersion returns the generation of a listed object, or "" if it is not of Google's store.
func googleVersion(as func(any) bool) string {
	var o storage.ObjectAttrs
	if as(&o) {
		return strconv.FormatInt(o.Generation, 10)
	}
	return ""
}

// googlePin makes a read from Google's store read that generation.
func googlePin(as func(any) bool, version string) {
	var handle **storage.ObjectHandle
	if as(&handle) {
		generation, _ := strconv.ParseInt(version, 10, 64) // googleVersion has written it
		*handle = (*handle).Generation(generation)
	}
}

// The schemes of Azure's store: the usual one, and Triton's, which has the account, too.
const (
	azureScheme       = "azblob"
	tritonAzureScheme = "as"
)

// azureURL returns azblob://CONTAINER/PREFIX?storage_account=ACCOUNT for as://ACCOUNT/CONTAINER/PREFIX.
func azureURL(u *url.URL) (*url.URL, error) {
	name, prefix, _ := strings.Cut(strings.Trim(u.Path, "/"), "/")
	if u.Host == "" || name == "" {
		return nil, fmt.Errorf("expected %s://ACCOUNT/CONTAINER, or %s://CONTAINER", tritonAzureScheme, azureScheme)
	}
	query := u.Query()
	query.Set("storage_account", u.Host)
	return &url.URL{Scheme: azureScheme, Host: name, Path: "/" + prefix, RawQuery: query.Encode()}, nil
}

// azureVersion returns the ETag of a listed object, or "" if it is not of Azure's store.
func azureVersion(as func(any) bool) string {
	var o container.BlobItem
	if as(&o) && o.Properties != nil && o.Properties.ETag != nil {
		return string(*o.Properties.ETag)
	}
	return ""
}

// azurePin makes a read from Azure's store fail if the object has another version.
func azurePin(as func(any) bool, version string) {
	var options *blob.DownloadStreamOptions
	if as(&options) {
		etag := azcore.ETag(version)
		options.AccessConditions = &blob.AccessConditions{ModifiedAccessConditions: &blob.ModifiedAccessConditions{IfMatch: &etag}}
	}
}
