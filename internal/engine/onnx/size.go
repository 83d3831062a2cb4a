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
	"github.com/shoal-serving/shoal/internal/infer"
)

// Loading takes so many times the size of a model's files, at its peak: weights
// are read into memory, and then copied into the order in which they are computed
// with, before the first copy is given up. In MiB, with ONNX Runtime 1.30:
//
//	                                  files   peak   loaded
//	ResNet-50                          97.4    217      111
//	a matrix of 5000 by 5000           95.4    191       96
//	the same, in a file of its own     95.4    191       96
//	models of a few kilobytes           0.0      0        0
//
// A model that computes its weights from a few numbers when it is loaded cannot be
// told from its size: one of 1 MiB took 66.
const (
	peakNumerator   = 9
	peakDenominator = 4
)

// Size implements [engine.Sizer].
func (e *Engine) Size(src engine.Source) (int64, error) {
	file := fileOf(src)
	f, err := os.Open(file)
	if err != nil {
		return 0, missing(err)
	}
	defer func() { _ = f.Close() }() // it was only read
	info, err := f.Stat()
	if err != nil {
		return 0, missing(err)
	}
	s := scanner{file: f, buffer: bufio.NewReader(f), external: map[string]bool{}}
	if err := s.message(info.Size(), inModel); err != nil {
		return 0, infer.Errorf(infer.Invalid, "%s: found no ONNX model, expected one: %w", file, err)
	}
	size := info.Size()
	for name := range s.external {
		// One that is not there, or outside of the folder, is for the library to
		// refuse.
		if other, err := os.Stat(filepath.Join(filepath.Dir(file), name)); err == nil && filepath.IsLocal(name) {
			size += other.Size()
		}
	}
	peak := size / peakDenominator * peakNumerator
	if src.ExclusiveThreads == 0 {
		return peak, nil
	}
	return peak + size, nil // one session is loaded, and stays, while the other is at its peak
}

// A scanner reads an ONNX file for the names of the files that weights are in. It
// is a protocol buffer, of which weights inside it are most; they are skipped.
type scanner struct {
	file     *os.File
	buffer   *bufio.Reader
	at       int64  // in the file
	key      string // of the entry that is read
	external map[string]bool
}

// A message is one of those on the way from a model to its tensors.
type message uint8

const (
	nothing message = iota
	inModel
	inGraph
	inNode
	inAttribute
	inFunction
	inTensor
	inEntry
)

// inside says which fields of a message lead on.
var inside = map[message]map[protowire.Number]message{
	inModel:     {7: inGraph, 25: inFunction},
	inGraph:     {1: inNode, 5: inTensor},
	inNode:      {5: inAttribute},
	inAttribute: {5: inTensor, 6: inGraph, 10: inTensor, 11: inGraph},
	inFunction:  {7: inNode},
	inTensor:    {13: inEntry},
}

// message reads a message up to its end.
func (s *scanner) message(end int64, in message) error {
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

// field reads a field that has a length, and is in a message that ends at end.
func (s *scanner) field(end int64, field protowire.Number, in message) error {
	length, err := binary.ReadUvarint(s)
	if err != nil {
		return err
	}
	if length > uint64(max(0, end-s.at)) {
		return io.ErrUnexpectedEOF
	}
	to := inside[in][field]
	switch {
	case in == inEntry:
		return s.entry(int64(length), field)
	case to == nothing:
		return s.skip(int64(length))
	}
	return s.message(s.at+int64(length), to)
}

// entry reads a key, or the value that follows it.
func (s *scanner) entry(length int64, field protowire.Number) error {
	const longest = 4096 // of a path
	if length > longest {
		return s.skip(length)
	}
	text := make([]byte, length)
	n, err := io.ReadFull(s.buffer, text)
	s.at += int64(n)
	switch {
	case err != nil:
		return err
	case field == 1:
		s.key = string(text)
	case field == 2 && s.key == "location":
		s.external[string(text)] = true
	}
	return nil
}

// ReadByte implements [io.ByteReader], for numbers.
func (s *scanner) ReadByte() (byte, error) {
	b, err := s.buffer.ReadByte()
	if err == nil {
		s.at++
	}
	return b, err
}

// skip leaves out bytes, those that are not in memory yet without reading them.
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
