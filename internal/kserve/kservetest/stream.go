package kservetest

import (
	"context"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"strconv"
	"strings"

	"github.com/shoal-serving/shoal/internal/infer"
	"github.com/shoal-serving/shoal/tensor"
)

// RecordedStream answers requests to the recorded decoupled models, and returns nil for
// others. It is meant for [Server.Stream]. "repeat" counts up to its input, and fails if
// that is negative. "d" carries out the actions of a JSON list:
//
//   - r:1,2 sends a response with these numbers, R:1,2 a final one
//   - e:CODE:text sends an error, E:CODE:text a final one
//   - final ends the responses
func RecordedStream(req *infer.Request) infer.ResponseStream {
	s := &scripted{model: req.Model}
	switch req.Model {
	case "repeat":
		s.output = "INDEX"
		count := int32(binary.LittleEndian.Uint32(req.Inputs[0].Data))
		for i := range count {
			s.actions = append(s.actions, fmt.Sprint("r:", i))
		}
		s.actions = append(s.actions, "final")
		if count < 0 {
			s.actions = []string{"E:INTERNAL:negative count"}
		}
	case "d":
		s.output = "OUT"
		for text := range req.Inputs[0].Strings() {
			if err := json.Unmarshal(text, &s.actions); err != nil {
				s.actions = []string{"E:INTERNAL:" + err.Error()}
			}
		}
	default:
		return nil
	}
	return s
}

type scripted struct {
	model, output string
	actions       []string
}

var codes = map[string]infer.Code{"INVALID_ARG": infer.Invalid, "UNAVAILABLE": infer.Unavailable, "INTERNAL": infer.Internal}

// Next implements [infer.ResponseStream].
func (s *scripted) Next(_ context.Context, resp *infer.Response) error {
	kind, value, _ := strings.Cut(s.actions[0], ":")
	s.actions = s.actions[1:]
	*resp = infer.Response{Model: s.model, Version: "1", Last: len(s.actions) == 0 || kind == "R" || kind == "E", Empty: kind == "final"}
	switch kind {
	case "e", "E":
		code, text, _ := strings.Cut(value, ":")
		return infer.Errorf(codes[code], "%s", text)
	case "r", "R":
		out := tensor.Tensor{Name: s.output, Type: tensor.Int32, Shape: []int64{0}}
		for number := range strings.SplitSeq(value, ",") {
			n, err := strconv.Atoi(number)
			if err != nil {
				return err
			}
			out.Data = binary.LittleEndian.AppendUint32(out.Data, uint32(n))
			out.Shape[0]++
		}
		resp.Outputs = []tensor.Tensor{out}
	}
	return nil
}

// Close implements [infer.ResponseStream].
func (s *scripted) Close() {}
