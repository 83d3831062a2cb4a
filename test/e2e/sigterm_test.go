//go:build e2e && linux

package e2e

import (
	"bufio"
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/shoal-serving/shoal/client"
	"github.com/shoal-serving/shoal/test/servertest"
)

var sigtermRounds = flag.Int("sigterm-rounds", 2, "how often a server is stopped under load")

// TestSIGTERMAnswersOrRefusesEveryRequest stops a server under 64 HTTP and 64 gRPC clients
// that keep asking until they are refused. None gets neither an answer nor a refusal.
func TestSIGTERMAnswersOrRefusesEveryRequest(t *testing.T) {
	var total restless
	for range *sigtermRounds {
		s := servertest.Start(t, servertest.Repository(t, map[string]string{"m": servertest.Config(2*time.Millisecond, "2", "dynamic_batching { }")}))
		r := &restless{s: s}
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		var clients sync.WaitGroup
		for range 64 {
			clients.Go(func() { r.overHTTP(ctx, t) })
			clients.Go(func() { r.overGRPC(ctx, t) })
		}
		for r.answered.Load() < 1000 && ctx.Err() == nil {
			time.Sleep(10 * time.Millisecond)
		}
		s.Terminate()
		r.signalled.Store(true)
		clients.Wait()
		cancel()
		if !s.EndsWithin(20*time.Second) || s.Err != nil {
			t.Errorf("the server ended: %v\n%s", s.Err, s.Log())
		}
		total.answered.Add(r.answered.Load())
		total.refused.Add(r.refused.Load())
		total.gone.Add(r.gone.Load())
	}
	t.Logf("%d rounds: %d requests answered, %d answered with a refusal, %d clients ended by a closed port",
		*sigtermRounds, total.answered.Load(), total.refused.Load(), total.gone.Load())
	if total.refused.Load() == 0 {
		t.Error("no request was refused: the clients did not ask while the server stopped")
	}
}

// restless are clients that keep asking.
type restless struct {
	s                       *servertest.Server
	signalled               atomic.Bool
	answered, refused, gone atomic.Int64
}

// overHTTP asks on connections of its own, because net/http's client would hide some
// failures by asking again.
func (r *restless) overHTTP(ctx context.Context, t *testing.T) {
	for ctx.Err() == nil {
		c, err := net.DialTimeout("tcp", strings.TrimPrefix(r.s.HTTP, "http://"), 10*time.Second)
		if errors.Is(err, syscall.ECONNREFUSED) && r.signalled.Load() {
			r.gone.Add(1)
			return
		}
		if err == nil {
			err = r.askOn(c)
		}
		if err != nil {
			t.Errorf("HTTP: a request without an answer: %v", err)
			return
		}
	}
}

// askOn asks until the server wants to have the connection closed.
func (r *restless) askOn(c net.Conn) error {
	defer func() { _ = c.Close() }()
	const body = `{"inputs":[{"name":"INPUT","datatype":"FP32","shape":[1,4],"data":[1,2,3,4]}]}`
	request := fmt.Sprintf("POST /v2/models/m/infer HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n\r\n%s", len(body), body)
	from := bufio.NewReader(c)
	for {
		_ = c.SetDeadline(time.Now().Add(30 * time.Second))
		if _, err := io.WriteString(c, request); err != nil {
			return err
		}
		resp, err := http.ReadResponse(from, nil)
		if err != nil {
			return err
		}
		_, err = io.Copy(io.Discard, resp.Body)
		if err := errors.Join(err, resp.Body.Close()); err != nil {
			return err
		}
		switch resp.StatusCode {
		case http.StatusOK:
			r.answered.Add(1)
		case http.StatusServiceUnavailable, http.StatusTooManyRequests:
			r.refused.Add(1)
			time.Sleep(20 * time.Millisecond)
		default:
			return fmt.Errorf("status %d", resp.StatusCode)
		}
		if resp.Close {
			return nil
		}
	}
}

func (r *restless) overGRPC(ctx context.Context, t *testing.T) {
	c := r.s.Client()
	for ctx.Err() == nil {
		err := servertest.Ask(ctx, c, "m", 1)
		switch text := servertest.Sentence(err); {
		case err == nil:
			r.answered.Add(1)
		case strings.Contains(text, "connection refused") && r.signalled.Load():
			r.gone.Add(1)
			return
		case errors.Is(err, client.Unavailable) && strings.Contains(text, "Server is stopping"), errors.Is(err, client.Overloaded):
			r.refused.Add(1)
			time.Sleep(20 * time.Millisecond)
		default:
			t.Errorf("gRPC: a request without an answer: %v", err)
			return
		}
	}
}
