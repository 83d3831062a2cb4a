package bench

import (
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"sync"

	"google.golang.org/grpc"
	"google.golang.org/grpc/mem"
	"google.golang.org/protobuf/encoding/protowire"

	"github.com/shoal-serving/shoal/internal/kserve/kservepb"
)

// A stream sends requests over one streaming call, and matches answers to requests by id.
// The first request opens the call, as does the next one after an error that ended it.
type stream struct {
	reading sync.WaitGroup // one goroutine for each opened call

	sending sync.Mutex // held while a request is sent; taken before mu

	// The reader needs mu to go on, and a server may stop reading requests until its answers are
	// read. So mu is not held while a request is sent.
	mu   sync.Mutex // guards the following
	open *openStream
	sent uint64
}

// An openStream is one call, with the requests that wait for answers over it.
type openStream struct {
	grpc.ClientStream
	cancel  context.CancelFunc
	waiting map[string]chan error // by id, each of size 1; guarded by the stream's lock
}

// infer sends a request with a unique id, and waits for the answer.
func (s *stream) infer(ctx context.Context, conn grpc.ClientConnInterface, request mem.BufferSlice) error {
	open, answered, id, err := s.send(ctx, conn, request)
	if err != nil {
		return err
	}
	select {
	case err := <-answered:
		return err
	case <-ctx.Done():
		s.forget(open, id, false)
		return ctx.Err()
	}
}

var streamDesc = &kservepb.GRPCInferenceService_ServiceDesc.Streams[0]

// send sends a request over the open stream. If the server has ended the stream before the
// request was sent, it opens another one and tries once more. If ctx ends while the server does
// not read the request, it ends the stream, because half of a request cannot be taken back.
func (s *stream) send(ctx context.Context, conn grpc.ClientConnInterface, request mem.BufferSlice) (*openStream, <-chan error, string, error) {
	s.sending.Lock()
	defer s.sending.Unlock()
	for again := false; ; again = true {
		if err := ctx.Err(); err != nil { // while others were sent
			return nil, nil, "", err
		}
		open, answered, head, id, err := s.expect(conn)
		if err != nil {
			return nil, nil, "", err
		}
		stop := context.AfterFunc(ctx, open.cancel)
		err = open.SendMsg(append(mem.BufferSlice{mem.SliceBuffer(head)}, request...))
		stop()
		if err == nil || errors.Is(err, io.EOF) && again { // the reader of the stream reports its error
			return open, answered, id, nil
		}
		s.forget(open, id, errors.Is(err, io.EOF))
		if !errors.Is(err, io.EOF) {
			return nil, nil, "", err
		}
	}
}

// expect returns the open stream, which now waits for an answer to a new id, and that id with its
// encoding.
func (s *stream) expect(conn grpc.ClientConnInterface) (open *openStream, answered <-chan error, head []byte, id string, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if open, err = s.openLocked(conn); err != nil {
		return nil, nil, nil, "", err
	}
	s.sent++
	head, id = requestID(s.sent)
	waits := make(chan error, 1)
	open.waiting[id] = waits
	return open, waits, head, id, nil
}

// forget stops waiting for an answer, and if the stream has ended lets the next request open
// another one.
func (s *stream) forget(open *openStream, id string, ended bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(open.waiting, id)
	if ended && s.open == open {
		s.open = nil
	}
}

// openLocked returns the open stream, and opens one first if there is none.
func (s *stream) openLocked(conn grpc.ClientConnInterface) (*openStream, error) {
	if s.open != nil {
		return s.open, nil
	}
	// The stream outlives the request that opens it, and ends with the connection.
	ctx, cancel := context.WithCancel(context.Background())
	call, err := conn.NewStream(ctx, streamDesc, kservepb.GRPCInferenceService_ModelStreamInfer_FullMethodName, grpc.ForceCodecV2(encoded{}))
	if err != nil {
		cancel()
		return nil, err
	}
	open := &openStream{ClientStream: call, cancel: cancel, waiting: map[string]chan error{}}
	s.open = open
	s.reading.Go(func() { s.read(open) })
	return open, nil
}

// requestID returns a new id and its encoding, which is prepended to an encoded request:
// the fields of a message may be in any order.
func requestID(n uint64) (head []byte, id string) {
	const field = 3 // ModelInferRequest.id
	var raw [8]byte
	for i := range raw {
		raw[i] = byte(n >> (56 - 8*i))
	}
	id = hex.EncodeToString(raw[:])
	head = protowire.AppendTag(make([]byte, 0, 2+len(id)), field, protowire.BytesType)
	return protowire.AppendString(head, id), id
}

// read distributes the answers of a stream until it ends.
func (s *stream) read(open *openStream) {
	for {
		var r reply
		if err := open.RecvMsg(&r); err != nil {
			s.end(open, err)
			return
		}
		s.mu.Lock()
		if r.id == "" && r.err != nil {
			// An error without an id applies to all requests.
			for id, answered := range open.waiting {
				answered <- r.err
				delete(open.waiting, id)
			}
		}
		if answered := open.waiting[r.id]; answered != nil {
			answered <- r.err
			delete(open.waiting, r.id)
		}
		s.mu.Unlock()
	}
}

// end passes err to all waiting requests, and lets the next request open a new stream.
func (s *stream) end(open *openStream, err error) {
	if errors.Is(err, io.EOF) {
		err = errors.New("the server ended the stream")
	}
	open.cancel()
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, answered := range open.waiting {
		answered <- err
	}
	open.waiting = nil
	if s.open == open {
		s.open = nil
	}
}

// wait returns when all readers have ended. The connection must be closed.
func (s *stream) wait() { s.reading.Wait() }

// A reply is the relevant part of a ModelStreamInferResponse.
type reply struct {
	id  string
	err error
}

// read decodes the id and the error of a message, and skips the rest.
func (r *reply) read(message []byte) error {
	const errorMessage, inferResponse, id = 1, 2, 3
	return fields(message, func(number protowire.Number, value []byte) error {
		switch number {
		case errorMessage:
			if len(value) > 0 {
				r.err = errors.New(string(value))
			}
		case inferResponse:
			return fields(value, func(number protowire.Number, value []byte) error {
				if number == id {
					r.id = string(value)
				}
				return nil
			})
		}
		return nil
	})
}

// fields calls f with each field of a message that is text, bytes or a message.
func fields(message []byte, f func(protowire.Number, []byte) error) error {
	for len(message) > 0 {
		number, kind, n := protowire.ConsumeTag(message)
		if n < 0 {
			return fmt.Errorf("a message of the stream: %w", protowire.ParseError(n))
		}
		message = message[n:]
		if n = protowire.ConsumeFieldValue(number, kind, message); n < 0 {
			return fmt.Errorf("a message of the stream: %w", protowire.ParseError(n))
		}
		if kind == protowire.BytesType {
			value, _ := protowire.ConsumeBytes(message)
			if err := f(number, value); err != nil {
				return err
			}
		}
		message = message[n:]
	}
	return nil
}
