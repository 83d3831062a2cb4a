package onnx

import (
	"bufio"
	"encoding/binary"
	"fmt"
	"io"
	"os"
	"path/filepath"

	"google.golang.org/protobuf/encoding/protowire"

	"github.com/shoal-serving/shoal/internal/engine"
	"github.com/shoal-serving/shoal/internal/modelconfig"
)

// Loading needs at its peak peakNumerator/peakDenominator times the size of a model's
// files: the library reads the weights into memory and copies them into the layout for
// computing before it frees the first copy. In MiB, with ONNX Runtime 1.30:
//
//	                                  files   peak   loaded
//	ResNet-50                          97.4    217      111
//	a matrix of 5000 by 5000           95.4    191       96
//	the same, in a file of its own     95.4    191       96
//	models of a few kilobytes           0.0      0        0
//
// The estimate is too low for a model that computes its weights from a few numbers when it
// is loaded: one with a file of 1 MiB took 66 MiB.
const (
	peakNumerator   = 9
	peakDenominator = 4
)

// Size implements [engine.Sizer].
func (e *Engine) Size(src engine.Source) (int64, error) {
	size, err := scan(fileOf(src))
	if err != nil {
		return 0, err
	}
	peak := size / peakDenominator * peakNumerator
	if src.ExclusiveThreads == 0 {
		return peak, nil
	}
	// The second session packs a weight before it finds the packed one of the first. That is
	// one weight at a time, but a model may consist of one.
	return peak + size, nil
}

// scan returns the size of a model's file and of its external weight files, or an error
// if the file is not an ONNX model.
func scan(file string) (size int64, err error) {
	s, err := scanFile(file)
	if err != nil {
		return 0, err
	}
	size = s.size
	for name := range s.external {
		// A file that is missing or outside of the directory does not count here; the
		// library rejects it.
		if other, err := os.Stat(filepath.Join(filepath.Dir(file), name)); err == nil && filepath.IsLocal(name) {
			size += other.Size()
		}
	}
	return size, nil
}

// scanFile returns a scanner that has read the file of a model.
func scanFile(file string) (*scanner, error) {
	f, err := os.Open(file)
	if err != nil {
		return nil, missingFile(file, err)
	}
	defer func() { _ = f.Close() }() // read-only, so there is nothing to lose
	info, err := f.Stat()
	if err != nil {
		return nil, missingFile(file, err)
	}
	s := &scanner{file: f, buffer: bufio.NewReader(f), size: info.Size(), external: map[string]bool{}, weights: map[string]bool{}}
	err = s.message(s.size, inModel)
	if err == nil && !s.hasGraph {
		err = errNoGraph
	}
	if err != nil {
		return nil, notAModel(file, err)
	}
	return s, nil
}

// A scanner finds the names of a model's external weight files, and its inputs and outputs,
// in its ONNX file, a protocol buffer. It skips embedded weights, which are most of such a
// file.
type scanner struct {
	file     *os.File
	buffer   *bufio.Reader
	size     int64           // of the file
	at       int64           // offset in the file
	key      string          // of the current entry
	external map[string]bool // names of external files
	weights  map[string]bool // names of the model's weights
	hasGraph bool            // the graph of the model has begun
	depth    int             // of the message that is read

	inputs, outputs []modelconfig.Tensor // of the model's graph; inputs may be weights, too
}

// A message is a type of message that is read.
type message uint8

const (
	skipped message = iota
	inModel
	inMain   // the graph of the model
	inGraph  // a graph within a node
	inWeight // a tensor of the graph of the model
	inInput  // of the graph of the model
	inOutput // of the graph of the model
	inNode
	inAttribute
	inFunction
	inTensor
	inEntry
)

// nestedMessages are the fields of each message that are read.
var nestedMessages = map[message]map[protowire.Number]message{
	inModel:     {7: inMain, 25: inFunction},
	inMain:      {1: inNode, 5: inWeight, 11: inInput, 12: inOutput},
	inWeight:    {13: inEntry},
	inGraph:     {1: inNode, 5: inTensor},
	inNode:      {5: inAttribute},
	inAttribute: {5: inTensor, 6: inGraph, 10: inTensor, 11: inGraph},
	inFunction:  {7: inNode},
	inTensor:    {13: inEntry},
}

// maxDepth is how deep protobuf's own reader lets messages be nested.
const maxDepth = 100

// message reads the fields of a message that ends at offset end.
func (s *scanner) message(end int64, in message) error {
	if s.depth++; s.depth > maxDepth {
		return fmt.Errorf("messages are nested deeper than %d levels", maxDepth)
	}
	defer func() { s.depth-- }()
	for s.at < end {
		tag, err := binary.ReadUvarint(s)
		if err != nil {
			return err
		}
		field, kind := protowire.DecodeTag(tag)
		switch kind {
		case protowire.VarintType:
			_, err = binary.ReadUvarint(s)
		case protowire.Fixed32Type:
			err = s.skip(4)
		case protowire.Fixed64Type:
			err = s.skip(8)
		case protowire.BytesType:
			err = s.field(end, field, in)
		default:
			err = fmt.Errorf("field %d is of kind %d", field, kind)
		}
		if err != nil {
			return err
		}
	}
	if s.at > end {
		return io.ErrUnexpectedEOF
	}
	return nil
}

// field reads a length-delimited field of a message that ends at offset end.
func (s *scanner) field(end int64, field protowire.Number, in message) error {
	length, err := binary.ReadUvarint(s)
	if err != nil {
		return err
	}
	if length > uint64(max(0, end-s.at)) {
		return io.ErrUnexpectedEOF
	}
	to := nestedMessages[in][field]
	s.hasGraph = s.hasGraph || to == inMain
	switch {
	case in == inEntry:
		return s.entry(int64(length), field)
	case in == inWeight && field == 8:
		name, err := s.text(int64(length))
		s.weights[string(name)] = true
		return err
	case to == inInput:
		return s.port(int64(length), &s.inputs)
	case to == inOutput:
		return s.port(int64(length), &s.outputs)
	case to == skipped:
		return s.skip(int64(length))
	}
	return s.message(s.at+int64(length), to)
}

// entry reads the key or the value of a key-value pair. The key comes first.
func (s *scanner) entry(length int64, field protowire.Number) error {
	text, err := s.text(length)
	switch {
	case err != nil || text == nil:
		return err
	case field == 1:
		s.key = string(text)
	case field == 2 && s.key == "location":
		s.external[string(text)] = true
	}
	return nil
}

// text returns the next bytes of the file, or nil if there are more than a path, a name or
// the description of an input has. It skips those.
func (s *scanner) text(length int64) ([]byte, error) {
	const longest = 4096
	if length > longest {
		return nil, s.skip(length)
	}
	text := make([]byte, length)
	n, err := io.ReadFull(s.buffer, text)
	s.at += int64(n)
	return text, err
}

// ReadByte implements [io.ByteReader], for binary.ReadUvarint.
func (s *scanner) ReadByte() (byte, error) {
	b, err := s.buffer.ReadByte()
	if err == nil {
		s.at++
	}
	return b, err
}

// skip skips n bytes. It does not read those that are not in the buffer yet.
func (s *scanner) skip(n int64) error {
	s.at += n
	if n <= int64(s.buffer.Buffered()) {
		_, err := s.buffer.Discard(int(n))
		return err
	}
	_, err := s.file.Seek(s.at, io.SeekStart)
	s.buffer.Reset(s.file)
	return err
}
