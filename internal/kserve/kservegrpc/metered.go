package kservegrpc

import (
	"net"

	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"

	"github.com/shoal-serving/shoal/internal/http2meter"
)

// metered are credentials that meter connections after their handshake, where frames are
// readable. grpc has no other place for that.
type metered struct {
	credentials.TransportCredentials

	meter *http2meter.Meter
}

func newMetered(c credentials.TransportCredentials, meter *http2meter.Meter) *metered {
	if c == nil {
		c = insecure.NewCredentials()
	}
	return &metered{c, meter}
}

// ServerHandshake implements [credentials.TransportCredentials].
func (m *metered) ServerHandshake(raw net.Conn) (net.Conn, credentials.AuthInfo, error) {
	done := m.meter.Handshaking(raw)
	c, info, err := m.TransportCredentials.ServerHandshake(raw)
	done()
	if err != nil {
		return nil, nil, err
	}
	return m.meter.Conn(c), info, nil
}

// Clone implements [credentials.TransportCredentials].
func (m *metered) Clone() credentials.TransportCredentials {
	return &metered{m.TransportCredentials.Clone(), m.meter}
}
