package main

import (
	"bytes"
	"context"
	"net"
	"strconv"
	"strings"
	"testing"
	"time"
)

func TestADemoThatFailsWaitsForItsServer(t *testing.T) {
	models := directory(t, map[string]string{ // without a request
		"magika/1/none": "",
		"magika/config.pbtxt": `backend: "simulated"
			input [ { name: "x" data_type: TYPE_FP32 dims: [ 1 ] } ] output [ { name: "x" data_type: TYPE_FP32 dims: [ 1 ] } ]`,
	})
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	port, err := freePort(ctx)
	if err != nil {
		t.Fatal(err)
	}
	var out bytes.Buffer // not safe while the server runs
	if err := runDemo(ctx, demoOptions{port: port, clients: 1, noBrowser: true}, models, &out, &out); err == nil || !strings.Contains(err.Error(), "request.json") {
		t.Errorf("got %v, want that there is no request.json", err)
	}
	if l, err := net.Listen("tcp", net.JoinHostPort("127.0.0.1", strconv.Itoa(port))); err != nil {
		t.Errorf("the server still runs: %v", err)
	} else if err := l.Close(); err != nil {
		t.Error(err)
	}
}
