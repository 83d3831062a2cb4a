package kservehttp_test

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/shoal-serving/shoal/internal/kserve"
)

// All responses use one connection, for which the kernel counts the segments received with
// data. Over the loopback interface, a single write arrives as one segment, up to a size
// that the kernel chooses.
func TestAnAnswerGoesOutInOneWrite(t *testing.T) {
	server := newBinaryServer(t)
	conn, err := net.Dial("tcp", server.Listener.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() }) // so that the server does not wait for it
	in := bufio.NewReaderSize(conn, 1<<20)
	for _, size := range []int{1, 2_000, 4_096, 8_000, 8_192, 20_000, 1 << 20} {
		doc, data := binaryBody(size)
		before := segments(t, conn)
		_, err := fmt.Fprintf(conn, "POST /v2/models/large/infer HTTP/1.1\r\nHost: x\r\n%s: %d\r\nContent-Length: %d\r\n\r\n%s%s",
			kserve.JSONLengthHeader, len(doc), len(doc)+len(data), doc, data)
		if err != nil {
			t.Fatal(err)
		}
		resp, err := http.ReadResponse(in, nil)
		if err != nil {
			t.Fatal(err)
		}
		answer, err := io.ReadAll(resp.Body)
		if err = errors.Join(err, resp.Body.Close()); err != nil || !strings.HasSuffix(string(answer), "]}"+string(data)) {
			t.Fatalf("%d bytes: %v, %s, %.200s", size, err, resp.Status, answer)
		}
		if n := segments(t, conn) - before; n != 1 && size <= 20_000 {
			t.Errorf("an answer with %d bytes came in %d pieces, want one", size, n)
		}
	}
}

// segments returns the number of segments received with data.
func segments(t *testing.T, conn net.Conn) uint32 {
	t.Helper()
	raw, err := conn.(*net.TCPConn).SyscallConn()
	if err != nil {
		t.Fatal(err)
	}
	var info *unix.TCPInfo
	failed := raw.Control(func(fd uintptr) { info, err = unix.GetsockoptTCPInfo(int(fd), unix.IPPROTO_TCP, unix.TCP_INFO) })
	if failed != nil || err != nil {
		t.Fatal(failed, err)
	}
	return info.Data_segs_in
}
