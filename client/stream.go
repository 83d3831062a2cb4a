package client

import (
	"context"
	"errors"
	"fmt"
	"io"

	"google.golang.org/grpc"
	"google.golang.org/protobuf/proto"

	"github.com/shoal-serving/shoal/internal/kserve/kservepb"
)

const (
	// emptyFinal asks for a last response also if it says nothing else.
	emptyFinal = "triton_enable_empty_final_response"

	// finalResponse is the parameter of responses that says whether more follow.
	finalResponse = "triton_final_response"
)

// A Stream sends requests and receives responses over one call. Requests of a stream run
// at the same time. Use it for decoupled models, which answer a request any number of
// times, and to save the cost of a call for each request.
//
// One goroutine may send while another receives. Send and CloseSend must not be called by
// several goroutines at once, and neither must Recv.
type Stream struct {
	messages grpc.BidiStreamingClient[kservepb.ModelInferRequest, kservepb.ModelStreamInferResponse]
	cancel   context.CancelFunc
	closed   bool // by CloseSend
}

func (g *grpcTransport) stream(ctx context.Context) (*Stream, error) {
	streamCtx, cancel := context.WithCancel(g.with(ctx))
	messages, err := g.calls.ModelStreamInfer(streamCtx)
	if err != nil {
		cancel()
		return nil, grpcError(ctx, err, nil)
	}
	return &Stream{messages: messages, cancel: cancel}, nil
}

// Send sends a request. It blocks while the server takes no more, which is why responses
// must be received meanwhile. Set [Request.ID] to match responses to requests.
//
// Send returns [io.EOF] if the stream has ended; Recv returns the reason then. After an error
// with the code [Invalid] or [TooLarge] the request was not sent, and the stream goes on.
// Another error has ended the stream. Send has read the data of the inputs when it returns.
func (s *Stream) Send(req *Request) error {
	if err := req.check(); err != nil {
		return err
	}
	in, err := messageOf(req)
	if err != nil {
		return err
	}
	if in.Parameters[emptyFinal] == nil {
		in.Parameters[emptyFinal] = parameterMessage(true) // marks the last response
	}
	// What follows is an error of grpc, too, but one that ends the stream.
	if s.closed {
		return invalid("the request is sent after CloseSend")
	}
	if size := proto.Size(in); size > maxMessage {
		return &Error{Code: TooLarge, Message: fmt.Sprintf("the request has %d bytes, and the most that gRPC sends are %d", size, maxMessage)}
	}
	switch err := s.messages.Send(in); {
	case err == nil:
		return nil
	case errors.Is(err, io.EOF):
		return io.EOF
	default:
		return grpcError(s.messages.Context(), err, nil)
	}
}

// Recv returns the next response. The last response to a request has Final set; it may
// have no outputs. Responses of models that answer once come in the order of the requests.
//
// If a request failed, Recv returns both a response, which has the ID of the request, and
// an error, whose code is [Unknown] because servers do not send one. The stream goes on.
//
// If the response is nil, the stream has ended: with [io.EOF] if all requests were answered
// after CloseSend, and with another error otherwise.
func (s *Stream) Recv() (*Response, error) {
	out, err := s.messages.Recv()
	if errors.Is(err, io.EOF) {
		return nil, io.EOF
	}
	if err != nil {
		return nil, grpcError(s.messages.Context(), err, s.messages.Trailer())
	}
	resp, err := responseOf(out.GetInferResponse())
	if err != nil {
		s.cancel() // a server that sends what it should not
		return nil, malformed(err)
	}
	final, told := resp.Parameters[finalResponse].(bool)
	resp.Final = final || !told
	delete(resp.Parameters, finalResponse)
	if text := out.GetErrorMessage(); text != "" {
		return resp, &Error{Code: Unknown, Message: text}
	}
	return resp, nil
}

// CloseSend says that no more requests follow. Responses can still be received.
func (s *Stream) CloseSend() error {
	s.closed = true
	return s.messages.CloseSend()
}

// Close ends the stream and frees what it holds. Requests without a response are canceled.
func (s *Stream) Close() { s.cancel() }
