//go:build !linux

package python

import (
	"net"
	"os"
	"os/exec"

	"github.com/shoal-serving/shoal/internal/infer"
)

var errNotHere = infer.Errorf(infer.Unsupported, "Python models run on Linux only, because they need memory shared by file descriptor")

type starter struct{}

func newStarter(int) *starter                          { return &starter{} }
func (s *starter) start(*exec.Cmd) (*os.File, error)   { return nil, errNotHere }
func (s *starter) close()                              {}
func awaitExit(int)                                    {}
func killGroup(int)                                    {}
func socketPair() (*net.UnixConn, *os.File, error)     { return nil, nil, errNotHere }
func codeFile([]byte) (*os.File, error)                { return nil, errNotHere }
func processStatus(int) (stopped bool, resident int64) { return false, 0 }
