package main

import (
	"fmt"
	"strconv"
	"strings"

	"github.com/shoal-serving/shoal/internal/cache"
)

// cacheFlag is Triton's flag for the response cache.
const cacheFlag = "cache-config"

// newCache returns the response cache that values of the flag ask for; nil if there are none.
func newCache(values []string) (*cache.Cache, error) {
	switch {
	case len(values) == 0:
		return nil, nil
	case len(values) > 1:
		return nil, fmt.Errorf("--%s: %d values, but there is one cache: give one", cacheFlag, len(values))
	}
	name, setting, _ := strings.Cut(values[0], ",")
	if name != "local" {
		return nil, fmt.Errorf("--%s: %q is not valid: the only cache is local, in the server's memory; expected local,size=BYTES", cacheFlag, values[0])
	}
	size, ok := strings.CutPrefix(setting, "size=")
	n, err := strconv.ParseInt(size, 10, 64)
	if !ok || err != nil || n < 1 {
		return nil, fmt.Errorf("--%s: %q is not valid: expected local,size=BYTES, such as local,size=1048576", cacheFlag, values[0])
	}
	return cache.New(n), nil
}
