package kserve

import (
	"sync"

	"github.com/shoal-serving/shoal/internal/infer"
)

var responses = sync.Pool{New: func() any { return new(infer.Response) }}

// GetResponse returns a response for one request. It may have been another's: Infer sets
// what it says. The caller gives it back with [PutResponse].
func GetResponse() *infer.Response { return responses.Get().(*infer.Response) }

// PutResponse takes back a response that was released, or that Infer returned an error
// for.
func PutResponse(resp *infer.Response) { responses.Put(resp) }
